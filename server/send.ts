/** FhirReply → ctx. */
import { Readable } from 'node:stream'
import type { FhirReply } from '../shared/api/handle.ts'
import type { Context } from './context.ts'

/** Content that breaks off on the way leaves the connection cut, so that nobody takes it for whole. */
export async function send(ctx: Context, reply: FhirReply): Promise<void> {
  const { status, headers, body, open } = reply
  // An upload that is refused before its end is not read on.
  if (!ctx.req.complete) ctx.set('Connection', 'close')
  ctx.set({ ...headers })
  if (open === undefined) ctx.body = body ?? null
  else {
    // Content-Length and byte ranges speak of the content as it is stored.
    ctx.compress = false
    ctx.body = ctx.method === 'HEAD' ? Readable.from([]) : await open()
  }
  // After the body: Koa turns an empty one into a 204.
  ctx.status = status
}

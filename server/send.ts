/** FhirReply → ctx. */
import { once } from 'node:events'
import { Readable } from 'node:stream'
import type { FhirReply } from '../shared/api/handle.ts'
import { release } from '../shared/release.ts'
import type { Context } from './context.ts'

export async function send(ctx: Context, reply: FhirReply): Promise<void> {
  const { status, headers, body, pieces, open } = reply
  // An upload that is refused before its end is not read on.
  if (!ctx.req.complete) ctx.set('Connection', 'close')
  ctx.set({ ...headers })
  // Content-Length and byte ranges speak of the content as it is stored.
  ctx.compress = open === undefined
  if (pieces !== undefined) ctx.body = Readable.from(pieces)
  else if (open === undefined) ctx.body = body ?? null
  else if (ctx.method === 'HEAD') ctx.body = Readable.from([])
  else await sendContent(ctx, status, await open())
  // After the body: Koa turns an empty one into a 204.
  ctx.status = status
}

/** Past Koa, which does not tell when a chunk has left: its memory is then given back. */
async function sendContent(ctx: Context, status: number, content: Readable): Promise<void> {
  const { res } = ctx
  ctx.status = status
  ctx.respond = false
  // Also ends the wait for a caller that has gone.
  res.once('close', () => content.destroy())
  try {
    for await (const chunk of content as AsyncIterable<Uint8Array>) {
      await new Promise<void>((resolve, reject) => {
        res.write(chunk, (error) => (error ? reject(error) : resolve()))
      })
      release(chunk)
    }
    res.end()
  } catch {
    // A connection that is cut tells the caller that this was not all.
    res.destroy()
  }
  if (!res.closed) await once(res, 'close').catch(() => undefined)
}

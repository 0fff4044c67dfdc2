/** FhirReply → ctx. */
import { once } from 'node:events'
import { Readable } from 'node:stream'
import type { FhirReply } from '../shared/api/handle.ts'
import { versionHeaders } from '../shared/api/preconditions.ts'
import { FHIR_JSON } from '../shared/api/reply.ts'
import { chunksOf } from '../shared/chunks.ts'
import { release } from '../shared/release.ts'
import type { Version } from '../shared/store/repository.ts'
import { present } from '../shared/store/rows.ts'
import { type Context, caller } from './context.ts'
import { readOff } from './middleware/body.ts'

export async function send(ctx: Context, reply: FhirReply): Promise<void> {
  const { status, headers, body, pieces, open } = reply
  readOff(ctx)
  for (const [name, value] of Object.entries({ ...headers, ...rateLimits(ctx, headers) })) {
    ctx.res.setHeader(name, value)
  }
  // Content-Length and byte ranges speak of the content as it is stored.
  ctx.compress = open === undefined
  if (pieces !== undefined) ctx.body = Readable.from(pieces)
  else if (open === undefined) ctx.body = body ?? null
  else if (ctx.method === 'HEAD') ctx.body = Readable.from([])
  else await sendContent(ctx, status, await open())
  // After the body: Koa turns an empty one into a 204.
  ctx.status = status
}

/** The limit of the address stands there already. */
function rateLimits(ctx: Context, { RateLimit }: FhirReply['headers']): Record<string, string> {
  const own = ctx.response.get('RateLimit')
  return RateLimit && own ? { RateLimit: `${own}, ${RateLimit}` } : {}
}

/** As the caller may see it. A new resource says where it is; `X-Medplum: extended` adds the platform's meta. */
export function sendVersion(ctx: Context, status: number, version: Version, baseUrl: string): void {
  const { principal } = caller(ctx)
  ctx.status = status
  if (status === 201) ctx.set('Location', `${baseUrl}fhir/R4/${version.type}/${version.id}`)
  ctx.set(versionHeaders(version))
  ctx.set('Content-Type', FHIR_JSON)
  ctx.body = present(version, principal, ctx.get('X-Medplum') === 'extended')
}

/** Past Koa, which does not tell when a chunk has left: its memory is then given back. */
async function sendContent(ctx: Context, status: number, content: Readable): Promise<void> {
  const { res } = ctx
  ctx.status = status
  ctx.respond = false
  // Also ends the wait for a caller that has gone.
  res.once('close', () => content.destroy())
  try {
    for await (const chunk of chunksOf(content)) {
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

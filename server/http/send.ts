/** FhirReply → ctx. */
import { once } from 'node:events'
import { Readable } from 'node:stream'
import { yieldTurn } from '../../shared/core/yielding.ts'
import { readChunks, release } from '../../shared/outbound/storage/storage.ts'
import { FHIR_JSON, versionHeaders } from '../../shared/request/reply.ts'
import type { FhirReply } from '../../shared/request/request.ts'
import { present } from '../../shared/store/rows/rows.ts'
import type { Version } from '../../shared/store/rows/version.ts'
import { discardBody } from './body.ts'
import { type Context, caller } from './context.ts'

export async function send(ctx: Context, reply: FhirReply): Promise<void> {
  const { status, headers, body, pieces, open } = reply
  // When it cannot be opened, nothing of its headers may stand over what is answered then.
  const content = ctx.method === 'HEAD' ? undefined : await open?.()
  discardBody(ctx)
  setHeaders(ctx, headers)
  // Content-Length and byte ranges speak of the content as it is stored.
  ctx.compress = open === undefined
  if (pieces !== undefined) ctx.body = Readable.from(inTurns(pieces))
  else if (open === undefined) ctx.body = body ?? null
  else if (content === undefined) ctx.body = Readable.from([])
  else await sendContent(ctx, status, content)
  // After the body: Koa turns an empty one into a 204.
  ctx.status = status
}

/** A page is made as it is sent; what the pieces of it take together is more than one turn's. */
async function* inTurns(pieces: Iterable<string>): AsyncIterable<string> {
  for (const piece of pieces) {
    yield piece
    await yieldTurn()
  }
}

/**
 * As `send`, for what nobody looks at on its way. A text that is not to be compressed goes past Koa, whose setters
 * look at its status, type and length again.
 */
export function sendUnobserved(ctx: Context, reply: FhirReply): Promise<void> | undefined {
  const { status, headers, body } = reply
  const isPlain = typeof body === 'string' && body !== '' && ctx.method !== 'HEAD'
  if (!isPlain || ctx.req.headers['accept-encoding'] !== undefined) return send(ctx, reply)
  const { res } = ctx
  discardBody(ctx)
  setHeaders(ctx, headers)
  res.statusCode = status
  const bytes = Buffer.byteLength(body)
  res.setHeader('Content-Length', bytes)
  ctx.respond = false
  // Where each character is one byte, Node has nothing to convert: a tenth of what a short answer costs.
  res.end(body, bytes === body.length ? 'latin1' : 'utf8')
  return undefined
}

function setHeaders({ res }: Context, headers: FhirReply['headers']): void {
  // The limit of the address stands there already.
  const own = headers.RateLimit === undefined ? undefined : res.getHeader('RateLimit')
  for (const [name, value] of Object.entries(headers)) res.setHeader(name, value)
  if (own !== undefined) res.setHeader('RateLimit', `${own}, ${headers.RateLimit}`)
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

/** Writes past Koa, which does not report when a chunk has left: its memory is then given back. */
async function sendContent(ctx: Context, status: number, content: Readable): Promise<void> {
  const { res } = ctx
  ctx.status = status
  ctx.respond = false
  // Also ends the wait for a caller that has gone.
  res.once('close', () => content.destroy())
  try {
    for await (const chunk of readChunks(content)) {
      await new Promise<void>((resolve, reject) => {
        res.write(chunk, (error) => (error ? reject(error) : resolve()))
      })
      release(chunk)
    }
    res.end()
  } catch {
    // A cut connection shows the caller that this was not all.
    res.destroy()
  }
  if (!res.closed) await once(res, 'close').catch(() => undefined)
}

/** Sends a FhirReply as the response. */

import { once } from 'node:events'
import { Readable } from 'node:stream'
import { allOk } from '../../shared/core/errors.ts'
import { yieldTurn } from '../../shared/core/yielding.ts'
import { readChunks, release } from '../../shared/outbound/storage/storage.ts'
import { FHIR_JSON, versionHeaders } from '../../shared/request/reply.ts'
import type { FhirReply, FhirRequest } from '../../shared/request/request.ts'
import { present } from '../../shared/store/rows/rows.ts'
import type { Version } from '../../shared/store/rows/version.ts'
import { discardBody } from './body.ts'
import { type Context, caller, type ThreadCaller, type Web } from './context.ts'

export async function send(ctx: Context, reply: FhirReply): Promise<void> {
  const { status, headers, body, pieces, open } = reply
  // Opened first: if it fails, the error reply must not carry these headers.
  const content = ctx.method === 'HEAD' ? undefined : await open?.()
  discardBody(ctx)
  setHeaders(ctx, headers)
  // Content-Length and byte ranges refer to the stored content.
  ctx.compress = open === undefined
  if (pieces !== undefined) ctx.body = Readable.from(inTurns(pieces))
  else if (open === undefined) ctx.body = body ?? null
  else if (content === undefined) ctx.body = Readable.from([])
  else await sendContent(ctx, status, content)
  // After the body: Koa turns an empty one into a 204.
  ctx.status = status
}

/** Sends the reply to a request, which runs in the thread for large bodies if it has one. */
export async function sendByEither(
  ctx: Context,
  { services, large }: Web,
  request: FhirRequest,
  { here, threadCaller }: { here(): Promise<FhirReply>; threadCaller(): ThreadCaller },
): Promise<void> {
  const isLarge = (request.body?.length ?? 0) > services.config.largeBodyBytes
  const reply = isLarge ? large?.handleRequest(threadCaller(), request) : undefined
  await send(ctx, await (reply ?? here()))
}

/** Sends a page that loads only from this service and from `sources`; it is not framed. */
export function sendHtml(ctx: Context, html: string, sources: readonly string[]): void {
  const policy = [
    "default-src 'none'",
    ...sources,
    "connect-src 'self'",
    "base-uri 'none'",
    "form-action 'none'",
    "frame-ancestors 'none'",
  ]
  ctx.set('Content-Security-Policy', policy.join('; '))
  ctx.type = 'text/html; charset=utf-8'
  ctx.body = html
}

/** Yields between pieces: together they take longer than one turn should. */
async function* inTurns(pieces: Iterable<string>): AsyncIterable<string> {
  for (const piece of pieces) {
    yield piece
    await yieldTurn()
  }
}

/**
 * Sends like `send` where no middleware inspects the response. An uncompressed text bypasses Koa, whose setters check
 * status, type and length again.
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
  // All characters are single bytes, so Node can skip the conversion.
  res.end(body, bytes === body.length ? 'latin1' : 'utf8')
  return undefined
}

function setHeaders({ res }: Context, headers: FhirReply['headers']): void {
  // Set already, with the limit of the address.
  const own = headers.RateLimit === undefined ? undefined : res.getHeader('RateLimit')
  for (const [name, value] of Object.entries(headers)) res.setHeader(name, value)
  if (own !== undefined) res.setHeader('RateLimit', `${own}, ${headers.RateLimit}`)
}

/** Sends an OperationOutcome of success. */
export function sendOk(ctx: Context): void {
  ctx.set('Content-Type', FHIR_JSON)
  ctx.body = JSON.stringify(allOk)
}

/**
 * Sends a version as the caller may see it. A new resource gets a Location; `X-Medplum: extended` adds the platform's
 * meta.
 */
export function sendVersion(ctx: Context, status: number, version: Version, baseUrl: string): void {
  const { principal } = caller(ctx)
  ctx.status = status
  if (status === 201) ctx.set('Location', `${baseUrl}fhir/R4/${version.type}/${version.id}`)
  ctx.set(versionHeaders(version))
  ctx.set('Content-Type', FHIR_JSON)
  ctx.body = present(version, principal, ctx.get('X-Medplum') === 'extended')
}

/** Bypasses Koa, which does not report when a chunk is sent and its memory can be freed. */
async function sendContent(ctx: Context, status: number, content: Readable): Promise<void> {
  const { res } = ctx
  ctx.status = status
  ctx.respond = false
  // Also ends the wait when the client disconnects.
  res.once('close', () => content.destroy())
  // The first part of a stream may take its time.
  if (!res.hasHeader('Content-Length')) res.flushHeaders()
  try {
    for await (const chunk of readChunks(content)) {
      await new Promise<void>((resolve, reject) => {
        res.write(chunk, (error) => (error ? reject(error) : resolve()))
      })
      release(chunk)
    }
    res.end()
  } catch {
    // A cut connection signals that the content is incomplete.
    res.destroy()
  }
  if (!res.closed) await once(res, 'close').catch(() => undefined)
}

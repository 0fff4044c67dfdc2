/** Outbound requests for callers. Connects to the address that was checked (DNS rebinding), at every redirect. */
import { lookup } from 'node:dns/promises'
import { Agent as AgentHttp, type IncomingMessage, request as requestHttp } from 'node:http'
import { Agent as AgentHttps, request as requestHttps } from 'node:https'
import { isIP } from 'node:net'
import type { Duplex } from 'node:stream'
import { pipeline } from 'node:stream'
import { urlToHttpOptions } from 'node:url'
import { promisify } from 'node:util'
import {
  brotliDecompress,
  constants,
  createBrotliDecompress,
  createGunzip,
  createInflate,
  gunzip,
  inflate,
} from 'node:zlib'
import { blockedReason, type Outbound, plainHost } from '../core/config/outbound.ts'

export interface OutboundRequest {
  readonly url: string
  readonly method: string
  readonly headers: Readonly<Record<string, string>>
  readonly body: Buffer | string | undefined
  readonly redirect: string
  /** Maximum body size; default 10 MB. */
  readonly maxBytes?: number
  /** True: only the head counts; a body that is broken or slow does no harm, and is returned empty. */
  readonly ignoresBody?: boolean
  /** Default 30 s. */
  readonly timeoutMs?: number
  /** Requires https at every hop. */
  readonly isSecure?: boolean
  /** Safe to send twice, so it may use a kept connection that could have ended. */
  readonly isRepeatable?: boolean
}

interface Answered {
  readonly status: number
  readonly statusText: string
  readonly headers: Readonly<Record<string, string>>
  readonly url: string
}

interface Fetched extends Answered {
  readonly body: Buffer
}

/** A body as it arrives, decompressed. It ends with `signal` or with the end of its iteration. */
export interface FetchedPieces extends Answered {
  readonly body: AsyncGenerator<Buffer>
}

/** The body as sent, compressed according to `headers`. The caller must destroy it. */
export interface OutboundStream extends Answered {
  readonly body: IncomingMessage
}

/** A permanent refusal by the outbound rules. */
export class FetchRefused extends Error {}

export const MAX_FETCHED_BYTES = 10 * 1024 * 1024
export const FETCH_TIMEOUT_MS = 30_000
/** Limits of an ignored body. */
const MAX_SKIPPED_BYTES = 65_536
const SKIP_MS = 1000
const MAX_REDIRECTS = 10
/** Shorter than most servers' keep-alive. */
const IDLE_MS = 4000
const HOP_BY_HOP = new Set([
  'connection',
  'content-length',
  'keep-alive',
  'proxy-authorization',
  'te',
  'trailer',
  'transfer-encoding',
  'upgrade',
])

/** Errors: an Error whose message is safe for bots and callers. */
export async function fetchOutbound(
  outgoing: OutboundRequest,
  rules: Outbound,
  signal: AbortSignal,
): Promise<Fetched> {
  const limit = AbortSignal.any([
    signal,
    AbortSignal.timeout(outgoing.timeoutMs ?? FETCH_TIMEOUT_MS),
  ])
  const { maxBytes = MAX_FETCHED_BYTES, ignoresBody = false } = outgoing
  const { body: response, ...answered } = await openOutbound(outgoing, rules, limit)
  try {
    if (ignoresBody) {
      await skipBody(response)
      return { ...answered, body: Buffer.alloc(0) }
    }
    const raw = await readAll(response, maxBytes)
    return { ...answered, body: await decode(raw, response.headers['content-encoding'], maxBytes) }
  } catch (error) {
    throw describe(error, limit)
  } finally {
    response.destroy()
  }
}

/** Fails after 30 s without the head, or without a part of the body. Errors: as `fetchOutbound`, also of the body. */
export async function fetchPieces(
  outgoing: OutboundRequest,
  rules: Outbound,
  signal: AbortSignal,
): Promise<FetchedPieces> {
  const silence = createSilence()
  const limit = AbortSignal.any([signal, silence.signal])
  silence.begin()
  try {
    const { body: response, ...answered } = await openOutbound(outgoing, rules, limit)
    return { ...answered, body: readPieces(response, limit, silence) }
  } finally {
    silence.end()
  }
}

type Silence = ReturnType<typeof createSilence>

/** Aborts when a sender is silent for too long. */
function createSilence() {
  const controller = new AbortController()
  let timer: NodeJS.Timeout | undefined
  return {
    signal: controller.signal,
    begin() {
      timer = setTimeout(() => controller.abort(), FETCH_TIMEOUT_MS)
    },
    end() {
      clearTimeout(timer)
    },
  }
}

async function* readPieces(
  response: IncomingMessage,
  limit: AbortSignal,
  silence: Silence,
): AsyncGenerator<Buffer> {
  const decoder = decoderStreams[response.headers['content-encoding']?.toLowerCase() ?? '']?.()
  const content =
    decoder === undefined ? response : pipeline(response, decoder, () => response.destroy())
  let size = 0
  silence.begin()
  try {
    for await (const chunk of content) {
      silence.end()
      size += chunk.length
      if (size > MAX_FETCHED_BYTES) {
        throw new Error(`The answer is larger than ${MAX_FETCHED_BYTES} bytes`)
      }
      // The time of the reader does not count.
      yield chunk
      silence.begin()
    }
  } catch (error) {
    const code = errorCode(error) ?? ''
    if (/^(Z_|ERR_BROTLI|ERR__)/.test(code)) {
      throw new Error('The answer could not be decompressed', { cause: error })
    }
    throw describe(error, limit)
  } finally {
    silence.end()
    response.destroy()
  }
}

/** Opens a streaming response, limited only by `signal`. Errors: as `fetchOutbound`. */
export async function openOutbound(
  outgoing: OutboundRequest,
  rules: Outbound,
  signal: AbortSignal,
): Promise<OutboundStream> {
  const named = { 'user-agent': rules.userAgent, ...outgoing.headers }
  let hop: OutboundRequest = { ...outgoing, headers: named }
  for (let redirects = 0; ; redirects++) {
    const url = readUrl(hop.url, rules)
    if (hop.isSecure && url.protocol !== 'https:')
      throw new FetchRefused(`${url.host} is asked by https alone`)
    const opened = await openOnce(hop, url, await resolveAllowedAddress(url, rules), signal)
    const location = opened.headers.location
    if (![301, 302, 303, 307, 308].includes(opened.status) || location === undefined) return opened
    if (hop.redirect === 'manual') return opened
    opened.body.destroy()
    if (hop.redirect === 'error') throw new Error('The answer is a redirect')
    if (redirects >= MAX_REDIRECTS) throw new Error('Too many redirects')
    hop = follow(hop, opened.status, url, new URL(location, url))
  }
}

/** Errors: an Error for a URL that is rejected without DNS. */
export function checkTarget(text: string, rules: Outbound): void {
  readUrl(text, rules)
}

/** https://fetch.spec.whatwg.org/#http-redirect-fetch: drops credentials across origins. */
function follow(hop: OutboundRequest, status: number, from: URL, to: URL): OutboundRequest {
  const becomesGet = status === 303 || (status < 303 && hop.method === 'POST')
  const drop = new Set([
    ...(from.origin === to.origin ? [] : ['authorization', 'cookie']),
    ...(becomesGet ? ['content-type', 'content-encoding', 'content-language'] : []),
  ])
  return {
    ...hop,
    url: to.href,
    method: becomesGet && hop.method !== 'HEAD' ? 'GET' : hop.method,
    body: becomesGet ? undefined : hop.body,
    headers: withoutNames(hop.headers, drop),
  }
}

function withoutNames(
  headers: OutboundRequest['headers'],
  names: ReadonlySet<string>,
): Record<string, string> {
  return Object.fromEntries(
    Object.entries(headers).filter(([name]) => !names.has(name.toLowerCase())),
  )
}

function readUrl(text: string, rules: Outbound): URL {
  if (!URL.canParse(text)) throw new FetchRefused('The address is not a URL')
  const url = new URL(text)
  if (url.protocol !== 'https:' && url.protocol !== 'http:') {
    throw new FetchRefused(`fetch knows http and https, not ${url.protocol}`)
  }
  requireAllowed(rules, url)
  return url
}

function requireAllowed(rules: Outbound, url: URL, addresses?: readonly string[]): void {
  const refusal = blockedReason(rules, url, addresses)
  if (refusal !== undefined) throw new FetchRefused(refusal)
}

/** Requires every address of the host to be allowed; returns the first. Errors: as `fetchOutbound`. */
export async function resolveAllowedAddress(url: URL, rules: Outbound): Promise<string> {
  const host = plainHost(url.hostname)
  const found = isIP(host) ? [{ address: host }] : await resolve(host)
  const [first] = found
  if (first === undefined) throw new Error(`${host} has no address`)
  const addresses = found.map(({ address }) => address)
  requireAllowed(rules, url, addresses)
  return first.address
}

async function resolve(host: string): Promise<{ address: string }[]> {
  try {
    return await lookup(host, { all: true })
  } catch (error) {
    throw new Error(`${host} could not be resolved`, { cause: error })
  }
}

/** Agents are keyed by checked address and certificate name. */
const agents = {
  http: new AgentHttp({ keepAlive: true, timeout: IDLE_MS }),
  https: new AgentHttps({ keepAlive: true, timeout: IDLE_MS }),
}

async function openOnce(
  outgoing: OutboundRequest,
  url: URL,
  address: string,
  signal: AbortSignal,
): Promise<OutboundStream> {
  const response = await respond(outgoing, url, address, signal)
  return {
    status: response.statusCode ?? 0,
    statusText: response.statusMessage ?? '',
    headers: flatten(response.headers),
    url: url.href,
    body: response,
  }
}

function respond(
  outgoing: OutboundRequest,
  url: URL,
  address: string,
  signal: AbortSignal,
): Promise<IncomingMessage> {
  const { method, headers, body, isRepeatable = false } = outgoing
  const isSecure = url.protocol === 'https:'
  const bytes = body === undefined ? undefined : Buffer.from(body)
  const { promise, resolve, reject } = Promise.withResolvers<IncomingMessage>()
  const req = (isSecure ? requestHttps : requestHttp)({
    ...urlToHttpOptions(url),
    hostname: address,
    ...(isIP(plainHost(url.hostname)) === 0 ? { servername: url.hostname } : {}),
    method,
    signal,
    agent: isRepeatable && agents[isSecure ? 'https' : 'http'],
    headers: {
      host: url.host,
      'accept-encoding': 'gzip, deflate, br',
      accept: '*/*',
      ...withoutNames(headers, HOP_BY_HOP),
      ...(bytes === undefined ? {} : { 'content-length': String(bytes.length) }),
    },
  })
  req.on('response', resolve)
  req.on('error', (error) => {
    if (req.reusedSocket && errorCode(error) === 'ECONNRESET' && !signal.aborted) {
      resolve(respond(outgoing, url, address, signal))
    } else reject(describe(error, signal))
  })
  req.end(bytes)
  return promise
}

/** Reads a short body, which keeps the connection, and cuts the connection of any other. */
async function skipBody(response: IncomingMessage): Promise<void> {
  const timer = setTimeout(() => response.destroy(), SKIP_MS)
  await readAll(response, MAX_SKIPPED_BYTES).catch(() => undefined)
  clearTimeout(timer)
}

async function readAll(response: IncomingMessage, maxBytes: number): Promise<Buffer> {
  const chunks: Buffer[] = []
  let size = 0
  for await (const chunk of response) {
    size += chunk.length
    if (size > maxBytes) throw new Error(`The answer is larger than ${maxBytes} bytes`)
    chunks.push(chunk)
  }
  return Buffer.concat(chunks)
}

const flush = { flush: constants.Z_SYNC_FLUSH }
const decoderStreams: Readonly<Record<string, () => Duplex>> = {
  gzip: () => createGunzip(flush),
  'x-gzip': () => createGunzip(flush),
  deflate: () => createInflate(flush),
  br: () => createBrotliDecompress({ flush: constants.BROTLI_OPERATION_FLUSH }),
}

type Decoder = (raw: Buffer, options: { readonly maxOutputLength: number }) => Promise<Buffer>

const decoders: Readonly<Record<string, Decoder>> = {
  gzip: promisify(gunzip),
  'x-gzip': promisify(gunzip),
  deflate: promisify(inflate),
  br: promisify(brotliDecompress),
}

async function decode(
  raw: Buffer,
  encoding: string | undefined,
  maxOutputLength: number,
): Promise<Buffer> {
  const decoder = raw.length === 0 ? undefined : decoders[encoding?.toLowerCase() ?? '']
  if (decoder === undefined) return raw
  try {
    return await decoder(raw, { maxOutputLength })
  } catch (error) {
    throw new Error('The answer could not be decompressed', { cause: error })
  }
}

function flatten(headers: IncomingMessage['headers']): Record<string, string> {
  return Object.fromEntries(
    Object.entries(headers).flatMap(([name, value]) =>
      value === undefined ? [] : [[name, Array.isArray(value) ? value.join(', ') : value] as const],
    ),
  )
}

/** Keeps internal paths and stacks out of the message. */
function describe(error: unknown, signal: AbortSignal): Error {
  if (signal.aborted) return new Error('The request took too long or the run has ended')
  if (!(error instanceof Error)) return new Error('The request failed')
  const code = errorCode(error)
  return code === undefined ? error : new Error(`The request failed: ${code}`, { cause: error })
}

function errorCode(error: unknown): string | undefined {
  return error instanceof Error && 'code' in error && typeof error.code === 'string'
    ? error.code
    : undefined
}

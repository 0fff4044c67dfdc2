/** Streams the plain bytes of an import input: a Binary of the Project, or an external file. */

import { pipeline, Readable } from 'node:stream'
import { createBrotliDecompress, createGunzip, createInflate } from 'node:zlib'
import type { Principal } from '../access/principal.ts'
import type { Config } from '../core/config/config.ts'
import { badRequest, type HttpError } from '../core/errors.ts'
import { parseBody } from '../fhir/json.ts'
import { isObject } from '../fhir/resource.ts'
import {
  FetchRefused,
  fetchOutbound,
  type OutboundStream,
  openOutbound,
} from '../outbound/fetch-outside.ts'
import { readChunks, readStored, readWholeStored } from '../outbound/storage/storage.ts'
import { type BinaryContent, openContent, readBinaryContent } from '../request/binary/content.ts'
import type { Services } from '../request/services.ts'
import type { ImportInput } from './jobs.ts'
import { importAddress, takesHttp } from './kick-off.ts'
import { isImportable } from './lines.ts'

type Chunks = AsyncIterable<Buffer>

interface Source {
  /** Errors: 4xx for permanent failures. */
  readonly chunks: Chunks
  readonly size: number | undefined
  close(): void
}

interface Raw extends Source {
  readonly start: number
}

const GZIP = [0x1f, 0x8b]
const ANSWER_MS = 30_000

interface SourceAt {
  readonly url: string
  readonly from: number
  readonly signal: AbortSignal
}

/** Streams plain bytes from `from`. Errors: 4xx for an input that is missing or not readable by the caller. */
export async function openSource(
  services: Services,
  principal: Principal,
  { url, from, signal }: SourceAt,
): Promise<Source> {
  const { config } = services
  const [, id] = /^Binary\/(.+)$/.exec(url) ?? []
  const { chunks, start, size, close } =
    id === undefined
      ? await openFile(config, url, signal)
      : await openBinary(services, principal, id, from)
  if (signal.aborted) close()
  else signal.addEventListener('abort', close)
  const plain = start === 0 ? unpacked(chunks) : chunks
  return { chunks: skip(plain, from - start, config.maxUploadBytes - start), size, close }
}

async function openBinary(
  services: Services,
  principal: Principal,
  id: string,
  from: number,
): Promise<Raw> {
  const content = readBinaryContent(await services.repository.read(principal, 'Binary', id))
  const isPacked = isGzip(await readMagicBytes(services, content))
  const start = isPacked ? 0 : Math.min(from, content.size)
  const rest = { ...content, size: content.size - start }
  const range = { start, end: content.size - 1 }
  const stream = await openContent(services, rest, range)
  const size = isPacked ? undefined : content.size
  return { chunks: readStored(stream), start, size, close: () => void stream.destroy() }
}

async function readMagicBytes(services: Services, content: BinaryContent): Promise<Buffer> {
  const end = Math.min(content.size, GZIP.length) - 1
  const stream = await openContent(services, content, { start: 0, end })
  return await readWholeStored(stream)
}

const decoders = {
  gzip: createGunzip,
  'x-gzip': createGunzip,
  deflate: createInflate,
  br: createBrotliDecompress,
} as const

async function openFile(config: Config, url: string, signal: AbortSignal): Promise<Raw> {
  const { headers, body } = await openAnswer(config, url, signal)
  const encoding = headers['content-encoding']?.toLowerCase() ?? ''
  const decoder = Object.hasOwn(decoders, encoding)
    ? decoders[encoding as keyof typeof decoders]()
    : undefined
  const sent = received(readChunks(body, () => new SourceFailed('the server is too slow')))
  const chunks = decoder === undefined ? sent : decoded(sent, decoder)
  const length = decoder === undefined ? Number(headers['content-length']) : 0
  const size = length > 0 ? length : undefined
  return { chunks, start: 0, size, close: () => void body.destroy() }
}

/** A transient failure; the message is for the importing user. */
class SourceFailed extends Error {}

/** Errors: 400 for permanent failures, otherwise SourceFailed. */
async function openAnswer(
  config: Config,
  url: string,
  signal: AbortSignal,
): Promise<OutboundStream> {
  const waiting = new AbortController()
  const timer = setTimeout(() => waiting.abort(), ANSWER_MS)
  const either = AbortSignal.any([signal, waiting.signal])
  const asked = getRequest(config, url, 'application/fhir+ndjson, application/ndjson, */*')
  try {
    const opened = await openOutbound(asked, config.hookTargets, either).catch(throwSourceError)
    if (opened.status === 200) return opened
    opened.body.destroy()
    throw unwanted(opened.status)
  } finally {
    clearTimeout(timer)
  }
}

function getRequest(config: Pick<Config, 'hookTargets'>, url: string, accept: string) {
  const isSecure = !takesHttp(config)
  return { url, method: 'GET', headers: { accept }, body: undefined, redirect: 'follow', isSecure }
}

function unwanted(status: number): Error {
  const failure = new SourceFailed(`it was answered with status ${status}`)
  return status < 500 && status !== 429 ? unreadable(failure) : failure
}

/** 400 for an input that is given up. */
export function unreadable(error: unknown): HttpError {
  const why = error instanceof SourceFailed ? `: ${error.message}` : ''
  return badRequest(`The input could not be read${why}`)
}

/** A rejection by the outbound rules is permanent. */
function throwSourceError(error: Error): never {
  throw error instanceof FetchRefused
    ? badRequest(error.message)
    : new SourceFailed(error.message, { cause: error })
}

async function* received(body: Chunks): AsyncGenerator<Buffer> {
  try {
    yield* body
  } catch (error) {
    if (error instanceof SourceFailed) throw error
    throw new SourceFailed('the connection ended early', { cause: error })
  }
}

/** Decompresses a file by its content, regardless of its name. */
async function* unpacked(chunks: Chunks): AsyncGenerator<Buffer> {
  const iterator = chunks[Symbol.asyncIterator]()
  const rest = { [Symbol.asyncIterator]: () => iterator }
  let head = Buffer.alloc(0)
  while (head.length < GZIP.length) {
    const { value, done } = await iterator.next()
    if (done) break
    head = Buffer.concat([head, value])
  }
  if (isGzip(head)) yield* decoded(joined(head, rest), createGunzip())
  else yield* joined(head, rest)
}

async function* joined(head: Buffer, rest: Chunks): AsyncGenerator<Buffer> {
  yield head
  yield* rest
}

async function* decoded(
  chunks: Chunks,
  decoder: ReturnType<(typeof decoders)[keyof typeof decoders]>,
): AsyncGenerator<Buffer> {
  let cause: unknown
  // The error is thrown to the reader below.
  pipeline(Readable.from(chunks), decoder, (error) => {
    cause = error
  })
  try {
    yield* readChunks(decoder)
  } catch (error) {
    const { code = '' } = (cause ?? error) as NodeJS.ErrnoException
    throw /^(Z_|ERR_.*BROTLI|ERR__ERROR_)/.test(code)
      ? badRequest('The input could not be decompressed')
      : error
  } finally {
    decoder.destroy()
  }
}

/** Skips the first `skipped` bytes. Errors: 400 beyond `maxBytes`. */
async function* skip(chunks: Chunks, skipped: number, maxBytes: number): AsyncGenerator<Buffer> {
  let seen = 0
  for await (const chunk of chunks) {
    const from = Math.min(Math.max(skipped - seen, 0), chunk.length)
    seen += chunk.length
    if (seen > maxBytes) throw badRequest('The input is larger than an upload may be')
    if (from < chunk.length) yield chunk.subarray(from)
  }
}

function isGzip(head: Buffer): boolean {
  return GZIP.every((byte, place) => head[place] === byte)
}

/** Errors: 400 for an invalid manifest, or one whose files need a token; others are transient. */
export async function readManifest(
  config: Pick<Config, 'hookTargets'>,
  url: string,
  signal: AbortSignal,
): Promise<readonly ImportInput[]> {
  const asked = getRequest(config, url, 'application/json')
  const { status, body } = await fetchOutbound(asked, config.hookTargets, signal).catch(
    throwSourceError,
  )
  if (status !== 200) throw unwanted(status)
  const manifest = parseBody(body)
  if (!isObject(manifest) || !Array.isArray(manifest.output)) {
    throw badRequest('The response is not a bulk export manifest')
  }
  if (manifest.requiresAccessToken === true) {
    throw badRequest('The files of the manifest need an access token, which imports do not have')
  }
  if (Array.isArray(manifest.link) && manifest.link.some(isNext)) {
    throw badRequest('The manifest goes on at another address; name its files as inputs')
  }
  if (Array.isArray(manifest.deleted) && manifest.deleted.length > 0) {
    throw badRequest('The deletions of the manifest are not imported; name its files as inputs')
  }
  return manifest.output.map((file: unknown) => {
    const { type, url: address } = isObject(file) ? file : {}
    if (typeof type !== 'string' || !isImportable(type)) {
      throw badRequest('The manifest names a file of a type that is not imported')
    }
    const found = typeof address === 'string' ? importAddress(config, address, url) : undefined
    if (found === undefined) {
      throw badRequest('The manifest names a file that is at no https address')
    }
    return { type, url: found.href }
  })
}

/** https://build.fhir.org/ig/HL7/bulk-data/export.html: a manifest may have pages. */
function isNext(link: unknown): boolean {
  return isObject(link) && link.relation === 'next'
}

/** Reads request bodies of any coding within a size limit. `listen.ts` ends slow ones. */
import type { IncomingMessage } from 'node:http'
import { Readable, type Transform } from 'node:stream'
import { promisify } from 'node:util'
import {
  brotliDecompress,
  createBrotliDecompress,
  createGunzip,
  createInflate,
  gunzip,
  inflate,
  type Zlib,
} from 'node:zlib'
import getRawBody from 'raw-body'
import {
  badRequest,
  badStructure,
  notSupported,
  tooLarge,
  unsupportedMediaType,
} from '../../shared/core/errors.ts'
import { parseBody } from '../../shared/fhir/json.ts'
import { isObject } from '../../shared/fhir/resource.ts'
import type { FhirRequest } from '../../shared/request/request.ts'
import type { Context } from './context.ts'

/** Inflating beyond this ratio indicates a bomb. */
const HIGHEST_RATIO = 100
const DECODERS = {
  gzip: promisify(gunzip),
  deflate: promisify(inflate),
  br: promisify(brotliDecompress),
}
const STREAM_DECODERS = {
  gzip: createGunzip,
  deflate: createInflate,
  br: createBrotliDecompress,
}
/** Rejected bodies beyond this size are cut off; the client then misses the reply. */
const READ_OFF_BYTES = 64 * 1024 * 1024
const READ_OFF_MS = 10_000

/**
 * Reads and drops the rest of a rejected body: many clients read the reply only after sending everything, and lose it
 * when the connection closes (RFC 9112 §9.6).
 */
export function discardBody({ req }: { readonly req: IncomingMessage }): void {
  if (req.complete || req.destroyed) return
  const stop = () => req.destroy()
  const timer = setTimeout(stop, READ_OFF_MS)
  let left = READ_OFF_BYTES
  req.on('data', (chunk: Buffer) => {
    left -= chunk.length
    if (left < 0) stop()
  })
  req.once('close', () => clearTimeout(timer))
  req.resume()
}

/** Returns undefined without a body. Errors: 413 beyond `maxBytes`, 400 for a bad coding. */
export async function readBody(ctx: Context, maxBytes: number): Promise<Buffer | undefined> {
  const { body } = ctx.state
  if (body !== undefined && body.length > maxBytes) throw tooLarge()
  if (body !== undefined) return body
  if (!hasBody(ctx)) return undefined
  const coding = parseContentEncoding(ctx)
  const raw = await readRaw(ctx, maxBytes)
  if (raw.length === 0) return undefined
  return coding === undefined ? raw : await inflated(raw, coding, maxBytes)
}

/** True if the headers announce a body, which may still be empty. */
export function hasBody({ req: { headers } }: Context): boolean {
  return headers['transfer-encoding'] !== undefined || Number(headers['content-length'] ?? 0) !== 0
}

/** Returns the decoded body stream. Errors: 413 for an announced size, 400 for a bad coding. */
export function openBody(ctx: Context, maxBytes: number): Readable {
  const { req } = ctx
  const coding = parseContentEncoding(ctx)
  if (Number(req.headers['content-length'] ?? 0) > maxBytes) throw tooLarge()
  return coding === undefined ? req : inflating(req, coding)
}

/** Larger JSON would block the event loop; only routes that use the thread accept more. */
export const JSON_BYTES = 262_144

/** Parses the body as a JSON object or array. Errors: 415, 400, 413. */
export async function readJson(ctx: Context, maxBytes = JSON_BYTES): Promise<unknown> {
  return parseJsonBody(await readBody(ctx, maxBytes), ctx.get('Content-Type'))
}

/** Errors: 415, 400. */
export function parseJsonBody(body: FhirRequest['body'], contentType: string): unknown {
  if (body === undefined) throw badRequest('Content could not be parsed')
  if (!isJsonType(contentType)) throw unsupportedMediaType()
  return parseBody(body)
}

/** Like `readJson`, for routes that expect an object. */
export async function readJsonObject(
  ctx: Context,
  maxBytes = JSON_BYTES,
): Promise<Record<string, unknown>> {
  const value = await readJson(ctx, maxBytes)
  if (!isObject(value)) throw badStructure('Content must be a JSON object')
  return value
}

type Coding = keyof typeof DECODERS

/** Errors: 400. */
function parseContentEncoding(ctx: Context): Coding | undefined {
  const coding = (ctx.req.headers['content-encoding'] ?? 'identity').trim().toLowerCase()
  if (isCoding(coding)) return coding
  if (coding !== 'identity') throw notSupported('Unsupported content encoding')
  return undefined
}

function isCoding(name: string): name is Coding {
  return Object.hasOwn(DECODERS, name)
}

async function readRaw(ctx: Context, maxBytes: number): Promise<Buffer> {
  const length = ctx.req.headers['content-length']
  try {
    return await getRawBody(ctx.req, { limit: maxBytes, length: length ?? null })
  } catch (error) {
    const { type } = error as { type?: string }
    if (type === 'entity.too.large') throw tooLarge()
    if (type === 'request.aborted' || type === 'request.size.invalid') {
      throw badStructure('Content is incomplete')
    }
    throw error
  }
}

async function inflated(raw: Buffer, coding: Coding, maxBytes: number): Promise<Buffer> {
  const maxOutputLength = Math.min(maxBytes, raw.length * HIGHEST_RATIO)
  try {
    return await DECODERS[coding](raw, { maxOutputLength })
  } catch (error) {
    if ((error as { code?: string }).code === 'ERR_BUFFER_TOO_LARGE') throw tooLarge()
    throw badStructure(`Content is not ${coding} encoded`)
  }
}

/** Errors during reading: 413 for a bomb, 400 for data not in this coding. */
function inflating(req: Readable, coding: Coding): Readable {
  const decoder = STREAM_DECODERS[coding]()
  req.once('error', (error) => decoder.destroy(error))
  // Readers handle the error; before one attaches, it is ignored.
  decoder.on('error', () => undefined)
  return Readable.from(inflatedChunks(req.pipe(decoder), coding), { objectMode: false })
}

async function* inflatedChunks(decoder: Transform & Zlib, coding: Coding): AsyncGenerator<Buffer> {
  let size = 0
  try {
    for await (const chunk of decoder as AsyncIterable<Buffer>) {
      size += chunk.length
      if (size > decoder.bytesWritten * HIGHEST_RATIO) throw tooLarge()
      yield chunk
    }
  } catch (error) {
    const isBroken = (error as { code?: string }).code?.match(/^(Z_|ERR_BROTLI|ERR__)/)
    throw isBroken ? badStructure(`Content is not ${coding} encoded`) : error
  }
}

function isJsonType(header: string): boolean {
  const [type = '', ...parameters] = header.toLowerCase().split(';')
  const charset = parameters.find((item) => item.trim().startsWith('charset='))
  if (charset !== undefined && !/=\s*"?utf-?8"?\s*$/.test(charset)) return false
  return /^\s*(application\/([\w.+-]+\+)?json|text\/json)\s*$/.test(type)
}

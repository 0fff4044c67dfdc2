/** Reads a request body within its limit, whatever coding it travels in. */
import { promisify } from 'node:util'
import { brotliDecompress, gunzip, inflate } from 'node:zlib'
import getRawBody from 'raw-body'
import {
  badRequest,
  badStructure,
  notSupported,
  tooLarge,
  unsupportedMediaType,
} from '../../shared/errors.ts'
import { parseBody } from '../../shared/fhir/json.ts'
import { isObject } from '../../shared/fhir/resource.ts'
import type { Context } from '../context.ts'

/** A body that grows more than this while it is inflated is a bomb. */
const HIGHEST_RATIO = 100
const DECODERS = {
  gzip: promisify(gunzip),
  deflate: promisify(inflate),
  br: promisify(brotliDecompress),
}

/** Undefined when there is no body. Errors: 413 beyond `maxBytes`, 400 for a bad coding. */
export async function readBody(ctx: Context, maxBytes: number): Promise<Buffer | undefined> {
  const { headers } = ctx.req
  if (headers['transfer-encoding'] === undefined && !Number(headers['content-length'] ?? 0)) {
    return undefined
  }
  const coding = (headers['content-encoding'] ?? 'identity').trim().toLowerCase()
  if (coding !== 'identity' && !isCoding(coding)) throw notSupported('Unsupported content encoding')
  const raw = await readRaw(ctx, maxBytes)
  if (raw.length === 0) return undefined
  return isCoding(coding) ? await inflated(raw, coding, maxBytes) : raw
}

/** Parses the body as a JSON object or array. Errors: 415, 400, 413. */
export async function readJson(ctx: Context, maxBytes: number): Promise<unknown> {
  const body = await readBody(ctx, maxBytes)
  if (body === undefined) throw badRequest('Content could not be parsed')
  if (!isJsonType(ctx.get('Content-Type'))) throw unsupportedMediaType()
  return parseBody(body)
}

/** The same for routes that want an object. */
export async function readJsonObject(
  ctx: Context,
  maxBytes: number,
): Promise<Record<string, unknown>> {
  const value = await readJson(ctx, maxBytes)
  if (!isObject(value)) throw badStructure('Content must be a JSON object')
  return value
}

type Coding = keyof typeof DECODERS

function isCoding(name: string): name is Coding {
  return Object.hasOwn(DECODERS, name)
}

async function readRaw(ctx: Context, maxBytes: number): Promise<Buffer> {
  const length = ctx.req.headers['content-length']
  try {
    return await getRawBody(ctx.req, { limit: maxBytes, length: length ?? null })
  } catch (error) {
    const { type } = error as { type?: string }
    if (type === 'entity.too.large') {
      // What the caller still sends is not read; the connection cannot be used again.
      ctx.set('Connection', 'close')
      throw tooLarge()
    }
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

function isJsonType(header: string): boolean {
  const [type = '', ...parameters] = header.toLowerCase().split(';')
  const charset = parameters.find((item) => item.trim().startsWith('charset='))
  if (charset !== undefined && !/=\s*"?utf-?8"?\s*$/.test(charset)) return false
  return /^\s*(application\/([\w.+-]+\+)?json|text\/json)\s*$/.test(type)
}

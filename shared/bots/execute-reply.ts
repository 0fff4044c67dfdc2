/**
 * Converts a request to `event.input`, and the handler's result to HTTP. A bot that throws returns 400, since SDKs retry
 * 5xx; one that returns an error has the status of its outcome. A run lost in a crash returns 500: the caller decides
 * whether to retry.
 */
import { isUtf8 } from 'node:buffer'
import { allOk, attempt, badRequest, unavailable, unsupportedMediaType } from '../core/errors.ts'
import { decodeText, parseBody } from '../fhir/json.ts'
import { isObject, nonEmptyText, toObjects } from '../fhir/resource.ts'
import type { ExecuteJob, ExecuteReply } from '../queue/jobs.ts'
import { safeContentType } from '../request/binary/content.ts'
import { acceptedRanges, mediaType } from '../request/negotiate.ts'
import { FHIR_JSON } from '../request/reply.ts'
import type { FhirReply, FhirRequest } from '../request/request.ts'

const JSON_TYPE = 'application/json; charset=utf-8'
const TEXT_TYPE = 'text/plain; charset=utf-8'

/** The parts of the request that the reply depends on. */
interface ReplyRequest extends Pick<FhirRequest, 'headers'> {
  /** A Binary is returned as its content unless FHIR JSON is requested. */
  readonly wantsContent: boolean
}

/** Reads a stored Binary; undefined without access. */
type ReadBinary = (id: string) => Promise<Buffer | undefined>

/** Errors: 503 when the handler was never called. */
export async function encodeReply(
  reply: ExecuteReply,
  asked: ReplyRequest,
  readBinary: ReadBinary,
): Promise<FhirReply> {
  const body = reply.body ?? ''
  if (reply.status === 'unavailable') throw unavailable('Bot execution')
  if (reply.status === 'interrupted') return { ...answer(500, FHIR_JSON, body), isFinal: true }
  if (reply.status === 'error') {
    return { ...answer(reply.httpStatus ?? 400, FHIR_JSON, body), isFinal: true }
  }
  switch (reply.kind) {
    case 'undefined':
      return answer(200, FHIR_JSON, JSON.stringify(allOk))
    case 'outcome':
      return answer(200, FHIR_JSON, body)
    case 'hl7':
      return answer(200, HL7, body)
    case 'string':
      return answer(200, stringType(body, asked), body)
    case 'json':
      return await encodeJson(body, asked, readBinary)
    default:
      return reply.kind satisfies never
  }
}

const OK_IDS = new Set(['ok', 'created', 'accepted', 'not-modified'])
const STATUS_BY_ID = new Map([
  ['unauthorized', 401],
  ['forbidden', 403],
  ['not-found', 404],
  ['conflict', 409],
  ['gone', 410],
  ['precondition-failed', 412],
  ['multiple-matches', 412],
  ['too-large', 413],
  ['content-too-large', 413],
  ['unsupported-media-type', 415],
  ['business-rule', 422],
  ['too-many-requests', 429],
  ['server-timeout', 504],
])

/** Returns the HTTP status of an outcome that reports an error, by the ids of Medplum's SDK; otherwise undefined. */
export function errorStatus(outcome: Readonly<Record<string, unknown>>): number | undefined {
  const id = nonEmptyText(outcome.id) ?? ''
  const issues = toObjects(outcome.issue)
  const isError = issues.some(({ severity }) => severity === 'error' || severity === 'fatal')
  if (!isError || OK_IDS.has(id)) return undefined
  return STATUS_BY_ID.get(id) ?? (issues[0]?.code === 'exception' ? 500 : 400)
}

function stringType(text: string, { headers }: ReplyRequest): string {
  const sent = mediaType(headers['content-type'])
  if (sent === 'text/plain') return TEXT_TYPE
  if (sent === HL7) return HL7
  return isJsonText(text) ? JSON_TYPE : TEXT_TYPE
}

function isJsonText(text: string): boolean {
  // Most strings are prose; parses only possible JSON.
  return /^\s*["{[\-\dtfn]/.test(text) && attempt(() => JSON.parse(text)) !== undefined
}

async function encodeJson(
  text: string,
  asked: ReplyRequest,
  readBinary: ReadBinary,
): Promise<FhirReply> {
  // Parsed only if it may contain a resource; otherwise the text is unchanged.
  if (!text.startsWith('{') || !text.includes('"resourceType"')) {
    return answer(200, JSON_TYPE, text)
  }
  const value: unknown = JSON.parse(text)
  if (!isObject(value) || typeof value.resourceType !== 'string') {
    return answer(200, JSON_TYPE, text)
  }
  const asResource = acceptedRanges(asked.headers.accept).includes('application/fhir+json')
  if (value.resourceType === 'Binary' && asked.wantsContent && !asResource) {
    const { data, id } = value
    const bytes =
      typeof data === 'string'
        ? Buffer.from(data, 'base64')
        : typeof id === 'string' && (await readBinary(id))
    if (bytes) return answer(200, safeContentType(value.contentType), bytes)
  }
  return answer(200, FHIR_JSON, text)
}

function answer(status: number, type: string, body: string | Buffer): FhirReply {
  return { status, headers: { 'Content-Type': type }, body }
}

// Request → `event.input`, as text for the sandbox to parse

export interface ExecuteInput {
  readonly kind: ExecuteJob['inputKind']
  readonly text: string
}

const HL7 = 'x-application/hl7-v2+er7'

export function readInput(request: FhirRequest): ExecuteInput {
  if (request.method === 'GET') return json(stringMap(request.query))
  const { body } = request
  if (body === undefined || body.length === 0) return { kind: 'none', text: '' }
  const contentType = request.headers['content-type']
  const type = mediaType(contentType)
  if (isJson(type)) return parsed(decodeText(body), type)
  if (type === HL7) {
    const text = textIn(body, parseCharset(contentType) ?? charsetOfMessage(body))
    if (!text.startsWith('MSH')) throw badRequest('Content could not be parsed')
    return { kind: 'hl7', text }
  }
  if (type === 'application/x-www-form-urlencoded') {
    return { kind: 'form', text: textIn(body, parseCharset(contentType)) }
  }
  if (type.startsWith('text/') || type === 'application/xml' || type.endsWith('+xml')) {
    return { kind: 'text', text: textIn(body, parseCharset(contentType)) }
  }
  return { kind: 'bytes', text: Buffer.from(body).toString('base64') }
}

const UTF_8 = ['utf-8', 'utf8', 'us-ascii', 'ascii', 'unicode utf-8']
/** Labels that mean windows-1252 in practice, as in browsers: https://encoding.spec.whatwg.org/#names-and-labels */
const WESTERN = ['iso-8859-1', 'iso8859-1', 'latin1', '8859/1', 'windows-1252', 'cp1252']
const windows1252 = new TextDecoder('windows-1252')

/** Returns lower case; undefined when the header names none. */
function parseCharset(contentType = ''): string | undefined {
  return /;\s*charset\s*=\s*"?([^";]+)"?/i.exec(contentType)?.[1]?.trim().toLowerCase()
}

/** Returns MSH-18 unless the bytes are UTF-8: many senders keep a stale value when they convert to UTF-8. */
function charsetOfMessage(body: Buffer | string): string | undefined {
  if (typeof body === 'string' || isUtf8(body)) return undefined
  const header = body.subarray(0, body.indexOf('\r') + 1 || body.length).toString('latin1')
  return header.split(header.charAt(3))[17]?.split('~', 1)[0]?.trim().toLowerCase() || undefined
}

function textIn(body: Buffer | string, charset = 'utf-8'): string {
  if (UTF_8.includes(charset) || typeof body === 'string') return decodeText(body)
  if (WESTERN.includes(charset)) return windows1252.decode(body)
  const shown = charset.slice(0, 40)
  throw unsupportedMediaType(`Text may be in UTF-8, ISO-8859-1 or windows-1252, not in ${shown}`)
}

function isJson(type: string): boolean {
  return type === 'application/json' || type === 'text/json' || type.endsWith('+json')
}

/**
 * Validates JSON and passes the text on unchanged. Resources follow the rules of resources; in other JSON the sandbox
 * keeps the last value of a repeated name.
 */
function parsed(text: string, type: string): ExecuteInput {
  if (type === 'application/fhir+json') {
    parseBody(text)
    return { kind: 'json', text }
  }
  try {
    JSON.parse(text)
  } catch {
    throw badRequest('Content could not be parsed')
  }
  return { kind: 'json', text }
}

function json(value: unknown): ExecuteInput {
  return { kind: 'json', text: JSON.stringify(value) }
}

/** Repeated names become arrays. */
function stringMap(params: URLSearchParams): Record<string, string | string[]> {
  const entries = [...new Set(params.keys())].map((name) => {
    const values = params.getAll(name)
    return [name, values.length === 1 ? (values[0] ?? '') : values] as const
  })
  return Object.fromEntries(entries)
}

const PRIVATE_HEADERS = new Set(['authorization', 'proxy-authorization', 'cookie'])

/** Returns the headers visible to a bot; a bot that runs as its caller also sees cookies. */
export function visibleHeaders(
  headers: FhirRequest['headers'],
  keepCookie: boolean,
): Record<string, string> {
  const visible: Record<string, string> = {}
  for (const [name, value] of Object.entries(headers)) {
    if (value === undefined || name.startsWith('x-forwarded-')) continue
    if (PRIVATE_HEADERS.has(name) && !(keepCookie && name === 'cookie')) continue
    visible[name] = value
  }
  return visible
}

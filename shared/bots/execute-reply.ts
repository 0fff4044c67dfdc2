/**
 * The handler's result → HTTP. A failed bot is always 400, since SDKs repeat a 5xx. A run that lost
 * its process is no failure of the bot: 500, and the caller decides whether it may be made again.
 */
import { safeContentType } from '../binary/content.ts'
import { allOk, unavailable } from '../errors.ts'
import { isObject } from '../fhir/resource.ts'
import type { ExecuteReply } from '../platform/queue/jobs.ts'
import { FHIR_JSON } from '../request/reply.ts'
import type { FhirReply, FhirRequest } from '../request/request.ts'
import { HL7, mediaType } from './execute-input.ts'

const JSON_TYPE = 'application/json; charset=utf-8'
const TEXT_TYPE = 'text/plain; charset=utf-8'

/** The parts of the request that the reply depends on. */
export interface Asked extends Pick<FhirRequest, 'headers'> {
  /** A Binary is answered as its content, unless FHIR JSON is asked for. */
  readonly wantsContent: boolean
}

/** Content of a stored Binary; undefined when the caller may not see it. */
export type ReadBinary = (id: string) => Promise<Buffer | undefined>

/** Errors: 503 when the handler was never called. */
export async function encodeReply(
  reply: ExecuteReply,
  asked: Asked,
  readBinary: ReadBinary,
): Promise<FhirReply> {
  const body = reply.body ?? ''
  if (reply.status === 'unavailable') throw unavailable('Bot execution')
  if (reply.status === 'interrupted') return { ...answer(500, FHIR_JSON, body), isFinal: true }
  if (reply.status === 'error') return answer(400, FHIR_JSON, body)
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

function stringType(text: string, { headers }: Asked): string {
  const sent = mediaType(headers['content-type'])
  if (sent === 'text/plain') return TEXT_TYPE
  if (sent === HL7) return HL7
  return isJsonText(text) ? JSON_TYPE : TEXT_TYPE
}

function isJsonText(text: string): boolean {
  // Most strings are prose; only what can begin a JSON text is worth parsing.
  if (!/^\s*["{[\-\dtfn]/.test(text)) return false
  try {
    JSON.parse(text)
    return true
  } catch {
    return false
  }
}

async function encodeJson(text: string, asked: Asked, readBinary: ReadBinary): Promise<FhirReply> {
  // Parsed only when a resource may be in it: the text itself goes out as it came.
  if (!text.startsWith('{') || !text.includes('"resourceType"')) {
    return answer(200, JSON_TYPE, text)
  }
  const value: unknown = JSON.parse(text)
  if (!isObject(value) || typeof value.resourceType !== 'string') {
    return answer(200, JSON_TYPE, text)
  }
  const asResource = mediaTypes(asked.headers.accept).includes('application/fhir+json')
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

function mediaTypes(accept: string | undefined): string[] {
  return (accept ?? '').split(',').map(mediaType)
}

function answer(status: number, type: string, body: string | Buffer): FhirReply {
  return { status, headers: { 'Content-Type': type }, body }
}

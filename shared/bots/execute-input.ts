/** Request → `event.input`, as text that the sandbox parses. */

import { badRequest } from '../errors.ts'
import { decodeText } from '../fhir/json.ts'
import type { ExecuteJob } from '../platform/queue/jobs.ts'
import type { FhirRequest } from '../request/request.ts'

export interface ExecuteInput {
  readonly kind: ExecuteJob['inputKind']
  readonly text: string
}

export const HL7 = 'x-application/hl7-v2+er7'

/** Errors: 400 when the body is not what its content type says. */
export function readInput(request: FhirRequest): ExecuteInput {
  if (request.method === 'GET') return json(stringMap(request.query))
  const { body } = request
  if (body === undefined || body.length === 0) return { kind: 'none', text: '' }
  const type = mediaType(request.headers['content-type'])
  if (isJson(type)) return parsed(decodeText(body))
  if (type === HL7) {
    const text = decodeText(body)
    if (!text.startsWith('MSH')) throw badRequest('Content could not be parsed')
    return { kind: 'hl7', text }
  }
  if (type === 'application/x-www-form-urlencoded') {
    return { kind: 'form', text: decodeText(body) }
  }
  if (type.startsWith('text/') || type === 'application/xml' || type.endsWith('+xml')) {
    return { kind: 'text', text: decodeText(body) }
  }
  return { kind: 'bytes', text: Buffer.from(body).toString('base64') }
}

/** Lower case, without parameters; empty when there is none. */
export function mediaType(contentType: string | undefined): string {
  return (contentType?.split(';')[0] ?? '').trim().toLowerCase()
}

function isJson(type: string): boolean {
  return type === 'application/json' || type === 'text/json' || type.endsWith('+json')
}

/** The text is handed on as it came; it is parsed here only to refuse what is no JSON. */
function parsed(text: string): ExecuteInput {
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

/** A repeated name becomes an array of strings. */
function stringMap(params: URLSearchParams): Record<string, string | string[]> {
  const entries = [...new Set(params.keys())].map((name) => {
    const values = params.getAll(name)
    return [name, values.length === 1 ? (values[0] ?? '') : values] as const
  })
  return Object.fromEntries(entries)
}

const PRIVATE_HEADERS = new Set(['authorization', 'proxy-authorization', 'cookie'])

/** Headers a bot may see; a bot that runs as its caller also sees the caller's cookies. */
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

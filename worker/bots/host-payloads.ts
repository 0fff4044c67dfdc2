/** Calls of the sandbox and their answers, as text. */
import { isObject } from '../../shared/fhir/resource.ts'
import { DEPTH_HEADER } from '../../shared/request/request.ts'

export interface Answered {
  readonly status: number
  readonly headers: Readonly<Record<string, string>>
  readonly body: string | Buffer | undefined
}

export interface Asked {
  readonly method: string
  readonly path: string
  readonly headers: Record<string, string>
  readonly body: Buffer | string | undefined
}

export interface AskedFetch extends Asked {
  readonly url: string
  readonly redirect: string
  /** Given by the sandbox, to cancel it. */
  readonly id: unknown
}

/** Set by the worker alone: a bot could otherwise hide its call depth. */
const RESERVED_HEADERS = new Set(['host', DEPTH_HEADER])
/** FHIR requests carry the run's identity; other services get the bot's own headers. */
const OWN_RESERVED_HEADERS = new Set([...RESERVED_HEADERS, 'authorization', 'cookie'])

/** Checks every member: the sandbox is not trusted. */
export function readPayload(payload: string): AskedFetch {
  const value: unknown = JSON.parse(payload)
  if (!isObject(value)) throw new Error('The call is not an object')
  const { method, path, url, body, encoding, redirect, id } = value
  const reserved = url === undefined ? OWN_RESERVED_HEADERS : RESERVED_HEADERS
  const headers = isObject(value.headers) ? Object.entries(value.headers) : []
  return {
    method: typeof method === 'string' ? method.toUpperCase() : 'GET',
    path: typeof path === 'string' ? path : '',
    url: typeof url === 'string' ? url : '',
    redirect: typeof redirect === 'string' ? redirect : 'follow',
    id,
    headers: Object.fromEntries(
      headers
        .map(([name, text]) => [name.toLowerCase(), String(text)] as const)
        .filter(([name]) => !reserved.has(name)),
    ),
    body: readPayloadBody(body, encoding, url),
  }
}

/** The body of a fetch is always base64; that of a FHIR request if `encoding` is base64. */
function readPayloadBody(body: unknown, encoding: unknown, url: unknown): Asked['body'] {
  if (typeof body !== 'string') return undefined
  return encoding === 'base64' || url !== undefined ? Buffer.from(body, 'base64') : body
}

export function replyText({ status, headers, body }: Answered): string {
  if (!Buffer.isBuffer(body)) return JSON.stringify({ status, headers, body })
  return JSON.stringify({ status, headers, body: body.toString('base64'), encoding: 'base64' })
}

export function answerOutcome(status: number, outcome: unknown): Answered {
  const headers = { 'Content-Type': 'application/fhir+json' }
  return { status, headers, body: JSON.stringify(outcome) }
}

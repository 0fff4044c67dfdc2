/**
 * Idempotency keys of changes. The API client repeats a request whose answer is lost, and so does a person who presses
 * Save again: with the same key, the service makes the change once.
 */
import { generateId } from '@medplum/core'
import { forget, keep, readKept } from './drafts.ts'

const METHODS = ['POST', 'PUT', 'PATCH', 'DELETE']
const KEYED = /^\/(?:fhir\/R4|admin)(?:\/|$)/
const SYSTEM = /^\/fhir\/R4\/?$/
/** POSTs that change nothing. */
const READS = /\/(?:\$graphql|\$validate|\$explain|schedules\/preview)$/

/** Later, the same change is meant as another one. */
const MOST_AGE_MS = 3_600_000

/** Sends a request. The key of a change is kept with the drafts until its outcome is known. */
export async function fetchOnce(
  input: RequestInfo | URL,
  init: RequestInit = {},
): Promise<Response> {
  const { method = 'GET', body } = init
  const { pathname, search } = new URL(String(input), location.href)
  if (!METHODS.includes(method) || !takesKey(pathname, body)) return await fetch(input, init)
  const place = `sent/${method} ${pathname}${search} ${checksum(String(body))}`
  const key = recentKey(place) ?? generateId()
  keep(place, `${Date.now()} ${key}`)
  const headers = new Headers(init.headers)
  headers.set('Idempotency-Key', key)
  const answer = await fetch(input, { ...init, headers })
  if (isFinal(answer)) forget(place)
  return answer
}

function recentKey(place: string): string | undefined {
  const [sent = '', key] = readKept(place)?.split(' ') ?? []
  return Date.now() - Number(sent) < MOST_AGE_MS ? key : undefined
}

/** The service ignores keys of uploads, whose body is not a text. */
function takesKey(path: string, body: unknown): boolean {
  if (!KEYED.test(path) || READS.test(path)) return false
  if (typeof body !== 'string') return body === undefined || body === null
  return !SYSTEM.test(path) || JSON.parse(body).type === 'transaction'
}

function isFinal({ status, headers }: Response): boolean {
  if (status >= 500 || status === 429) return false
  return status !== 409 || !headers.has('Retry-After')
}

/** Tells texts of one address apart; the service compares them fully. */
function checksum(text: string): number {
  let sum = 0
  for (let place = 0; place < text.length; place += 1) {
    sum = (Math.imul(sum, 31) + text.charCodeAt(place)) | 0
  }
  return sum
}

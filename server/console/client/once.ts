/**
 * Idempotency keys of changes. When an answer is lost, the API client repeats the request, and the person may press Save
 * again: with the same key, the service makes the change once.
 */
import { generateId } from '@medplum/core'
import { forget, keep, readKept } from './drafts.ts'

const METHODS = ['POST', 'PUT', 'PATCH', 'DELETE']
const KEYED = /^\/(?:fhir\/R4|admin)(?:\/|$)/
const SYSTEM = /^\/fhir\/R4\/?$/
/** POSTs that change nothing, and runs on the bench: each is another run, and ends with its connection. */
const WITHOUT_KEY = /\/(?:\$validate|\$explain|\$execute|schedules\/preview)$/
/** The service reads these as uploads, which take no key. */
const BINARY = /^\/fhir\/R4\/Binary(?:\/[^/]+)?$/

/** Later, the same change is meant as another one. */
const MOST_AGE_MS = 300_000

/** The client repeats a request with the same options. */
const keys = new WeakMap<RequestInit, string>()

/** Sends a request. The key of a change is kept with the drafts until its outcome is known. */
export async function fetchOnce(
  input: RequestInfo | URL,
  init: RequestInit = {},
): Promise<Response> {
  const { method = 'GET', body } = init
  const { pathname, search } = new URL(String(input), location.href)
  if (!METHODS.includes(method) || !takesKey(pathname, body)) return await fetch(input, init)
  const headers = new Headers(init.headers)
  // Any other change at the address makes the next one a new one.
  const place = `sent/${pathname}`
  const change = `${method} ${search} ${headers.get('If-Match')} ${checksum(String(body))}`
  const key = keys.get(init) ?? recentKey(place, change) ?? generateId()
  keys.set(init, key)
  keep(place, JSON.stringify([Date.now(), key, change]))
  headers.set('Idempotency-Key', key)
  const answer = await fetch(input, { ...init, headers })
  if (isFinal(answer)) {
    forget(place)
    keys.delete(init)
  }
  return answer
}

function recentKey(place: string, change: string): string | undefined {
  const [sent, key, kept] = JSON.parse(readKept(place) ?? '[0]') as [number, string?, string?]
  return kept === change && Date.now() - sent < MOST_AGE_MS ? key : undefined
}

function takesKey(path: string, body: unknown): boolean {
  if (!KEYED.test(path) || WITHOUT_KEY.test(path) || BINARY.test(path)) return false
  if (typeof body !== 'string') return body === undefined || body === null
  if (path.endsWith('/$graphql')) return body.includes('mutation')
  return !SYSTEM.test(path) || JSON.parse(body).type === 'transaction'
}

function isFinal({ status, headers }: Response): boolean {
  // A run has ended, with any status.
  if (headers.has('X-Bot-Run-Id')) return true
  if (status >= 500 || status === 429) return false
  return status !== 409 || !headers.has('Retry-After')
}

/** Distinguishes texts sent to one address; the service compares them fully. */
function checksum(text: string): number {
  let sum = 0
  for (let place = 0; place < text.length; place += 1) {
    sum = (Math.imul(sum, 31) + text.charCodeAt(place)) | 0
  }
  return sum
}

/** JWTs signed by clients, and the public keys of clients: inline, or fetched from their `jwksUri`, for five minutes. */

import {
  decodeJwt,
  decodeProtectedHeader,
  importJWK,
  type JWK,
  type JWTVerifyOptions,
  jwtVerify,
} from 'jose'
import { Cache } from '../../../shared/core/cache.ts'
import type { Outbound } from '../../../shared/core/config/outbound.ts'
import { attempt } from '../../../shared/core/errors.ts'
import { isObject, type Resource } from '../../../shared/fhir/resource.ts'
import { fetchOutbound } from '../../../shared/outbound/fetch-outside.ts'
import type { Services } from '../../../shared/request/services.ts'

const KEPT_MS = 300_000
const KEPT_SETS = 1000
const MAX_BYTES = 262_144
const PATIENCE_MS = 5000
/** Minimum time between lookups for unknown `kid` values, which requests can invent. */
const AGAIN_MS = 5000

interface Fetched {
  readonly at: number
  readonly keys: Promise<readonly JWK[]>
}

export interface ClientKeys {
  /** Returns the client's keys; reloads them when none has this `kid`. Errors: AssertionError. */
  find(client: Resource, kid: string): Promise<readonly JWK[]>
  /** Returns the keys at an address. Errors: AssertionError. */
  at(uri: string, kid: string): Promise<readonly JWK[]>
}

export function createClientKeys({ config }: Services): ClientKeys {
  const sets = new Cache<string, Fetched>({ name: 'client-keys', max: KEPT_SETS, ttlMs: KEPT_MS })

  const fetchKeys = (uri: string): Fetched => {
    const keys = readKeys(uri, config.hookTargets)
    const fetched = { at: Date.now(), keys }
    sets.set(uri, fetched)
    keys.catch(() => {
      if (sets.peek(uri) === fetched) sets.delete(uri)
    })
    return fetched
  }

  const at = async (uri: string, kid: string): Promise<readonly JWK[]> => {
    const known = sets.get(uri) ?? fetchKeys(uri)
    const keys = await known.keys
    const isKnown = keys.some((key) => key.kid === kid)
    if (isKnown || Date.now() - known.at < AGAIN_MS) return keys
    return await fetchKeys(uri).keys
  }

  return {
    at,
    async find(client, kid) {
      if (typeof client.jwks === 'string') return readKeySet(client.jwks)
      if (typeof client.jwksUri !== 'string') {
        throw new AssertionError('cannot be checked: the client has no keys')
      }
      return await at(client.jwksUri, kid)
    },
  }
}

async function readKeys(url: string, rules: Outbound): Promise<readonly JWK[]> {
  if (rules.reach === 'public' && !url.startsWith('https:')) {
    throw new AssertionError('cannot be checked: jwksUri must be an https address')
  }
  try {
    const { status, body } = await fetchOutbound(
      {
        url,
        method: 'GET',
        headers: { accept: 'application/json' },
        body: undefined,
        redirect: 'error',
        maxBytes: MAX_BYTES,
        timeoutMs: PATIENCE_MS,
      },
      rules,
      new AbortController().signal,
    )
    if (status === 200) return readKeySet(body.toString('utf8'))
  } catch (error) {
    if (error instanceof AssertionError) throw error
    // The cause concerns the owner of the address, not the caller.
  }
  throw new AssertionError('cannot be checked: the keys of the client could not be read')
}

// Client assertions by signed JWT: RFC 7523 §3, SMART Backend Services.

/** Not yet verified. */
export interface Assertion {
  readonly text: string
  readonly iss: string
  readonly sub: unknown
  readonly kid: string
  readonly alg: string
  /** The address of the keys, as claimed by the signer. */
  readonly jku: unknown
}

/** Values for the single-use check. */
interface AssertionUse {
  readonly id: string
  /** Epoch seconds. */
  readonly expiresAt: number
}

/** Reason for rejecting an assertion; contains no values of it. */
export class AssertionError extends Error {
  /** True if a key of the client has signed it for this use. */
  readonly isSigned: boolean

  constructor(message: string, isSigned = false) {
    super(message)
    this.isSigned = isSigned
  }
}

export const ASSERTION_ALGORITHMS: readonly string[] = [
  'RS256',
  'RS384',
  'RS512',
  'ES256',
  'ES384',
  'ES512',
]
const LONGEST = 16_384
const LONGEST_LIFE_SECONDS = 300
const SKEW_SECONDS = 30
const MOST_KEYS = 100

/** Parses before the signature is verified. Errors: AssertionError. */
export function readAssertion(text: string): Assertion {
  if (text.length > LONGEST) throw new AssertionError('is too long')
  const { header, claims } = decoded(text)
  const { alg, kid, jku } = header
  if (typeof alg !== 'string' || !ASSERTION_ALGORITHMS.includes(alg)) {
    throw new AssertionError(`must be signed with one of ${ASSERTION_ALGORITHMS.join(', ')}`)
  }
  if (typeof kid !== 'string' || kid === '') throw new AssertionError('has no kid')
  const { iss, sub } = claims
  if (typeof iss !== 'string' || iss === '') throw new AssertionError('has no iss')
  return { text, iss, sub, kid, alg, jku }
}

function decoded(text: string) {
  try {
    return { header: decodeProtectedHeader(text), claims: decodeJwt(text) }
  } catch {
    throw new AssertionError('is no JWT')
  }
}

/** Returns the keys of a JWK set; several may share a `kid`. Errors: AssertionError. */
function readKeySet(text: string): readonly JWK[] {
  const value = attempt<unknown>(() => JSON.parse(text))
  const keys = isObject(value) && Array.isArray(value.keys) ? value.keys : undefined
  if (keys !== undefined && keys.length <= MOST_KEYS) return keys.filter(isObject)
  throw new AssertionError('cannot be checked: the client has no valid key set')
}

type Expected = Pick<JWTVerifyOptions, 'issuer' | 'subject' | 'audience'>

/** Accepts any of several audiences. Errors: AssertionError. */
export async function verifyAssertion(
  assertion: Assertion,
  keys: readonly JWK[],
  expected: Expected,
): Promise<AssertionUse> {
  const candidates = keys.filter(({ kid }) => kid === assertion.kid)
  if (candidates.length === 0) throw new AssertionError('is signed with an unknown key')
  for (const jwk of candidates) {
    const options = { ...expected, requiredClaims: ['exp', 'aud'] }
    const payload = await verifyJwt(assertion.text, jwk, assertion.alg, options)
    if (payload === undefined) continue
    const { exp = 0, jti } = payload
    if (typeof jti !== 'string' || jti === '') throw new AssertionError('has no jti', true)
    if (exp > Date.now() / 1000 + LONGEST_LIFE_SECONDS + SKEW_SECONDS) {
      throw new AssertionError('must expire within 5 minutes', true)
    }
    return { id: jti, expiresAt: exp }
  }
  throw new AssertionError('is not valid: signature, audience or time')
}

/** Errors: AssertionError for one that was used before. */
export async function requireFirstUse(
  redis: Services['redis'],
  client: Resource,
  { id, expiresAt }: AssertionUse,
): Promise<void> {
  const key = `botica:assertion:${client.id}:${Buffer.from(id).toString('base64url').slice(0, 512)}`
  const seconds = Math.max(60, Math.ceil(expiresAt - Date.now() / 1000) + 60)
  const isFirst = await redis.set(key, '1', 'EX', seconds, 'NX')
  if (isFirst !== 'OK') throw new AssertionError('was used before', true)
}

/** Returns the payload of a JWT signed by a public key, never by a shared secret; otherwise undefined. */
export async function verifyJwt(text: string, jwk: JWK, alg: string, options: JWTVerifyOptions) {
  if (jwk.kty !== (alg.startsWith('RS') ? 'RSA' : 'EC')) return undefined
  if (jwk.alg !== undefined && jwk.alg !== alg) return undefined
  const { kty, n, e, crv, x, y } = jwk
  const open = Object.entries({ kty, n, e, crv, x, y }).filter(([, value]) => value !== undefined)
  try {
    const key = await importJWK(Object.fromEntries(open) as JWK, alg)
    const rules = { ...options, algorithms: [alg], clockTolerance: SKEW_SECONDS }
    return (await jwtVerify(text, key, rules)).payload
  } catch {
    return undefined
  }
}

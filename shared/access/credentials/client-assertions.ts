/** Clients that prove themselves by a signed JWT: RFC 7523 §3, SMART Backend Services. */
import { decodeJwt, decodeProtectedHeader, importJWK, type JWK, jwtVerify } from 'jose'
import { isObject } from '../../fhir/resource.ts'

export interface ClientAssertion {
  readonly text: string
  readonly clientId: string
  readonly kid: string
  readonly alg: string
}

/** The values that single use is checked by. */
export interface AssertionUse {
  readonly id: string
  /** Epoch seconds. */
  readonly expiresAt: number
}

/** Why an assertion proves nothing, in words that name no value of it. */
export class AssertionError extends Error {}

const ALGORITHMS = ['RS256', 'RS384', 'RS512', 'ES256', 'ES384', 'ES512']
const LONGEST = 16_384
const LONGEST_LIFE_SECONDS = 300
const SKEW_SECONDS = 30
const MOST_KEYS = 100

/** Before the signature is looked at. Errors: AssertionError. */
export function readAssertion(text: string): ClientAssertion {
  if (text.length > LONGEST) throw new AssertionError('is too long')
  const { header, claims } = decoded(text)
  const { alg, kid } = header
  if (typeof alg !== 'string' || !ALGORITHMS.includes(alg)) {
    throw new AssertionError(`must be signed with one of ${ALGORITHMS.join(', ')}`)
  }
  if (typeof kid !== 'string' || kid === '') throw new AssertionError('has no kid')
  const { iss, sub } = claims
  if (typeof iss !== 'string' || iss !== sub) throw new AssertionError('needs equal iss and sub')
  return { text, clientId: iss, kid, alg }
}

function decoded(text: string) {
  try {
    return { header: decodeProtectedHeader(text), claims: decodeJwt(text) }
  } catch {
    throw new AssertionError('is no JWT')
  }
}

/** The keys of a JWK set; several may have one `kid`. Errors: AssertionError. */
export function readKeySet(text: string): readonly JWK[] {
  try {
    const value: unknown = JSON.parse(text)
    const keys = isObject(value) && Array.isArray(value.keys) ? value.keys : undefined
    if (keys !== undefined && keys.length <= MOST_KEYS) return keys.filter(isObject)
  } catch {
    // Falls through to the one complaint.
  }
  throw new AssertionError('cannot be checked: the client has no valid key set')
}

/** `audiences`: any of them may be meant. Errors: AssertionError. */
export async function verifyAssertion(
  assertion: ClientAssertion,
  keys: readonly JWK[],
  audiences: readonly string[],
): Promise<AssertionUse> {
  const candidates = keys.filter(({ kid }) => kid === assertion.kid)
  if (candidates.length === 0) throw new AssertionError('is signed with an unknown key')
  for (const jwk of candidates) {
    const payload = await payloadOf(assertion, jwk, audiences)
    if (payload === undefined) continue
    const { exp = 0, jti } = payload
    if (typeof jti !== 'string' || jti === '') throw new AssertionError('has no jti')
    if (exp > Date.now() / 1000 + LONGEST_LIFE_SECONDS + SKEW_SECONDS) {
      throw new AssertionError('must expire within 5 minutes')
    }
    return { id: jti, expiresAt: exp }
  }
  throw new AssertionError('is not valid: signature, audience or time')
}

/** The algorithm is one for public keys, so a secret never passes for one. */
async function payloadOf(
  { text, alg, clientId }: ClientAssertion,
  jwk: JWK,
  audiences: readonly string[],
) {
  if (jwk.kty !== (alg.startsWith('RS') ? 'RSA' : 'EC')) return undefined
  if (jwk.alg !== undefined && jwk.alg !== alg) return undefined
  const { kty, n, e, crv, x, y } = jwk
  const open = Object.entries({ kty, n, e, crv, x, y }).filter(([, value]) => value !== undefined)
  try {
    const key = await importJWK(Object.fromEntries(open) as JWK, alg)
    const { payload } = await jwtVerify(text, key, {
      algorithms: [alg],
      issuer: clientId,
      subject: clientId,
      audience: [...audiences],
      clockTolerance: SKEW_SECONDS,
      requiredClaims: ['exp', 'aud'],
    })
    return payload
  } catch {
    return undefined
  }
}

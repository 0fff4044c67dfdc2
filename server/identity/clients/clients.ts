/** How a client proves itself at the token endpoint. */

import { decodeJwt, decodeProtectedHeader, importJWK, type JWK, jwtVerify } from 'jose'
import {
  alwaysProves,
  ownsCredentials,
  takesSecret,
} from '../../../shared/access/credentials/clients.ts'
import { Cache } from '../../../shared/core/cache.ts'
import type { Outbound } from '../../../shared/core/config/outbound.ts'
import { isObject, type Resource } from '../../../shared/fhir/resource.ts'
import type { Session } from '../../../shared/identity/principals.ts'
import { fetchOutbound } from '../../../shared/outbound/fetch-outside.ts'
import type { Services } from '../../../shared/request/services.ts'
import type { Context } from '../../http/context.ts'
import { verifyClientSecret } from '../../middleware/access.ts'
import { parseBasic } from '../../middleware/authenticate.ts'
import { OAuthError } from '../../middleware/failures.ts'
import { rateLimitAddress } from '../../middleware/limits.ts'
import { optionalParameter } from './answer.ts'

const JWT_BEARER = 'urn:ietf:params:oauth:client-assertion-type:jwt-bearer'

/** The credentials of a client as the request presents them, before any check. */
export interface ClientCredentials {
  readonly id: string | undefined
  readonly secret: string | undefined
  readonly assertion: string | undefined
  readonly viaBasic: boolean
  readonly address: string
}

/** Errors: `invalid_request` for contradictions. */
export function readClientCredentials(ctx: Context, form: URLSearchParams): ClientCredentials {
  const header = /^Basic +([^ ]+) *$/i.exec(ctx.get('Authorization'))?.[1]
  const basic = header === undefined ? undefined : decodedBasic(header)
  const id = optionalParameter(form, 'client_id')
  const secret = optionalParameter(form, 'client_secret')
  const assertion = readClientAssertion(form)
  const differs =
    basic !== undefined &&
    ((id !== undefined && id !== basic.id) || (secret !== undefined && secret !== basic.secret))
  const isTwofold = assertion !== undefined && (basic !== undefined || secret !== undefined)
  if (differs || isTwofold) throw new OAuthError('invalid_request', 'Client credentials differ')
  return {
    id: id ?? basic?.id ?? (assertion && idIn(assertion)),
    secret: secret ?? basic?.secret,
    assertion,
    viaBasic: basic !== undefined,
    address: rateLimitAddress(ctx.ip),
  }
}

function readClientAssertion(form: URLSearchParams): string | undefined {
  const type = optionalParameter(form, 'client_assertion_type')
  const assertion = optionalParameter(form, 'client_assertion')
  if (type === undefined && assertion === undefined) return undefined
  if (type !== JWT_BEARER) throw new OAuthError('invalid_request', 'Invalid client_assertion_type')
  if (assertion === undefined) throw new OAuthError('invalid_request', 'Missing client_assertion')
  return assertion
}

function idIn(assertion: string): string {
  try {
    return readAssertion(assertion).clientId
  } catch (error) {
    throw refused(error)
  }
}

export function hasClientProof({ secret, assertion }: ClientCredentials): boolean {
  return secret !== undefined || assertion !== undefined
}

/**
 * True when only the client's secret or key redeems what this Login gives. PKCE alone shows that the same app ends
 * what it began, not which app that is: a sign-in without a password needs more, as does one without PKCE.
 */
export function requiresClientProof(client: Resource, login: Resource): boolean {
  if (client.tokenEndpointAuthMethod !== undefined) return alwaysProves(client)
  const isWeak = login.bySession === true || login.codeChallenge === undefined
  return isWeak && ownsCredentials(client)
}

/** A client with a membership of its own. Errors: those of RFC 6749 about clients; 429 as of its Project. */
export async function requireClientSession(
  services: Services,
  keys: ClientKeys,
  ctx: Context,
  given: ClientCredentials,
): Promise<Session> {
  const { id, secret, assertion } = given
  if (id === undefined) throw new OAuthError('invalid_request', 'Missing client_id')
  if (secret === undefined && assertion === undefined) {
    throw new OAuthError('invalid_request', 'Missing client_secret')
  }
  const session = await services.principals.forProfile(`ClientApplication/${id}`)
  if (session === undefined) throw invalidClient(services, given, 'Invalid client')
  ctx.state.limitTo?.(session.principal.project.rateLimits)
  await verifyClientProof(services, keys, session.profile, given)
  return session
}

/** Looks at what was presented; there must be something. Errors: `invalid_client`, 429. */
export async function verifyClientProof(
  services: Services,
  keys: ClientKeys,
  client: Resource,
  given: ClientCredentials,
): Promise<void> {
  if (given.assertion !== undefined) {
    await requireAssertion(services, keys, client, given.assertion)
    return
  }
  if (!takesSecret(client)) {
    throw invalidClient(services, given, 'This client proves itself by its key')
  }
  if (given.secret === undefined) {
    throw new OAuthError('invalid_request', 'Missing client_secret')
  }
  if (!verifyClientSecret(services, client, given.secret, given.address)) {
    throw invalidClient(services, given, 'Invalid secret')
  }
}

async function requireAssertion(
  { config, redis }: Services,
  keys: ClientKeys,
  client: Resource,
  text: string,
): Promise<void> {
  try {
    const assertion = readAssertion(text)
    if (assertion.clientId !== client.id) throw new AssertionError('is of another client')
    const audiences = [`${config.baseUrl}oauth2/token`, config.baseUrl]
    const candidates = await keys.find(client, assertion.kid)
    const { id, expiresAt } = await verifyAssertion(assertion, candidates, audiences)
    const key = `botica:assertion:${client.id}:${Buffer.from(id).toString('base64url').slice(0, 512)}`
    const seconds = Math.max(60, Math.ceil(expiresAt - Date.now() / 1000) + 60)
    const isFirst = await redis.set(key, '1', 'EX', seconds, 'NX')
    if (isFirst !== 'OK') throw new AssertionError('was used before')
  } catch (error) {
    throw refused(error)
  }
}

function refused(error: unknown): unknown {
  if (!(error instanceof AssertionError)) return error
  return new OAuthError('invalid_client', `Invalid client assertion: it ${error.message}`, 401)
}

export function invalidClient(
  { config }: Services,
  { viaBasic }: ClientCredentials,
  description: string,
): OAuthError {
  const headers: Record<string, string> = viaBasic
    ? { 'WWW-Authenticate': `Basic realm="${config.baseUrl}"` }
    : {}
  return new OAuthError('invalid_client', description, 401, headers)
}

/** RFC 6749 §2.3.1: both halves are form-encoded inside the header. */
function decodedBasic(header: string): { id: string; secret: string } {
  const basic = parseBasic(header)
  if (basic === undefined) throw new OAuthError('invalid_request', 'Invalid Authorization header')
  return { id: formDecoded(basic.id), secret: formDecoded(basic.secret) }
}

function formDecoded(text: string): string {
  try {
    return decodeURIComponent(text.replace(/\+/g, ' '))
  } catch {
    throw new OAuthError('invalid_request', 'Invalid Authorization header')
  }
}

// Public keys of clients: inline, or fetched from their `jwksUri` and kept for five minutes.

const KEPT_MS = 300_000
const KEPT_SETS = 1000
const MAX_BYTES = 262_144
const PATIENCE_MS = 5000
/** An unknown `kid` makes us look again, but not for each request that invents one. */
const AGAIN_MS = 5000

interface Fetched {
  readonly at: number
  readonly keys: Promise<readonly JWK[]>
}

export interface ClientKeys {
  /** Returns the client's keys; looks them up again when none has this `kid`. Errors: AssertionError. */
  find(client: Resource, kid: string): Promise<readonly JWK[]>
  /** The same of a key set's address. */
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

// Clients that prove themselves by a signed JWT: RFC 7523 §3, SMART Backend Services.

interface ClientAssertion {
  readonly text: string
  readonly clientId: string
  readonly kid: string
  readonly alg: string
}

/** The values that single use is checked by. */
interface AssertionUse {
  readonly id: string
  /** Epoch seconds. */
  readonly expiresAt: number
}

/** Why an assertion proves nothing, in words that name no value of it. */
class AssertionError extends Error {}

const ALGORITHMS = ['RS256', 'RS384', 'RS512', 'ES256', 'ES384', 'ES512']
const LONGEST = 16_384
const LONGEST_LIFE_SECONDS = 300
const SKEW_SECONDS = 30
const MOST_KEYS = 100

/** Before the signature is looked at. Errors: AssertionError. */
function readAssertion(text: string): ClientAssertion {
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
function readKeySet(text: string): readonly JWK[] {
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
async function verifyAssertion(
  assertion: ClientAssertion,
  keys: readonly JWK[],
  audiences: readonly string[],
): Promise<AssertionUse> {
  const candidates = keys.filter(({ kid }) => kid === assertion.kid)
  if (candidates.length === 0) throw new AssertionError('is signed with an unknown key')
  for (const jwk of candidates) {
    const payload = await verifyWithJwk(assertion, jwk, audiences)
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
async function verifyWithJwk(
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

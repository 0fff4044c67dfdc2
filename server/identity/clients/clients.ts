/** Client authentication at the token endpoint. */

import {
  BY_CA,
  type ClientCertificate,
  certificateHeader,
  hasCertificate,
  provesByCertificate,
  readCertificate,
} from '../../../shared/access/credentials/certificates.ts'
import {
  alwaysProves,
  ownsCredentials,
  takesSecret,
} from '../../../shared/access/credentials/clients.ts'
import type { Resource } from '../../../shared/fhir/resource.ts'
import type { Session } from '../../../shared/identity/principals.ts'
import { isInScope, serviceUrl } from '../../../shared/request/project-scope.ts'
import type { Services } from '../../../shared/request/services.ts'
import type { Context } from '../../http/context.ts'
import { verifyClientSecret } from '../../middleware/access.ts'
import { parseBasic } from '../../middleware/authenticate.ts'
import { OAuthError } from '../../middleware/failures.ts'
import { rateLimitAddress } from '../../middleware/limits.ts'
import { optionalParameter } from './answer.ts'
import {
  type Assertion,
  AssertionError,
  type ClientKeys,
  readAssertion,
  requireFirstUse,
  verifyAssertion,
} from './assertions.ts'

const JWT_BEARER = 'urn:ietf:params:oauth:client-assertion-type:jwt-bearer'

export interface ClientCredentials {
  readonly id: string | undefined
  readonly secret: string | undefined
  readonly assertion: string | undefined
  /** Certificate of the connection, also of clients that authenticate by another proof. */
  readonly certificate: ClientCertificate | undefined
  readonly viaBasic: boolean
  readonly address: string
}

/** Errors: `invalid_request` for contradictory credentials; those of the certificate. */
export function readClientCredentials(
  services: Services,
  ctx: Context,
  form: URLSearchParams,
): ClientCredentials {
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
    certificate: readClientCertificate(services, ctx),
    viaBasic: basic !== undefined,
    address: rateLimitAddress(ctx.ip),
  }
}

/** Errors: `invalid_request` for an unreadable certificate; `invalid_client` for one out of its time. */
export function readClientCertificate(
  { config }: Services,
  ctx: Context,
): ClientCertificate | undefined {
  const header = certificateHeader(config, ctx.req.headers)
  const found = header === undefined ? undefined : readCertificate(header)
  if (found === 'malformed') {
    const text = 'Client certificate must be URL-encoded PEM or a byte sequence of RFC 9440'
    throw new OAuthError('invalid_request', text)
  }
  if (found === 'out of date') {
    throw new OAuthError('invalid_client', 'Client certificate is expired or not yet valid', 401)
  }
  return found
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
    return readClientId(readAssertion(assertion))
  } catch (error) {
    throw refused(error)
  }
}

/** Errors: AssertionError. */
function readClientId({ iss, sub }: Assertion): string {
  if (iss !== sub) throw new AssertionError('needs equal iss and sub')
  return iss
}

/** A certificate is a proof only of a client that authenticates by it. */
export function hasClientProof(
  { secret, assertion, certificate }: ClientCredentials,
  client?: Resource,
): boolean {
  if (secret !== undefined || assertion !== undefined) return true
  return certificate !== undefined && client !== undefined && provesByCertificate(client)
}

/**
 * True if redeeming this Login requires the client's secret, key or certificate. PKCE only proves that the app which began the
 * flow also ends it, not its identity: sign-ins without a password, or without PKCE, need more.
 */
export function requiresClientProof(client: Resource, login: Resource): boolean {
  if (client.tokenEndpointAuthMethod !== undefined) return alwaysProves(client)
  const isWeak = login.bySession === true || login.codeChallenge === undefined
  return isWeak && ownsCredentials(client)
}

/** Requires a client with its own membership. Errors: client errors of RFC 6749; 429 above the Project's limit. */
export async function requireClientSession(
  services: Services,
  keys: ClientKeys,
  ctx: Context,
  given: ClientCredentials,
): Promise<Session> {
  const { id } = given
  if (id === undefined) throw new OAuthError('invalid_request', 'Missing client_id')
  const { principals, projectScope } = services
  const session = await principals.forProfile(`ClientApplication/${id}`, projectScope)
  if (session === undefined || !isInScope(projectScope, session.project))
    throw invalidClient(services, given, 'Invalid client')
  ctx.state.limitTo?.(session.principal.project.rateLimits)
  await verifyClientProof(services, keys, session.profile, given)
  return session
}

/** Verifies the credentials, which must be present. Errors: `invalid_request`, `invalid_client`, 429. */
export async function verifyClientProof(
  services: Services,
  keys: ClientKeys,
  client: Resource,
  given: ClientCredentials,
): Promise<void> {
  if (provesByCertificate(client)) {
    requireCertificate(services, client, given)
    return
  }
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

/** Errors: `invalid_client`. */
function requireCertificate(services: Services, client: Resource, given: ClientCredentials): void {
  const { secret, assertion, certificate } = given
  if (certificate === undefined || secret !== undefined || assertion !== undefined) {
    throw invalidClient(services, given, 'This client authenticates by its certificate only')
  }
  const isByName = client.tokenEndpointAuthMethod === BY_CA
  if (isByName && !services.config.clientCertificateVerified) {
    throw invalidClient(services, given, `This service does not accept ${BY_CA}`)
  }
  if (!hasCertificate(client, certificate)) {
    throw invalidClient(services, given, 'Client certificate is not registered')
  }
}

async function requireAssertion(
  services: Services,
  keys: ClientKeys,
  client: Resource,
  text: string,
): Promise<void> {
  try {
    const assertion = readAssertion(text)
    const id = readClientId(assertion)
    if (id !== client.id) throw new AssertionError('is of another client')
    const issuer = serviceUrl(services)
    const audience = [`${issuer}oauth2/token`, issuer]
    const candidates = await keys.find(client, assertion.kid)
    const use = await verifyAssertion(assertion, candidates, { issuer: id, subject: id, audience })
    await requireFirstUse(services.redis, client, use)
  } catch (error) {
    throw refused(error)
  }
}

function refused(error: unknown): unknown {
  if (!(error instanceof AssertionError)) return error
  return new OAuthError('invalid_client', `Invalid client assertion: it ${error.message}`, 401)
}

export function invalidClient(
  services: Services,
  { viaBasic }: ClientCredentials,
  description: string,
): OAuthError {
  const headers: Record<string, string> = viaBasic
    ? { 'WWW-Authenticate': `Basic realm="${serviceUrl(services)}"` }
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

export interface TokenCall {
  readonly services: Services
  readonly keys: ClientKeys
  readonly ctx: Context
  readonly form: URLSearchParams
}

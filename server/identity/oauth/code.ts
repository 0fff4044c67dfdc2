/** `authorization_code`: RFC 6749 §4.1.3, RFC 7636, RFC 9700 §4.8. */
import { hash, timingSafeEqual } from 'node:crypto'
import {
  CLI_CLIENT,
  ownsCredentials,
  refreshTokenSeconds,
} from '../../../shared/access/credentials/clients.ts'
import { isAllowedFrom } from '../../../shared/access/principal.ts'
import type { Resource } from '../../../shared/fhir/resource.ts'
import type { Session } from '../../../shared/identity/principals.ts'
import { issueRefreshToken } from '../../../shared/identity/refresh-tokens.ts'
import type { Services } from '../../../shared/request/services.ts'
import type { Context } from '../../http/context.ts'
import { OAuthError } from '../../middleware/failures.ts'
import { findClient } from '../auth/apps.ts'
import { createTokenResponse, optionalParameter, requiredParameter } from '../clients/answer.ts'
import {
  type ClientCredentials,
  type ClientKeys,
  hasClientProof,
  invalidClient,
  readClientCredentials,
  requiresClientProof,
  verifyClientProof,
} from '../clients/clients.ts'
import {
  isExpired,
  loginClientId,
  loginIdFromSecret,
  matchesDigest,
  patchLogin,
  readLogin,
  revokeLogin,
} from '../login-store.ts'

/** Errors: those of RFC 6749 about codes and PKCE. A second use revokes the Login. */
export async function grantCode(
  services: Services,
  keys: ClientKeys,
  ctx: Context,
  form: URLSearchParams,
): Promise<Record<string, unknown>> {
  const code = requiredParameter(form, 'code')
  const loginId = loginIdFromSecret(code)
  const login = loginId === undefined ? undefined : await readLogin(services, loginId)
  if (login === undefined || !matchesDigest(login.code, code)) throw invalidGrant('Invalid code')
  const given = readClientCredentials(ctx, form)
  const client = await requireSameClient(services, keys, login, given)
  await requireUnused(services, login)
  if (isExpired(login)) throw invalidGrant('Invalid code')
  if (typeof login.redirectUri === 'string' && login.redirectUri !== form.get('redirect_uri')) {
    throw invalidGrant('Invalid redirect_uri')
  }
  requireVerifier(login, client, optionalParameter(form, 'code_verifier'))
  const isProven = hasClientProof(given)
  if (client !== undefined && !isProven && requiresClientProof(client, login)) {
    await verifyClientProof(services, keys, client, given)
  }
  const granted = await grant(services, login, code, isProven)
  const session = await reloadLoginSession(services, ctx, granted)
  ctx.state.principal = session.principal
  const refreshToken = await refreshTokenFor(services, session, granted, client)
  return await createTokenResponse(services, { session, login: granted, client, refreshToken })
}

/** A client that proves itself wrongly is refused, whether it had to or not. */
async function requireSameClient(
  services: Services,
  keys: ClientKeys,
  login: Resource,
  given: ClientCredentials,
): Promise<Resource | undefined> {
  const clientId = loginClientId(login)
  if (given.id !== undefined && given.id !== clientId) throw invalidGrant('Invalid client')
  if (clientId === undefined) return undefined
  const client = await findClient(services, clientId)
  if (client === undefined) throw invalidClient(services, given, 'Invalid client')
  if (hasClientProof(given)) await verifyClientProof(services, keys, client, given)
  return client
}

async function requireUnused(services: Services, login: Resource): Promise<void> {
  if (login.revoked === true) throw invalidGrant('Token revoked')
  if (login.granted !== true) return
  await revokeLogin(services, login.id ?? '')
  throw invalidGrant('Token already granted')
}

function requireVerifier(
  login: Resource,
  client: Resource | undefined,
  verifier: string | undefined,
): void {
  const { codeChallenge, codeChallengeMethod } = login
  if (typeof codeChallenge === 'string') {
    if (verifier === undefined) throw new OAuthError('invalid_request', 'Missing code verifier')
    const found = codeChallengeMethod === 'S256' ? hash('sha256', verifier, 'base64url') : verifier
    if (!isSame(found, codeChallenge)) throw invalidGrant('Invalid code verifier')
    return
  }
  if (verifier !== undefined) throw invalidGrant('Invalid code verifier')
  if (!mayDoWithout(client)) throw invalidGrant('Missing verification context')
}

/** A public client has nothing else: RFC 9700 §2.1.1. The command line tool does without by its short-lived codes. */
function mayDoWithout(client: Resource | undefined): boolean {
  if (client === undefined || client.tokenEndpointAuthMethod === 'none') return false
  const isCommandLine = client.id === CLI_CLIENT.id
  return client.pkceOptional === true && (isCommandLine || ownsCredentials(client))
}

function isSame(a: string, b: string): boolean {
  return timingSafeEqual(hash('sha256', a, 'buffer'), hash('sha256', b, 'buffer'))
}

/** A code works once. The second caller finds it used, and the tokens of both are revoked. */
async function grant(
  services: Services,
  login: Resource,
  code: string,
  isProven: boolean,
): Promise<Resource> {
  const id = login.id ?? ''
  let isReplay = false
  const granted = await patchLogin(services, id, (current) => {
    isReplay = current.granted === true
    if (isReplay || current.revoked === true) return { ...current, revoked: true }
    if (!matchesDigest(current.code, code)) throw invalidGrant('Invalid code')
    return { ...current, granted: true, ...(isProven ? { clientProven: true } : {}) }
  })
  if (isReplay) throw invalidGrant('Token already granted')
  if (granted.revoked === true) throw invalidGrant('Token revoked')
  return granted
}

/** The Session of a granted Login, read anew. Errors: `invalid_grant`, `access_denied`. */
export async function reloadLoginSession(
  services: Services,
  ctx: Context,
  login: Resource,
): Promise<Session> {
  services.principals.forget(login.id ?? '')
  const session = await services.principals.forLogin(login.id ?? '')
  if (session === undefined) throw invalidGrant('Token revoked')
  requireAddress(session, ctx)
  return session
}

/** Errors: `access_denied`. */
export function requireAddress({ principal }: Session, ctx: Context): void {
  if (isAllowedFrom(principal.ipRules, ctx.ip)) return
  throw new OAuthError('access_denied', 'IP address not allowed')
}

/** Undefined unless the scope asks for one; never for super admins. */
export async function refreshTokenFor(
  { database }: Services,
  { principal }: Session,
  login: Resource,
  client: Resource | undefined,
): Promise<string | undefined> {
  const words = String(login.scope ?? '').split(' ')
  const isWanted = words.includes('offline') || words.includes('offline_access')
  if (!isWanted || principal.isSuperAdmin) return undefined
  return await issueRefreshToken(database, login.id ?? '', refreshTokenSeconds(client))
}

export function invalidGrant(description: string): OAuthError {
  return new OAuthError('invalid_grant', description)
}

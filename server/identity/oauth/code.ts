/** `authorization_code`: RFC 6749 §4.1.3, RFC 7636, RFC 9700 §4.8. */

import { hash } from 'node:crypto'
import {
  CLI_CLIENT,
  isSameSecret,
  ownsCredentials,
  refreshTokenSeconds,
} from '../../../shared/access/credentials/clients.ts'
import type { Resource } from '../../../shared/fhir/resource.ts'
import type { Session } from '../../../shared/identity/principals.ts'
import { issueRefreshToken } from '../../../shared/identity/refresh-tokens.ts'
import { isInScope } from '../../../shared/request/project-scope.ts'
import type { Services } from '../../../shared/request/services.ts'
import type { Context } from '../../http/context.ts'
import { OAuthError } from '../../middleware/failures.ts'
import { findClient } from '../auth/apps.ts'
import {
  createTokenResponse,
  optionalParameter,
  requiredParameter,
  type TokenResponse,
  type Tokens,
} from '../clients/answer.ts'
import type { ClientKeys } from '../clients/assertions.ts'
import {
  type ClientCredentials,
  hasClientProof,
  invalidClient,
  readClientCredentials,
  requiresClientProof,
  type TokenCall,
  verifyClientProof,
} from '../clients/clients.ts'
import { loginState, redeemCode } from '../login-states.ts'
import { changeLogin, loginBySecret, loginClientId, matchesDigest } from '../login-store.ts'

/** Errors: code and PKCE errors of RFC 6749. A second use revokes the Login. */
export async function grantCode({ services, keys, ctx, form }: TokenCall): Promise<TokenResponse> {
  const code = requiredParameter(form, 'code')
  const login = await loginBySecret(services, 'code', code)
  if (login === undefined) throw invalidGrant('Invalid code')
  const given = readClientCredentials(services, ctx, form)
  const client = await requireSameClient(services, keys, login, given)
  const isProven = hasClientProof(given, client)
  const { certificate } = given
  const redeem = () =>
    changeLogin(
      services,
      login,
      (current) =>
        redeemCode(current, matchesDigest(current.code, code), { isProven, certificate }),
      invalidGrant,
    )
  if (loginState(login) !== 'code issued') await redeem()
  if (typeof login.redirectUri === 'string' && login.redirectUri !== form.get('redirect_uri')) {
    throw invalidGrant('Invalid redirect_uri')
  }
  requireVerifier(login, client, optionalParameter(form, 'code_verifier'))
  if (client !== undefined && !isProven && requiresClientProof(client, login)) {
    await verifyClientProof(services, keys, client, given)
  }
  return await answerLogin(services, ctx, await redeem(), { client, certificate })
}

/** Rejects a wrong client proof even if none was required. */
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
  if (hasClientProof(given, client)) await verifyClientProof(services, keys, client, given)
  return client
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
    if (!isSameSecret(found, codeChallenge)) throw invalidGrant('Invalid code verifier')
    return
  }
  if (verifier !== undefined) throw invalidGrant('Invalid code verifier')
  if (!mayOmitPkce(client)) throw invalidGrant('Missing verification context')
}

/** RFC 9700 §2.1.1: public clients must use PKCE. The command line tool may omit it, as its codes are short-lived. */
function mayOmitPkce(client: Resource | undefined): boolean {
  if (client === undefined || client.tokenEndpointAuthMethod === 'none') return false
  const isCommandLine = client.id === CLI_CLIENT.id
  return client.pkceOptional === true && (isCommandLine || ownsCredentials(client))
}

/** Reloads the Session of a granted Login. Errors: `invalid_grant`, `access_denied`. */
export async function reloadLoginSession(
  services: Services,
  ctx: Context,
  login: Resource,
): Promise<Session> {
  services.principals.forget(login.id ?? '')
  const session = await services.principals.forLogin(login.id ?? '')
  if (session === undefined || !isInScope(services.projectScope, session.project)) {
    throw invalidGrant('Token revoked')
  }
  requireAddress(session, ctx)
  return session
}

/** Answers for a Login just granted. Errors: `invalid_grant`, `access_denied`. */
export async function answerLogin(
  services: Services,
  ctx: Context,
  login: Resource,
  { client, certificate }: Pick<Tokens, 'client' | 'certificate'>,
): Promise<TokenResponse> {
  const session = await reloadLoginSession(services, ctx, login)
  ctx.state.principal = session.principal
  const refreshToken = await refreshTokenFor(services, session, login, client)
  return await createTokenResponse(services, { session, login, client, refreshToken, certificate })
}

/** Errors: `access_denied`. */
export function requireAddress({ principal }: Session, ctx: Context): void {
  if (principal.allowsAddress?.(ctx.ip) !== false) return
  throw new OAuthError('access_denied', 'IP address not allowed')
}

/** Returns undefined unless the scope requests one; never for super admins. */
async function refreshTokenFor(
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

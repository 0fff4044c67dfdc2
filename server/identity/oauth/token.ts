/** `/oauth2/token`: one function per grant. */

import {
  type ClientCertificate,
  provesByCertificate,
} from '../../../shared/access/credentials/certificates.ts'
import { alwaysProves, refreshTokenSeconds } from '../../../shared/access/credentials/clients.ts'
import { grantedScope, isWithin } from '../../../shared/access/scopes.ts'
import { badRequest, HttpError } from '../../../shared/core/errors.ts'
import type { Resource } from '../../../shared/fhir/resource.ts'
import {
  findLoginByRefreshToken,
  rotateRefreshToken,
} from '../../../shared/identity/refresh-tokens.ts'
import type { Services } from '../../../shared/request/services.ts'
import type { Context } from '../../http/context.ts'
import { OAuthError } from '../../middleware/failures.ts'
import { findClient } from '../auth/apps.ts'
import { exchangeToken } from '../auth/external.ts'
import {
  createTokenResponse,
  optionalParameter,
  requiredParameter,
  type TokenResponse,
} from '../clients/answer.ts'
import {
  type ClientCredentials,
  hasClientProof,
  invalidClient,
  readClientCredentials,
  requireClientSession,
  requiresClientProof,
  type TokenCall,
  verifyClientProof,
} from '../clients/clients.ts'
import { grantExchanged, loginState } from '../login-states.ts'
import {
  changeLogin,
  createClientLogin,
  loginClientId,
  readLogin,
  revokeLogin,
} from '../login-store.ts'
import { audit } from '../sign-in-audit.ts'
import { isOwnAddress } from './authorize.ts'
import { answerLogin, grantCode, invalidGrant, reloadLoginSession, requireAddress } from './code.ts'

const TOKEN_EXCHANGE = 'urn:ietf:params:oauth:grant-type:token-exchange'
const DEFAULT_SCOPE = 'openid'

type Grant = (call: TokenCall) => Promise<TokenResponse>

export const GRANTS: ReadonlyMap<string, Grant> = new Map([
  ['client_credentials', grantClient],
  ['authorization_code', grantCode],
  ['refresh_token', grantRefresh],
  [TOKEN_EXCHANGE, grantExchange],
])

/** Errors: those of RFC 6749. Every outcome is audited. */
export async function grantToken(call: TokenCall): Promise<TokenResponse> {
  const { services, ctx, form } = call
  const type = form.get('grant_type')
  if (!type) throw new OAuthError('invalid_request', 'Missing grant_type')
  const grant = GRANTS.get(type)
  if (grant === undefined) throw new OAuthError('unsupported_grant_type', 'Unsupported grant_type')
  if (!form.getAll('resource').every((one) => isOwnAddress(services.config, one))) {
    throw new OAuthError('invalid_target', 'The resource is on another server')
  }
  try {
    const answer = await grant(call)
    if (grant !== grantClient) auditGrant(services, ctx, type)
    return answer
  } catch (error) {
    const isRefusal = error instanceof OAuthError && error.error.startsWith('invalid_')
    if (isRefusal && error.error !== 'invalid_request') {
      audit(services, ctx, { kind: 'login', outcome: '4', what: `Tokens refused: ${error.error}` })
    }
    throw error
  }
}

function auditGrant(services: Services, ctx: Context, type: string): void {
  const { principal } = ctx.state
  audit(services, ctx, {
    kind: 'login',
    outcome: '0',
    what: `Tokens by ${type}`,
    who: principal?.profile,
    projectId: principal?.project.id,
  })
}

/** RFC 6749 §4.4. At most three SQL statements before the reply; one for a known client. */
async function grantClient({ services, keys, ctx, form }: TokenCall): Promise<TokenResponse> {
  const given = readClientCredentials(services, ctx, form)
  const session = await requireClientSession(services, keys, ctx, given)
  requireAddress(session, ctx)
  const { principal, profile: client } = session
  const scope = grantedScope(form.get('scope') || DEFAULT_SCOPE)
  ctx.state.principal = principal
  // Written with the Login in one statement.
  auditGrant(services, ctx, 'client_credentials')
  const login = await createClientLogin(services, ctx, session, scope)
  const { certificate } = given
  return await createTokenResponse(services, { session, login, client, certificate })
}

/** Errors: those of RFC 6749. Reuse of a token replaced more than 30 s ago revokes the Login. */
async function grantRefresh(call: TokenCall): Promise<TokenResponse> {
  const { services, ctx, form } = call
  const token = requiredParameter(form, 'refresh_token')
  const loginId = await findLoginByRefreshToken(services.database, token)
  const login = loginId === undefined ? undefined : await readLogin(services, loginId)
  if (login === undefined || loginState(login) !== 'granted') {
    throw invalidGrant('Invalid refresh token')
  }
  const given = readClientCredentials(services, ctx, form)
  const client = await requireOwner(call, login, given)
  const scope = narrowed(String(login.scope ?? ''), optionalParameter(form, 'scope'))
  const session = await reloadLoginSession(services, ctx, login)
  const rotation = await rotateRefreshToken(services.database, token, refreshTokenSeconds(client))
  if (rotation.state === 'reused') await revokeLogin(services, login)
  if (rotation.state !== 'replaced') throw invalidGrant('Invalid refresh token')
  ctx.state.principal = session.principal
  return await createTokenResponse(services, {
    session,
    login: { ...login, scope },
    client,
    refreshToken: rotation.successor,
    certificate: given.certificate,
  })
}

async function requireOwner(
  { services, keys }: TokenCall,
  login: Resource,
  given: ClientCredentials,
): Promise<Resource | undefined> {
  const clientId = loginClientId(login)
  if (given.id !== undefined && given.id !== clientId) throw invalidGrant('Incorrect client')
  const client = clientId === undefined ? undefined : await findClient(services, clientId)
  if (client === undefined && clientId !== undefined) throw invalidGrant('Invalid refresh token')
  if (client && (hasClientProof(given, client) || requiresClientProof(client, login))) {
    await verifyClientProof(services, keys, client, given)
  }
  requireBoundCertificate(login, client, given)
  return client
}

/**
 * Requires the certificate with which the Login was granted. A client that authenticates by its certificate may have
 * replaced it: RFC 8705 §7.1. Errors: `invalid_grant`.
 */
function requireBoundCertificate(
  { certificateThumbprint }: Resource,
  client: Resource | undefined,
  { certificate }: ClientCredentials,
): void {
  if (certificateThumbprint === undefined || (client && provesByCertificate(client))) return
  if (certificate?.thumbprint !== certificateThumbprint) {
    throw invalidGrant('Refresh token is bound to a client certificate')
  }
}

/** Errors: `invalid_scope`. */
function narrowed(granted: string, asked: string | undefined): string {
  if (asked === undefined) return granted
  if (!isWithin(asked, granted)) throw new OAuthError('invalid_scope', 'Invalid scope')
  return asked
}

// Token exchange (RFC 8693): a token of the client's identity provider for ours.

const ACCESS_TOKEN = 'urn:ietf:params:oauth:token-type:access_token'
const EXCHANGED_SCOPE = 'openid offline'

/** Errors: those of RFC 6749; 429 when the provider rate-limits us. */
async function grantExchange({ services, keys, ctx, form }: TokenCall): Promise<TokenResponse> {
  const given = readClientCredentials(services, ctx, form)
  if (given.id === undefined) throw new OAuthError('invalid_request', 'Missing client_id')
  const token = requiredParameter(form, 'subject_token')
  if (form.get('subject_token_type') !== ACCESS_TOKEN) {
    throw new OAuthError('invalid_request', 'Invalid subject_token_type')
  }
  const client = await findClient(services, given.id)
  if (client === undefined) throw invalidClient(services, given, 'Invalid client')
  if (hasClientProof(given, client) || alwaysProves(client))
    await verifyClientProof(services, keys, client, given)
  const scope = optionalParameter(form, 'scope') ?? EXCHANGED_SCOPE
  return await exchangeProviderToken(services, ctx, {
    client,
    token,
    scope: grantedScope(scope),
    membershipId: optionalParameter(form, 'membership_id'),
    certificate: given.certificate,
  })
}

interface TokenExchange {
  readonly client: Resource
  readonly token: string
  readonly scope: string
  readonly membershipId?: string | undefined
  readonly certificate: ClientCertificate | undefined
}

/** Issues tokens to the holder of the provider's token. Errors: `invalid_grant`, 429. */
export async function exchangeProviderToken(
  services: Services,
  ctx: Context,
  { client, token, scope, membershipId, certificate }: TokenExchange,
): Promise<TokenResponse> {
  const login = await exchangeToken(services, ctx, client, { token, scope, membershipId }).catch(
    (error: unknown) => {
      if (!(error instanceof HttpError) || error.status !== 400) throw error
      throw new OAuthError('invalid_grant', error.message)
    },
  )
  const grant = (current: Resource) => grantExchanged(current, certificate)
  const granted = await changeLogin(services, login, grant, badRequest)
  return await answerLogin(services, ctx, granted, { client, certificate })
}

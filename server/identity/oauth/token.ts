/** `/oauth2/token`: one function a grant. */
import {
  accessTokenSeconds,
  alwaysProves,
  refreshTokenSeconds,
} from '../../../shared/access/credentials/clients.ts'
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
import { createTokenResponse, optionalParameter, requiredParameter } from '../clients/answer.ts'
import {
  type ClientKeys,
  hasClientProof,
  invalidClient,
  readClientCredentials,
  requireClientSession,
  requiresClientProof,
  verifyClientProof,
} from '../clients/clients.ts'
import {
  audit,
  createClientLogin,
  loginClientId,
  patchLogin,
  readLogin,
  revokeLogin,
} from '../login-store.ts'
import {
  grantCode,
  invalidGrant,
  refreshTokenFor,
  reloadLoginSession,
  requireAddress,
} from './code.ts'

const TOKEN_EXCHANGE = 'urn:ietf:params:oauth:grant-type:token-exchange'
const DEFAULT_SCOPE = 'openid'

type Grant = (
  services: Services,
  keys: ClientKeys,
  ctx: Context,
  form: URLSearchParams,
) => Promise<Record<string, unknown>>

export const GRANTS: ReadonlyMap<string, Grant> = new Map([
  ['client_credentials', grantClient],
  ['authorization_code', grantCode],
  ['refresh_token', grantRefresh],
  [TOKEN_EXCHANGE, grantExchange],
])

/** Errors: those of RFC 6749. Every outcome leaves an AuditEvent. */
export async function grantToken(
  services: Services,
  keys: ClientKeys,
  ctx: Context,
  form: URLSearchParams,
): Promise<Record<string, unknown>> {
  const type = form.get('grant_type')
  if (!type) throw new OAuthError('invalid_request', 'Missing grant_type')
  const grant = GRANTS.get(type)
  if (grant === undefined) throw new OAuthError('unsupported_grant_type', 'Unsupported grant_type')
  try {
    const answer = await grant(services, keys, ctx, form)
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

/** RFC 6749 §4.4. Three SQL statements at most before the answer; one when the client is known. */
async function grantClient(
  services: Services,
  keys: ClientKeys,
  ctx: Context,
  form: URLSearchParams,
): Promise<Record<string, unknown>> {
  const session = await requireClientSession(services, keys, ctx, readClientCredentials(ctx, form))
  requireAddress(session, ctx)
  const { principal, profile: client } = session
  const scope = grantedScope(form.get('scope') || DEFAULT_SCOPE)
  ctx.state.principal = principal
  // Written together with the Login, by one statement.
  auditGrant(services, ctx, 'client_credentials')
  const loginId = await createClientLogin(services, session, {
    scope,
    remoteAddress: ctx.ip,
    userAgent: ctx.get('User-Agent'),
  })
  const lifetimeSeconds = accessTokenSeconds(client)
  const clientId = client.id ?? ''
  const profile = principal.profile ?? ''
  const subject = { loginId, subject: clientId, clientId, profile, scope, lifetimeSeconds }
  const display = principal.profileDisplay
  return {
    token_type: 'Bearer',
    expires_in: lifetimeSeconds,
    scope,
    access_token: await services.tokens.issue(subject),
    project: { reference: `Project/${principal.project.id}`, display: principal.project.name },
    profile: display === undefined ? { reference: profile } : { reference: profile, display },
    smart_style_url: `${services.config.baseUrl}fhir/R4/.well-known/smart-styles.json`,
    need_patient_banner: false,
  }
}

/** Errors: those of RFC 6749. A token that was replaced more than 30 s ago revokes the Login. */
async function grantRefresh(
  services: Services,
  keys: ClientKeys,
  ctx: Context,
  form: URLSearchParams,
): Promise<Record<string, unknown>> {
  const token = requiredParameter(form, 'refresh_token')
  const loginId = await findLoginByRefreshToken(services.database, token)
  const login = loginId === undefined ? undefined : await readLogin(services, loginId)
  if (login === undefined || login.revoked === true || login.granted !== true) {
    throw invalidGrant('Invalid refresh token')
  }
  const client = await requireOwner(services, keys, ctx, { form, login })
  const scope = narrowed(String(login.scope ?? ''), optionalParameter(form, 'scope'))
  const session = await reloadLoginSession(services, ctx, login)
  const rotation = await rotateRefreshToken(services.database, token, refreshTokenSeconds(client))
  if (rotation.state === 'reused') await revokeLogin(services, login.id ?? '')
  if (rotation.state !== 'replaced') throw invalidGrant('Invalid refresh token')
  ctx.state.principal = session.principal
  return await createTokenResponse(services, {
    session,
    login: { ...login, scope },
    client,
    refreshToken: rotation.successor,
  })
}

async function requireOwner(
  services: Services,
  keys: ClientKeys,
  ctx: Context,
  { form, login }: { readonly form: URLSearchParams; readonly login: Resource },
): Promise<Resource | undefined> {
  const given = readClientCredentials(ctx, form)
  const clientId = loginClientId(login)
  if (given.id !== undefined && given.id !== clientId) throw invalidGrant('Incorrect client')
  if (clientId === undefined) return undefined
  const client = await findClient(services, clientId)
  if (client === undefined) throw invalidGrant('Invalid refresh token')
  if (hasClientProof(given) || requiresClientProof(client, login)) {
    await verifyClientProof(services, keys, client, given)
  }
  return client
}

/** Errors: `invalid_scope`. */
function narrowed(granted: string, asked: string | undefined): string {
  if (asked === undefined) return granted
  if (!isWithin(asked, granted)) throw new OAuthError('invalid_scope', 'Invalid scope')
  return asked
}

// Token exchange: a token of the client's identity provider for ours. RFC 8693.

const ACCESS_TOKEN = 'urn:ietf:params:oauth:token-type:access_token'
const EXCHANGED_SCOPE = 'openid offline'

/** Errors: those of RFC 6749; 429 when the provider wants us to wait. */
async function grantExchange(
  services: Services,
  keys: ClientKeys,
  ctx: Context,
  form: URLSearchParams,
): Promise<Record<string, unknown>> {
  const given = readClientCredentials(ctx, form)
  if (given.id === undefined) throw new OAuthError('invalid_request', 'Missing client_id')
  const token = requiredParameter(form, 'subject_token')
  if (form.get('subject_token_type') !== ACCESS_TOKEN) {
    throw new OAuthError('invalid_request', 'Invalid subject_token_type')
  }
  const client = await findClient(services, given.id)
  if (client === undefined) throw invalidClient(services, given, 'Invalid client')
  if (hasClientProof(given) || alwaysProves(client))
    await verifyClientProof(services, keys, client, given)
  const scope = optionalParameter(form, 'scope') ?? EXCHANGED_SCOPE
  return await exchangeProviderToken(services, ctx, {
    client,
    token,
    scope: grantedScope(scope),
    membershipId: optionalParameter(form, 'membership_id'),
  })
}

interface TokenExchange {
  readonly client: Resource
  readonly token: string
  readonly scope: string
  readonly membershipId: string | undefined
}

/** The tokens for the holder of the provider's token. Errors: `invalid_grant`, 429. */
export async function exchangeProviderToken(
  services: Services,
  ctx: Context,
  { client, token, scope, membershipId }: TokenExchange,
): Promise<Record<string, unknown>> {
  const login = await exchangeToken(services, ctx, client, { token, scope, membershipId }).catch(
    (error: unknown) => {
      if (!(error instanceof HttpError) || error.status !== 400) throw error
      throw new OAuthError('invalid_grant', error.message)
    },
  )
  const granted = await patchLogin(services, login.id ?? '', (current) => {
    if (current.membership === undefined) throw badRequest('User not found')
    return { ...current, granted: true }
  })
  const session = await reloadLoginSession(services, ctx, granted)
  ctx.state.principal = session.principal
  const refreshToken = await refreshTokenFor(services, session, granted, client)
  return await createTokenResponse(services, { session, login: granted, client, refreshToken })
}

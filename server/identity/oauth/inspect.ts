/** Introspection (RFC 7662) and revocation (RFC 7009) of tokens. */

import { ownsCredentials } from '../../../shared/access/credentials/clients.ts'
import type { Principal } from '../../../shared/access/principal.ts'
import { loginOfRefreshToken } from '../../../shared/identity/refresh-tokens.ts'
import type { Services } from '../../../shared/services.ts'
import { type Context, caller, type Middleware } from '../../context.ts'
import { OAuthError } from '../../middleware/failures.ts'
import { findClient } from '../auth/apps.ts'
import { audit, clientIdOf, readLogin, revokeLogin } from '../logins.ts'
import { required } from './answer.ts'
import {
  type ClientKeys,
  invalidClient,
  isProving,
  presented,
  requireClientSession,
  requireProof,
} from './clients.ts'

interface Introspection {
  readonly form: URLSearchParams
  readonly authenticate: Middleware
}

/** Only tokens of the caller's Project are described. Errors: `invalid_client`, 401. */
export async function introspect(
  services: Services,
  keys: ClientKeys,
  ctx: Context,
  { form, authenticate }: Introspection,
): Promise<Record<string, unknown>> {
  const asking = await askingPrincipal(services, keys, ctx, { form, authenticate })
  const { tokens, principals, config } = services
  const claims = await tokens.verify(required(form, 'token'))
  if (typeof claims !== 'object') return { active: false }
  const session = await principals.forLogin(claims.loginId)
  if (session === undefined) return { active: false }
  const isOurs =
    asking === undefined || asking.isSuperAdmin || asking.project.id === session.project.id
  if (!isOurs) return { active: false }
  const { patient } = session.principal
  const encounter = session.login?.encounter
  return {
    active: true,
    iat: claims.issuedAt,
    exp: claims.expiresAt,
    iss: config.baseUrl,
    aud: config.baseUrl,
    sub: claims.subject,
    username: claims.subject,
    client_id: claims.clientId,
    scope: claims.scope,
    token_type: 'Bearer',
    ...(patient === undefined ? {} : { patient }),
    ...(encounter === undefined ? {} : { encounter: idOf(encounter) }),
    fhirUser: `${config.baseUrl}fhir/R4/${claims.profile}`,
  }
}

/** Undefined when everybody may ask. */
async function askingPrincipal(
  services: Services,
  keys: ClientKeys,
  ctx: Context,
  { form, authenticate }: Introspection,
): Promise<Principal | undefined> {
  const given = presented(ctx, form)
  if (isProving(given)) {
    return (await requireClientSession(services, keys, ctx, given)).principal
  }
  if (/^bearer /i.test(ctx.get('Authorization'))) {
    await authenticate(ctx, async () => {})
    return caller(ctx).principal
  }
  if (services.config.introspectionOpen) return undefined
  throw new OAuthError('invalid_client', 'Missing client credentials', 401, {
    'WWW-Authenticate': `Basic realm="${services.config.baseUrl}"`,
  })
}

/** Unknown tokens and those of other clients are no error. Errors: `invalid_client`. */
export async function revoke(
  services: Services,
  keys: ClientKeys,
  ctx: Context,
  form: URLSearchParams,
): Promise<void> {
  const token = required(form, 'token')
  const given = presented(ctx, form)
  if (given.id === undefined) throw new OAuthError('invalid_request', 'Missing client_id')
  const client = await findClient(services, given.id)
  if (client === undefined) throw invalidClient(services, given, 'Invalid client')
  if (isProving(given) || ownsCredentials(client)) await requireProof(services, keys, client, given)
  const loginId = await loginOfToken(services, token)
  const login = loginId === undefined ? undefined : await readLogin(services, loginId)
  if (loginId === undefined || login === undefined || clientIdOf(login) !== client.id) return
  await revokeLogin(services, loginId)
  const who = `ClientApplication/${client.id}`
  const projectId = client.meta?.project
  audit(services, ctx, { kind: 'logout', outcome: '0', what: 'Token revoked', who, projectId })
}

async function loginOfToken(services: Services, token: string): Promise<string | undefined> {
  const claims = await services.tokens.verify(token)
  if (typeof claims === 'object') return claims.loginId
  return await loginOfRefreshToken(services.database, token)
}

function idOf(value: unknown): string | undefined {
  const { reference = '' } = value as { reference?: string }
  return reference.split('/')[1]
}

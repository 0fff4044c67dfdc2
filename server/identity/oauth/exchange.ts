/** Token exchange: a token of the client's identity provider for ours. RFC 8693. */
import { alwaysProves } from '../../../shared/access/credentials/clients.ts'
import { grantedScope } from '../../../shared/access/scopes.ts'
import { badRequest, HttpError } from '../../../shared/errors.ts'
import type { Resource } from '../../../shared/fhir/resource.ts'
import type { Services } from '../../../shared/services.ts'
import type { Context } from '../../context.ts'
import { OAuthError } from '../../middleware/failures.ts'
import { findClient } from '../auth/apps.ts'
import { exchangeToken } from '../auth/external.ts'
import { patchLogin } from '../logins.ts'
import { optional, required, tokenAnswer } from './answer.ts'
import { type ClientKeys, invalidClient, isProving, presented, requireProof } from './clients.ts'
import { refreshTokenFor, sessionOf } from './code.ts'

const ACCESS_TOKEN = 'urn:ietf:params:oauth:token-type:access_token'
const DEFAULT_SCOPE = 'openid offline'

/** Errors: those of RFC 6749; 429 when the provider wants us to wait. */
export async function grantExchange(
  services: Services,
  keys: ClientKeys,
  ctx: Context,
  form: URLSearchParams,
): Promise<Record<string, unknown>> {
  const given = presented(ctx, form)
  if (given.id === undefined) throw new OAuthError('invalid_request', 'Missing client_id')
  const token = required(form, 'subject_token')
  if (form.get('subject_token_type') !== ACCESS_TOKEN) {
    throw new OAuthError('invalid_request', 'Invalid subject_token_type')
  }
  const client = await findClient(services, given.id)
  if (client === undefined) throw invalidClient(services, given, 'Invalid client')
  if (isProving(given) || alwaysProves(client)) await requireProof(services, keys, client, given)
  const scope = optional(form, 'scope') ?? DEFAULT_SCOPE
  return await exchange(services, ctx, {
    client,
    token,
    scope: grantedScope(scope),
    membershipId: optional(form, 'membership_id'),
  })
}

interface TokenExchange {
  readonly client: Resource
  readonly token: string
  readonly scope: string
  readonly membershipId: string | undefined
}

/** The tokens for the holder of the provider's token. Errors: `invalid_grant`, 429. */
export async function exchange(
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
  const session = await sessionOf(services, ctx, granted)
  ctx.state.principal = session.principal
  const refreshToken = await refreshTokenFor(services, session, granted, client)
  return await tokenAnswer(services, { session, login: granted, client, refreshToken })
}

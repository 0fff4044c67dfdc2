/** `refresh_token`: RFC 6749 §6 with rotation, RFC 9700 §4.14.2. */
import { refreshTokenSeconds } from '../../../shared/access/credentials/clients.ts'
import { isWithin } from '../../../shared/access/scopes.ts'
import type { Resource } from '../../../shared/fhir/resource.ts'
import { loginOfRefreshToken, rotateRefreshToken } from '../../../shared/identity/refresh-tokens.ts'
import type { Services } from '../../../shared/services.ts'
import type { Context } from '../../context.ts'
import { OAuthError } from '../../middleware/failures.ts'
import { findClient } from '../auth/apps.ts'
import { clientIdOf, readLogin, revokeLogin } from '../logins.ts'
import { tokenAnswer } from './answer.ts'
import type { ClientKeys } from './client-keys.ts'
import { isProving, mustProve, presented, requireProof } from './clients.ts'
import { invalidGrant, sessionOf } from './code.ts'
import { optional, required } from './form.ts'

/** Errors: auth.md §6.4. A token that was replaced more than 30 s ago revokes the Login. */
export async function grantRefresh(
  services: Services,
  keys: ClientKeys,
  ctx: Context,
  form: URLSearchParams,
): Promise<Record<string, unknown>> {
  const token = required(form, 'refresh_token')
  const loginId = await loginOfRefreshToken(services.database, token)
  const login = loginId === undefined ? undefined : await readLogin(services, loginId)
  if (login === undefined || login.revoked === true || login.granted !== true) {
    throw invalidGrant('Invalid refresh token')
  }
  const client = await requireOwner(services, keys, ctx, form, login)
  const scope = narrowed(String(login.scope ?? ''), optional(form, 'scope'))
  const session = await sessionOf(services, ctx, login)
  const rotation = await rotateRefreshToken(services.database, token, refreshTokenSeconds(client))
  if (rotation.state === 'reused') await revokeLogin(services, login.id ?? '')
  if (rotation.state !== 'replaced') throw invalidGrant('Invalid refresh token')
  ctx.state.principal = session.principal
  return await tokenAnswer(services, session, { ...login, scope }, client, rotation.successor)
}

async function requireOwner(
  services: Services,
  keys: ClientKeys,
  ctx: Context,
  form: URLSearchParams,
  login: Resource,
): Promise<Resource | undefined> {
  const given = presented(ctx, form)
  const clientId = clientIdOf(login)
  if (given.id !== undefined && given.id !== clientId) throw invalidGrant('Incorrect client')
  if (clientId === undefined) return undefined
  const client = await findClient(services, clientId)
  if (client === undefined) throw invalidGrant('Invalid refresh token')
  if (isProving(given) || mustProve(client, login)) {
    await requireProof(services, keys, client, given)
  }
  return client
}

/** Errors: `invalid_scope`. */
function narrowed(granted: string, asked: string | undefined): string {
  if (asked === undefined) return granted
  if (!isWithin(asked, granted)) throw new OAuthError('invalid_scope', 'Invalid scope')
  return asked
}

/** Who a caller is as a User: what users do for themselves alone asks for it. */
import { systemPrincipal } from '../access/principal.ts'
import { SYSTEM_PROJECT } from '../access/project-context.ts'
import { parseReference, type Resource, referenceIn } from '../fhir/resource.ts'
import type { Session } from '../identity/principals.ts'
import type { Services } from '../services.ts'
import { parseVersion } from '../store/rows/rows.ts'

const system = systemPrincipal(SYSTEM_PROJECT)

/** Undefined for programs and for who acts for another member. */
export function userIdOfSession({ membership, login }: Session): string | undefined {
  const user = parseReference(referenceIn(membership.user))
  return login !== undefined && user?.type === 'User' ? user.id : undefined
}

/**
 * Also undefined where a Project alone vouches for a User that does not belong to it: its bots and its own
 * identity providers say whatever its administrators like. Login and User are read as they are now: a
 * session may be a few seconds older than the end of its login.
 */
export async function signedInUser(
  services: Pick<Services, 'repository'>,
  session: Session,
): Promise<Resource | undefined> {
  const { login } = session
  const id = userIdOfSession(session)
  if (id === undefined || login?.id === undefined || login.vouchedBy !== undefined) return undefined
  const [user, current] = await services.repository.readMany(system, [
    { type: 'User', id },
    { type: 'Login', id: login.id },
  ])
  if (user?.content === undefined || current?.content === undefined) return undefined
  const isRevoked = parseVersion(current).revoked === true
  const found = parseVersion(user)
  return isRevoked || hasLostPassword(login, found) ? undefined : found
}

/** A login by a password that was taken away since (ownership.ts). */
export function hasLostPassword(login: Resource, user: Resource): boolean {
  return login.authMethod === 'password' && user.passwordHash === undefined
}

/** Who a caller is as a User: what users do for themselves alone asks for it. */
import { systemPrincipal } from '../access/principal.ts'
import { parseReference, type Resource } from '../fhir/resource.ts'
import type { Services } from '../services.ts'
import { referenceIn } from '../store/memberships.ts'
import type { Session } from '../store/principals.ts'
import { SYSTEM_PROJECT } from '../store/projects.ts'
import { parseVersion } from '../store/rows.ts'
import { projectOfUser, readUser } from './users.ts'

/** What no administrator of a Project has a hand in. */
const PROVEN = new Set<unknown>(['password', 'google'])
const system = systemPrincipal(SYSTEM_PROJECT)

/** Undefined for programs and for who acts for another member. */
export function userIdOfSession({ membership, login }: Session): string | undefined {
  const user = parseReference(referenceIn(membership.user))
  return login !== undefined && user?.type === 'User' ? user.id : undefined
}

/**
 * Also undefined where a Project alone vouches for a User that does not belong to it: its bots and the
 * identity providers of its clients say whatever its administrators like.
 */
export async function signedInUser(
  services: Pick<Services, 'repository'>,
  session: Session,
): Promise<Resource | undefined> {
  const id = userIdOfSession(session)
  const user = id === undefined ? undefined : await readUser(services.repository, id)
  if (user === undefined) return undefined
  const isOfProject = projectOfUser(user) === session.project.id
  return isOfProject || (await isProven(services, session)) ? user : undefined
}

async function isProven(
  { repository }: Pick<Services, 'repository'>,
  { login }: Session,
): Promise<boolean> {
  if (PROVEN.has(login?.authMethod)) return true
  if (login?.authMethod !== 'external') return false
  const client = parseReference(referenceIn(login.client))
  if (client === undefined) return true
  const [found] = await repository.readMany(system, [client])
  return found?.content != null && parseVersion(found).identityProvider === undefined
}

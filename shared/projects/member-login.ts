/** A Login of who has none: of a run of a Bot, or of credentials that are sent each time. */
import { systemPrincipal } from '../access/principal.ts'
import { SYSTEM_PROJECT } from '../access/project-context.ts'
import type { Session } from '../identity/principals.ts'
import type { Services } from '../services.ts'

/** Within the scope of the Session; answers its id. One statement. */
export async function createMemberLogin(
  { repository }: Pick<Services, 'repository'>,
  { principal, membership, profile }: Session,
  authMethod: 'execute' | 'client',
): Promise<string> {
  const { id } = await repository.create(systemPrincipal(SYSTEM_PROJECT), {
    resourceType: 'Login',
    authMethod,
    authTime: new Date().toISOString(),
    user: { reference: principal.profile },
    project: { reference: `Project/${principal.project.id}` },
    membership: { reference: `ProjectMembership/${membership.id}` },
    profileType: profile.resourceType,
    granted: true,
    scope: principal.scope,
    ...(principal.patient === undefined
      ? {}
      : { patient: { reference: `Patient/${principal.patient}` } }),
  })
  return id
}

/** A Login of who has none: of a run of a Bot, or of credentials that are sent each time. */
import { systemPrincipal } from '../access/principal.ts'
import type { Services } from '../services.ts'
import type { Session } from '../store/principals.ts'
import { SYSTEM_PROJECT } from '../store/projects.ts'

/** Answers its id. One statement. */
export async function createMemberLogin(
  { repository }: Pick<Services, 'repository'>,
  { principal, membership, profile }: Session,
  authMethod: 'execute' | 'client',
  scope: string,
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
    scope,
  })
  return id
}

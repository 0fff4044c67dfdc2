/** Access tokens for bots that ask for one: most never do, so none is made beforehand (bots.md §4.3). */
import { systemPrincipal } from '../../shared/access/principal.ts'
import { parseReference } from '../../shared/fhir/resource.ts'
import type { Services } from '../../shared/services.ts'
import type { Session } from '../../shared/store/principals.ts'
import { SYSTEM_PROJECT } from '../../shared/store/projects.ts'

const SLACK_S = 60
const SCOPE = 'openid'

/** The token of one run; it outlives the run's wall limit by a minute at most. */
export async function mintToken(
  { repository, tokens }: Services,
  session: Session,
  wallMs: number,
): Promise<string> {
  const { principal, membership } = session
  const profile = { reference: principal.profile }
  const login = await repository.create(systemPrincipal(SYSTEM_PROJECT), {
    resourceType: 'Login',
    authMethod: 'execute',
    authTime: new Date().toISOString(),
    user: profile,
    project: { reference: `Project/${principal.project.id}` },
    membership: { reference: `ProjectMembership/${membership.id}` },
    profileType: session.profile.resourceType,
    granted: true,
    scope: SCOPE,
  })
  return await tokens.issue({
    loginId: login.id,
    subject: parseReference(principal.profile)?.id ?? login.id,
    clientId: undefined,
    profile: principal.profile ?? '',
    scope: SCOPE,
    lifetimeSeconds: Math.ceil(wallMs / 1000) + SLACK_S,
  })
}

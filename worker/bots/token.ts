/** Access tokens for bots that ask for one: most never do, so none is made beforehand (bots.md §4.3). */
import { createMemberLogin } from '../../shared/api/member-login.ts'
import { parseReference } from '../../shared/fhir/resource.ts'
import type { Services } from '../../shared/services.ts'
import type { Session } from '../../shared/store/principals.ts'

const SLACK_S = 60
const SCOPE = 'openid'

/** The token of one run; it outlives the run's wall limit by a minute at most. */
export async function mintToken(
  services: Services,
  session: Session,
  wallMs: number,
): Promise<string> {
  const { principal } = session
  const loginId = await createMemberLogin(services, session, 'execute', SCOPE)
  return await services.tokens.issue({
    loginId,
    subject: parseReference(principal.profile)?.id ?? loginId,
    clientId: undefined,
    profile: principal.profile ?? '',
    scope: SCOPE,
    lifetimeSeconds: Math.ceil(wallMs / 1000) + SLACK_S,
  })
}

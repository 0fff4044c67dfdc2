/** Administrators act on behalf of members by the header `X-Medplum-On-Behalf-Of`. */
import { outranks } from '../access/guarded/rights.ts'
import { profileReference } from '../access/principal.ts'
import { narrowed } from '../access/scopes.ts'
import { forbidden, forbiddenByPlatform } from '../core/errors.ts'
import { parseReference } from '../fhir/resource.ts'
import type { Principals, Session } from './principals.ts'

export const ON_BEHALF_OF = 'x-medplum-on-behalf-of'

/** Grants the other member's rights within the caller's scope; `meta` names both. Errors: 403. */
export async function actOnBehalfOf(
  principals: Principals,
  { principal }: Session,
  target: string,
): Promise<Session> {
  const parsed = parseReference(target)
  if (!principal.isProjectAdmin || parsed === undefined) throw forbidden()
  // The member would not have the limits of the Bot.
  if (principal.declared !== undefined) {
    throw forbiddenByPlatform('A Bot that names its secrets or hosts acts for no other member')
  }
  const member =
    parsed.type === 'ProjectMembership'
      ? await principals.forMembership(parsed.id)
      : await principals.forProfile(target, principal.project.id)
  if (member === undefined || member.principal.project.id !== principal.project.id)
    throw forbidden()
  const { loginId, profile, profileDisplay, clientId, certificate, lease, scope, patient } =
    principal
  const acting = narrowed(member.principal, scope, patient)
  // A super admin restricted by a policy keeps that restriction when acting for others.
  if (outranks(acting, principal)) throw forbidden()
  return {
    ...member,
    principal: {
      ...acting,
      // The User is not the one acting.
      user: undefined,
      loginId,
      profile,
      profileDisplay,
      onBehalfOf: profileReference(member.principal),
      clientId,
      certificate,
      lease,
    },
  }
}

/** `POST /admin/projects/:id/invite`. */
import { requireGoodPassword } from '../../shared/access/password-rules.ts'
import { hashPassword } from '../../shared/access/passwords.ts'
import type { Principal } from '../../shared/access/principal.ts'
import { isObject, parseReference, type Reference } from '../../shared/fhir/resource.ts'
import type { Services } from '../../shared/services.ts'
import type { Session } from '../../shared/store/principals.ts'
import { administeredProject, requireUnlessLimited } from './access.ts'
import { type Enrolment, enrol } from './enrol.ts'
import { type Invitation, readInvitation } from './invitation.ts'

/** Errors: 400, 403, 404, 409, 412. */
export async function inviteMember(
  services: Services,
  caller: Principal,
  session: Session,
  projectId: string,
  body: Record<string, unknown>,
): Promise<Enrolment> {
  const project = await administeredProject(services.principals, caller, projectId)
  requireUnlessLimited(caller, ['ProjectMembership', 'create'], ['User', 'create'])
  const { password, ...invitation }: Invitation = readInvitation(body)
  const passwordHash = await hashOf(services, password)
  const inviter = { caller, user: userOf(session), project }
  const enrolled = await enrol(services, inviter, { ...invitation, passwordHash })
  if (enrolled.outcome === 'updated') services.principals.forget()
  return enrolled
}

async function hashOf(
  { config }: Services,
  password: string | undefined,
): Promise<string | undefined> {
  if (password === undefined) return undefined
  await requireGoodPassword(password, 'password', config.passwordCheck)
  return await hashPassword(password)
}

/** A client is no User. */
export function userOf({ membership }: Session): Reference | undefined {
  const { user } = membership
  const reference = isObject(user) ? (user as Reference) : undefined
  return parseReference(reference?.reference)?.type === 'User' ? reference : undefined
}

/** `POST /admin/projects/:id/invite`, also from inside a bot. */
import { requireGoodPassword } from '../../access/password-rules.ts'
import { hashPassword } from '../../access/passwords.ts'
import type { Principal } from '../../access/principal.ts'
import { isObject, parseReference, type Reference } from '../../fhir/resource.ts'
import type { Services } from '../../services.ts'
import type { Session } from '../../store/principals.ts'
import { administeredProject, requireUnlessLimited } from './access.ts'
import { type Enrolment, enrol } from './enrol.ts'
import { type Invitation, readInvitation } from './invitation.ts'

/** `user` is who invites, where that is a person. Errors: 400, 403, 404, 409, 412. */
export async function inviteMember(
  services: Services,
  caller: Principal,
  user: Reference | undefined,
  projectId: string,
  body: Record<string, unknown>,
): Promise<Enrolment> {
  const project = await administeredProject(services.principals, caller, projectId)
  requireUnlessLimited(caller, ['ProjectMembership', 'create'], ['User', 'create'])
  const { password, ...invitation }: Invitation = readInvitation(body)
  const passwordHash = await hashOf(services, password)
  const inviter = { caller, user, project }
  const enrolled = await enrol(services, inviter, { ...invitation, passwordHash })
  if (enrolled.outcome === 'updated') services.principals.forget()
  return enrolled
}

async function hashOf(
  { config }: Services,
  password: string | undefined,
): Promise<string | undefined> {
  if (password === undefined) return undefined
  await requireGoodPassword(password, 'password', config)
  return await hashPassword(password)
}

/** A client is no User. */
export function userOf({ membership }: Session): Reference | undefined {
  const { user } = membership
  const reference = isObject(user) ? (user as Reference) : undefined
  return parseReference(reference?.reference)?.type === 'User' ? reference : undefined
}

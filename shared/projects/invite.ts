/** `POST /admin/projects/:id/invite`, also from inside a bot. */

import { provenApplicant } from '../access/credentials/hashing.ts'
import { hashPassword, requireGoodPassword } from '../access/credentials/passwords.ts'
import type { Principal } from '../access/principal.ts'
import { badRequest } from '../errors.ts'
import { isObject, parseReference, type Reference } from '../fhir/resource.ts'
import type { Session } from '../identity/principals.ts'
import type { Services } from '../services.ts'
import { type Enrolment, enrol } from './enrol.ts'
import { type Invitation, readInvitation } from './invitation.ts'
import { administeredProject, endStrangers, requireUnlessLimited } from './ownership.ts'

const OWNER_ALONE =
  'Only its owner sets the password of a server scoped user: leave it out, or invite with scope "project"'

/** `user` is who invites, where that is a person. Errors: 400, 403, 404, 409, 412, 429. */
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
  // Its address may belong to people of other Projects, who would get in there by this password.
  const isTheirs = invitation.scope === 'server' && !caller.isSuperAdmin
  if (password !== undefined && isTheirs) throw badRequest(OWNER_ALONE, 'password')
  const passwordHash = await hashOf(services, caller, password)
  const inviter = { caller, user, project }
  const enrolled = await enrol(services, inviter, { ...invitation, passwordHash })
  if (enrolled.outcome === 'updated') services.principals.forget()
  if (enrolled.strangersOf !== undefined) await endStrangers(services, enrolled.strangersOf)
  return enrolled
}

async function hashOf(
  { config, hashing }: Services,
  { membershipId }: Principal,
  password: string | undefined,
): Promise<string | undefined> {
  if (password === undefined) return undefined
  await requireGoodPassword(password, 'password', config)
  return await hashing.run(provenApplicant(membershipId ?? ''), () => hashPassword(password))
}

/** A client is no User. */
export function userOf({ membership }: Session): Reference | undefined {
  const { user } = membership
  const reference = isObject(user) ? (user as Reference) : undefined
  return parseReference(reference?.reference)?.type === 'User' ? reference : undefined
}

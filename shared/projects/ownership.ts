/**
 * The ownership of Users. An invite or a registration makes a User for an address before anybody knows who reads its
 * mail, and whoever made it may have set a password. So `provenEmail` keeps the address for which the
 * credentials were set by somebody entitled to: its owner, over a mail or a provider that the service trusts, or
 * an administrator of the scope (a super administrator, for a User of a Project also its administrators). A
 * User without it loses its credentials when a Project takes it in; one that changes its address loses it.
 */

import type { Interaction } from '../access/grant.ts'
import { may } from '../access/policy.ts'
import type { Principal, ProjectContext } from '../access/principal.ts'
import type { Config } from '../core/config/config.ts'
import { forbidden, notFound } from '../core/errors.ts'
import type { Resource } from '../fhir/resource.ts'
import type { Principals } from '../identity/principals.ts'
import type { Mail } from '../outbound/mails.ts'
import type { Services } from '../request/services.ts'
import type { Repository } from '../store/repository.ts'
import { inviteMail } from './mail-texts.ts'
import type { TargetProject } from './provision.ts'
import { createSecurityRequest } from './security-requests.ts'
import { patchUser, revokeUserLogins } from './users.ts'

type Changes = Readonly<Record<string, unknown>>

const NO_FACTOR = { mfaSecret: undefined, mfaEnrolled: undefined }

/** A User without an address is found by no invite and no registration. */
export function isProven({ email, provenEmail }: Resource): boolean {
  return email === undefined || provenEmail === email
}

/** Changes of a User whose credentials are set by somebody entitled to; a stranger's factor goes. */
export function provenEmailChanges(user: Resource): Changes {
  return isProven(user) ? {} : { ...NO_FACTOR, provenEmail: user.email }
}

/** Changes of a User that an administrator of its scope gives another address: it stays what it is. */
export function newEmailChanges(user: Resource, email: string): Changes {
  return { email, emailVerified: false, ...(isProven(user) ? { provenEmail: email } : {}) }
}

/**
 * Takes what strangers may have set for the address, in the caller's transaction, after which `revokeUnprovenLogins`
 * is due. True when there was something.
 */
export async function voidCredentials(repository: Repository, user: Resource): Promise<boolean> {
  const hasNone = user.passwordHash === undefined && user.mfaSecret === undefined
  if (isProven(user) || hasNone) return false
  await patchUser(repository, user.id ?? '', (current) =>
    isProven(current)
      ? {}
      : { ...NO_FACTOR, passwordHash: undefined, emailVerified: false, provenEmail: undefined },
  )
  return true
}

interface Admission {
  readonly config: Config
  readonly repository: Repository
  readonly addMail: (projectId: string, mail: Mail) => Promise<unknown>
}

/** The same where no invite is mailed: the owner gets a link only if something was taken. */
export async function takeIn(
  { config, repository, addMail }: Admission,
  actor: Principal,
  project: TargetProject,
  user: Resource,
): Promise<void> {
  if (!(await voidCredentials(repository, user))) return
  const link = await createSecurityRequest(repository, actor, { type: 'invite', user })
  await addMail(
    project.id,
    inviteMail(config, String(user.email), { projectName: project.name, link, isVoid: true }),
  )
}

/**
 * Ends the logins by credentials that are void. Logins that a Project alone vouches for stay: they lead
 * nowhere else, and inviting somebody must not end their work in another Project.
 */
export async function revokeUnprovenLogins(
  services: Pick<Services, 'repository' | 'principals'>,
  userId: string,
): Promise<void> {
  await revokeUserLogins(services, userId, (login) => login.vouchedBy === undefined)
}

/** The owner has come by a provider that may say so: what others have set before is void. */
export async function proveByProvider(
  services: Pick<Services, 'repository' | 'principals'>,
  user: Resource,
): Promise<void> {
  if (isProven(user)) return
  await patchUser(services.repository, user.id ?? '', (current) =>
    isProven(current)
      ? {}
      : { ...provenEmailChanges(current), passwordHash: undefined, emailVerified: true },
  )
  await revokeUnprovenLogins(services, user.id ?? '')
}

/** Errors: 403 for no project admin and for a foreign project, 404 for an unknown one. */
export async function administeredProject(
  principals: Principals,
  caller: Principal,
  projectId: string,
): Promise<ProjectContext> {
  if (!caller.isSuperAdmin) {
    if (!caller.isProjectAdmin || caller.project.id !== projectId) throw forbidden()
    return caller.project
  }
  const project = await principals.project(projectId)
  if (project === undefined) throw notFound()
  return project
}

/** A super admin with a policy gets only what the policy lists. Errors: 403. */
export function requireUnlessLimited(
  caller: Principal,
  ...needs: readonly (readonly [type: string, interaction: Interaction])[]
): void {
  if (!caller.isSuperAdmin) return
  if (!needs.every(([type, interaction]) => may(caller, type, interaction))) throw forbidden()
}

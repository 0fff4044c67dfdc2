/**
 * Ownership of Users. An invite or registration creates a User before its address is verified, and its creator may have
 * set a password. `provenEmail` holds the address whose credentials were set by the owner (through a mail or trusted
 * provider) or by an administrator of the scope (for a Project's User also its administrators). A User without it loses
 * its credentials when a Project adds it; changing the address clears it.
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
type Right = readonly [type: string, interaction: Interaction]

const NO_FACTOR = { mfaSecret: undefined, mfaEnrolled: undefined }

/** Invites and registrations find no User without an address. */
export function isProven({ email, provenEmail }: Resource): boolean {
  return email === undefined || provenEmail === email
}

/** Returns the changes that mark a User as proven; an unproven second factor is removed. */
export function provenEmailChanges(user: Resource): Changes {
  return isProven(user) ? {} : { ...NO_FACTOR, provenEmail: user.email }
}

/** Returns the changes for a new address set by an administrator; the status stays. */
export function newEmailChanges(user: Resource, email: string): Changes {
  return { email, emailVerified: false, ...(isProven(user) ? { provenEmail: email } : {}) }
}

/**
 * Removes unproven credentials in the caller's transaction; `revokeUnprovenLogins` must follow. True when there were
 * any.
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

/** Like `voidCredentials`, without an invite mail: the owner gets a link only if credentials were removed. */
export async function voidAndNotify(
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

/** Revokes logins by void credentials. Logins that only a Project vouches for stay: they give no access elsewhere. */
export async function revokeUnprovenLogins(
  services: Pick<Services, 'repository' | 'principals'>,
  userId: string,
): Promise<void> {
  await revokeUserLogins(services, userId, (login) => login.vouchedBy === undefined)
}

/** Marks the owner as proven by a trusted provider, which voids earlier credentials. */
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

/**
 * Returns a project for its administrators; super admins with a policy need `rights` in it. Errors: 403 for callers
 * other than project admins and for other projects, 404 for an unknown one.
 */
export async function administeredProject(
  principals: Principals,
  caller: Principal,
  projectId: string,
  ...rights: readonly Right[]
): Promise<ProjectContext> {
  if (!caller.isSuperAdmin) {
    if (!caller.isProjectAdmin || caller.project.id !== projectId) throw forbidden()
    return caller.project
  }
  const project = await principals.project(projectId)
  if (project === undefined) throw notFound()
  requireUnlessLimited(caller, ...rights)
  return project
}

/** Limits a super admin with a policy to the types in it. Errors: 403. */
export function requireUnlessLimited(caller: Principal, ...rights: readonly Right[]): void {
  if (!caller.isSuperAdmin) return
  if (!rights.every(([type, interaction]) => may(caller, type, interaction))) throw forbidden()
}

/** Accounts behind members: how far an invitation has got, new links, and the second factor. */

import {
  type Principal,
  type ProjectContext,
  servicePrincipal,
} from '../../../shared/access/principal.ts'
import { SYSTEM_PROJECT, system } from '../../../shared/access/project-context.ts'
import {
  badRequest,
  conflict,
  forbiddenByPlatform,
  notFound,
  tooManyRequests,
} from '../../../shared/core/errors.ts'
import { type Resource, referenceIn, targetIn } from '../../../shared/fhir/resource.ts'
import { readMailState } from '../../../shared/outbound/mails.ts'
import { Fields } from '../../../shared/projects/fields.ts'
import {
  inviteMail,
  passwordUrl,
  resetMail,
  welcomeMail,
} from '../../../shared/projects/mail-texts.ts'
import {
  administeredProject,
  isProven,
  requireUnlessLimited,
  revokeUnprovenLogins,
  voidCredentials,
} from '../../../shared/projects/ownership.ts'
import { allowLinkMail, createSecurityRequest } from '../../../shared/projects/security-requests.ts'
import { notifyOwner } from '../../../shared/projects/signed-in-user.ts'
import {
  patchUser,
  projectOfUser,
  readUser,
  recentLogins,
  revokeUserLogins,
} from '../../../shared/projects/users.ts'
import { changeAudited } from '../../../shared/request/admin-audit.ts'
import type { Services } from '../../../shared/request/services.ts'
import { equals, find } from '../../../shared/store/lookups.ts'
import { parseVersion } from '../../../shared/store/rows/rows.ts'
import { type MemberPath, readMember } from './members.ts'

const LOGINS = 100
const NO_ACCOUNT = 'Only people have accounts'
const HAS_PASSWORD =
  'The member has a password already. Someone who has forgotten it uses "Reset your password" on the sign-in page.'

interface Account {
  readonly email: string | undefined
  /** `project`: the account exists in this Project only. */
  readonly scope: 'project' | 'server'
  /** `accepted`: has signed in to this Project, or has a password that only this Project uses. */
  readonly state: 'invited' | 'accepted'
  readonly lastSignIn: string | undefined
  /** State of the invitation mail in the outbox; undefined: sent, or not requested. */
  readonly mail: 'waiting' | 'kept' | 'failed' | undefined
  /** End of the newest link that is still valid; for accounts of this Project. */
  readonly linkExpires: string | undefined
}

/** Errors: 403; 404 also for clients and bots. */
export async function readAccount(
  services: Services,
  caller: Principal,
  path: MemberPath,
): Promise<Account> {
  const { repository, database } = services
  requireUnlessLimited(caller, ['User', 'read'])
  const user = await readMemberUser(services, caller, path)
  const isOwn = projectOfUser(user) === path.projectId
  const email = typeof user.email === 'string' ? user.email : undefined
  const [logins, mail, linkExpires] = await Promise.all([
    recentLogins(repository, user.id ?? '', LOGINS),
    email === undefined ? undefined : readMailState(database, path.projectId, email),
    isOwn ? findLinkExpiry(services, user) : undefined,
  ])
  // A Project learns nothing of sign-ins to other Projects.
  const lastSignIn = logins.find(
    ({ granted, membership }) =>
      granted === true && referenceIn(membership) === `ProjectMembership/${path.id}`,
  )
  const isAccepted = lastSignIn !== undefined || (isOwn && user.passwordHash !== undefined)
  return {
    email,
    scope: isOwn ? 'project' : 'server',
    state: isAccepted ? 'accepted' : 'invited',
    lastSignIn: lastSignIn && String(lastSignIn.authTime ?? lastSignIn.meta?.lastUpdated),
    mail,
    linkExpires: isAccepted ? undefined : linkExpires,
  }
}

async function readMemberUser(
  services: Services,
  caller: Principal,
  path: MemberPath,
): Promise<Resource> {
  const membership = parseVersion(await readMember(services, caller, path))
  const reference = targetIn(membership.user)
  const user =
    reference?.type === 'User' ? await readUser(services.repository, reference.id) : undefined
  if (user === undefined) throw notFound(NO_ACCOUNT)
  return user
}

async function findLinkExpiry(
  { repository }: Services,
  user: Resource,
): Promise<string | undefined> {
  const requests = await find(repository, system, 'UserSecurityRequest', {
    conditions: [equals('user', 'reference', `User/${user.id}`)],
    count: LOGINS,
  })
  const ends = requests
    .filter(({ type, used }) => type === 'invite' && used !== true)
    .map(({ expires }) => String(expires))
    .filter((expires) => Date.parse(expires) > Date.now())
  return ends.sort().at(-1)
}

interface Invitation {
  /** To set a password; only for accounts of this Project, whose administrators may set passwords anyway. */
  readonly link: string | undefined
  readonly isMailed: boolean
}

/**
 * Makes another link to set a password and mails it. A Project does not see the link of a person with an account on the
 * whole service: it would open their other Projects.
 * Errors: 400 without an address, 403, 404, 409 for a password of this Project.
 */
export async function inviteAgain(
  services: Services,
  caller: Principal,
  path: MemberPath,
  body: Record<string, unknown>,
): Promise<Invitation> {
  const fields = new Fields(body)
  const sendEmail = fields.flag('sendEmail') ?? true
  fields.check()
  const { config, repository, principals } = services
  const project = await administeredProject(
    principals,
    caller,
    path.projectId,
    ['ProjectMembership', 'update'],
    ['User', 'create'],
  )
  const user = await readMemberUser(services, caller, path)
  const isOwn = projectOfUser(user) === project.id
  const { email, id: userId = '' } = user
  if (typeof email !== 'string') throw badRequest('The member has no e-mail address', 'email')
  if (isOwn && user.passwordHash !== undefined && isProven(user)) throw conflict(HAS_PASSWORD)
  if (!isOwn && !sendEmail) throw badRequest('Only a mail may hold this link', 'sendEmail')
  const link = await changeAudited(repository, caller, {
    make: async (inside) => {
      if (!isOwn && isProven(user)) {
        await inside.addMail(project.id, welcomeMail(config, user, project.name))
        return undefined
      }
      const isVoid = await voidCredentials(inside, user)
      const actor = servicePrincipal(SYSTEM_PROJECT, caller)
      const made = await createSecurityRequest(inside, actor, { type: 'invite', user })
      const mail = inviteMail(config, email, { projectName: project.name, link: made, isVoid })
      if (sendEmail || isVoid) await inside.addMail(project.id, mail)
      return isOwn ? passwordUrl(config, made) : undefined
    },
    record: accountChange(project, path, 'invitation'),
  })
  if (!isProven(user)) await revokeUnprovenLogins(services, userId)
  return { link, isMailed: sendEmail }
}

/**
 * Removes a member's lost second factor; the next sign-in asks for another one if it is required. Ends
 * the sessions of the account. Errors: 400 without a second factor, 403 for an account of the whole service, whose other
 * Projects it protects as well; 404.
 */
export async function resetFactor(
  services: Services,
  caller: Principal,
  path: MemberPath,
  body: Record<string, unknown>,
): Promise<void> {
  const fields = new Fields(body)
  fields.oneOf('method', ['totp'])
  fields.check()
  const { project, user } = await openAccount(services, caller, path)
  const { id = '' } = user
  if (projectOfUser(user) !== project.id && !caller.isSuperAdmin) {
    throw forbiddenByPlatform('The account belongs to the whole service: ask its administrators')
  }
  if (user.mfaEnrolled !== true) throw badRequest('User not enrolled in MFA')
  await changeAudited(services.repository, caller, {
    make: (inside) => patchUser(inside, id, { mfaEnrolled: false, mfaSecret: undefined }),
    record: accountChange(project, path, 'mfa'),
  })
  await revokeUserLogins(services, id, () => true)
  await notifyOwner(services, user, 'the second factor was removed')
}

/** Mails a link to set another password; the current one remains valid. Errors: 400, 403, 404, 429. */
export async function mailReset(
  services: Services,
  caller: Principal,
  path: MemberPath,
  body: Record<string, unknown>,
): Promise<void> {
  new Fields(body).check()
  const { config, repository, redis } = services
  const { project, user } = await openAccount(services, caller, path)
  const { email } = user
  if (typeof email !== 'string') throw badRequest('The member has no e-mail address', 'email')
  if (!(await allowLinkMail(redis, user))) throw tooManyRequests(3600)
  await changeAudited(repository, caller, {
    make: async (inside) => {
      const actor = servicePrincipal(SYSTEM_PROJECT, caller)
      const link = await createSecurityRequest(inside, actor, { type: 'reset', user })
      await inside.addMail(project.id, resetMail(config, email, link))
    },
    record: accountChange(project, path, 'password'),
  })
}

/** Errors: 403, 404. */
async function openAccount(services: Services, caller: Principal, path: MemberPath) {
  const rights = ['ProjectMembership', 'User'].map((type) => [type, 'update'] as const)
  const { principals } = services
  const project = await administeredProject(principals, caller, path.projectId, ...rights)
  return { project, user: await readMemberUser(services, caller, path) }
}

function accountChange(project: ProjectContext, { id }: MemberPath, field: string) {
  const target = `ProjectMembership/${id}`
  return { project, interaction: 'operation', target, fields: [field] } as const
}

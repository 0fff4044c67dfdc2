/** The User behind a caller, for actions on the user's own account, and session details. */
import { provenApplicant } from '../access/credentials/hashing.ts'
import { verifyPassword } from '../access/credentials/passwords.ts'
import { withoutHidden } from '../access/fields/fields.ts'
import { effectiveEntries } from '../access/policy.ts'
import { SYSTEM_PROJECT, system } from '../access/project-context.ts'
import { badRequest, HttpError, issue, outcome } from '../core/errors.ts'
import { parseJson } from '../fhir/json.ts'
import { type Resource, referenceTo, targetIn } from '../fhir/resource.ts'
import { checkGuess, requireNoPause, sessionGuess } from '../identity/guesses.ts'
import type { Session } from '../identity/principals.ts'
import { addMail } from '../outbound/mails.ts'
import type { Services } from '../request/services.ts'
import { parseVersion } from '../store/rows/rows.ts'
import { type AccountChange, accountChangedMail } from './mail-texts.ts'
import { projectOfUser } from './users.ts'

/** Returns undefined for programs and for callers acting for another member. */
export function userIdOfSession({ membership, login }: Session): string | undefined {
  const user = targetIn(membership.user)
  return login !== undefined && user?.type === 'User' ? user.id : undefined
}

/**
 * Also undefined where only a Project vouches for a User outside it: its administrators control its bots and identity
 * providers. Reads Login and User fresh, since a session may be some seconds stale.
 */
export async function signedInUser(
  services: Pick<Services, 'repository'>,
  session: Session,
): Promise<Resource | undefined> {
  const { login } = session
  const id = userIdOfSession(session)
  if (id === undefined || login?.id === undefined || login.vouchedBy !== undefined) return undefined
  const [user, current] = await services.repository.readMany(system, [
    { type: 'User', id },
    { type: 'Login', id: login.id },
  ])
  if (user?.content === undefined || current?.content === undefined) return undefined
  const isRevoked = parseVersion(current).revoked === true
  const found = parseVersion(user)
  return isRevoked || hasLostPassword(login, found) ? undefined : found
}

/** True for a password login whose password was removed since (ownership.ts). */
export function hasLostPassword(login: Resource, user: Resource): boolean {
  return login.authMethod === 'password' && user.passwordHash === undefined
}

/** `user`: that of the session, with secrets. Errors: 429. */
export async function isOwnPassword(
  { redis, hashing }: Pick<Services, 'redis' | 'hashing'>,
  user: Resource,
  password: string,
): Promise<boolean> {
  const id = user.id ?? ''
  const guessed = sessionGuess('password', id)
  const stored = typeof user.passwordHash === 'string' ? user.passwordHash : undefined
  await requireNoPause(redis, guessed)
  const found = await hashing.run(provenApplicant(id), () =>
    checkGuess(redis, guessed, id, async () => {
      return (await verifyPassword(password, stored)) ? stored : undefined
    }),
  )
  return found !== undefined
}

export async function notifyOwner(
  { database, config }: Pick<Services, 'database' | 'config'>,
  user: Resource,
  what: AccountChange,
): Promise<void> {
  if (typeof user.email !== 'string') return
  const mail = accountChangedMail(config, user, what)
  await addMail(database, projectOfUser(user) ?? SYSTEM_PROJECT.id, mail)
}

// Changes that take over an account for good (address, second factor) require the person: a sign-in within minutes, or
// the password. https://datatracker.ietf.org/doc/html/rfc9470

const RECENT_SECONDS = 300
/** Interactive logins; token exchanges and bot runs are not. */
const IN_PERSON = new Set<unknown>(['password', 'google', 'external'])

/** True for a recent sign-in; token renewals keep its time. */
export function isRecent(login: Resource | undefined): boolean {
  const startedAt = Date.parse(String(login?.authTime))
  return IN_PERSON.has(login?.authMethod) && Date.now() - startedAt < RECENT_SECONDS * 1000
}

/** Errors: 403 without either proof, 400 for a wrong password, 429 for too many guesses. */
export async function requireReauthentication(
  services: Pick<Services, 'redis' | 'hashing'>,
  login: Resource | undefined,
  user: Resource,
  password: string | undefined,
): Promise<void> {
  if (password === undefined) {
    if (isRecent(login)) return
    throw personNeeded()
  }
  if (await isOwnPassword(services, user, password)) return
  throw badRequest('Incorrect password', 'password')
}

function personNeeded(): HttpError {
  const minutes = RECENT_SECONDS / 60
  const text = `This takes your password, or a sign-in less than ${minutes} minutes ago`
  const challenge = `Bearer error="insufficient_user_authentication", max_age="${RECENT_SECONDS}"`
  return new HttpError(
    403,
    outcome('forbidden', issue('error', 'forbidden', text, { expression: 'password' })),
    {
      cause: 'no recent sign-in',
      headers: { 'WWW-Authenticate': challenge },
    },
  )
}

/**
 * Returns the profile of a session as its member may read it in any scope, without secrets. A profile that the member may
 * not read is reduced to type, id and name, which a sign-in needs.
 */
export async function visibleProfile(
  { principals, repository }: Pick<Services, 'principals' | 'repository'>,
  { principal, membership, profile }: Session,
): Promise<Resource> {
  if (principal.rules === undefined) return withoutHidden(principal, profile)
  const { resourceType, id = '', name } = profile
  const member = await principals.forMembership(membership.id ?? '')
  const [seen] = member
    ? await repository.readMany(member.principal, [{ type: resourceType, id }])
    : []
  if (seen?.content === undefined) return { resourceType, id, name }
  return withoutHidden(principal, parseJson(seen.content) as Resource)
}

/** Leaves secrets out for administrators as well: a bot gets the details as a part of its event. */
export async function sessionDetails(
  services: Pick<Services, 'principals' | 'repository'>,
  session: Session,
) {
  const { project, membership, principal } = session
  return {
    project: {
      resourceType: 'Project',
      id: project.id,
      name: project.name,
      description: project.description,
      strictMode: principal.project.strictMode,
      superAdmin: principal.project.superAdmin,
    },
    membership: {
      resourceType: 'ProjectMembership',
      id: membership.id,
      identifier: membership.identifier,
      user: membership.user,
      profile: membership.profile,
      admin: membership.admin,
    },
    profile: await visibleProfile(services, session),
    config: configurationWithMenu(session),
    accessPolicy: effectivePolicy(session),
  }
}

function effectivePolicy({ principal, policies }: Session) {
  return {
    resourceType: 'AccessPolicy',
    ...(policies.length === 0
      ? {}
      : { basedOn: policies.map((policy) => ({ reference: referenceTo(policy) })) }),
    resource: effectiveEntries(principal),
  }
}

/** Returns the membership's configuration, with the default menu unless it has one. */
function configurationWithMenu({ principal, membership, configuration }: Session) {
  if (configuration?.menu !== undefined) return configuration
  const menu = [{ title: 'Favorites', link: [link('Patient'), link('Practitioner')] }]
  if (membership.admin === true) {
    const admin = [
      { name: 'Project', target: '/admin/project' },
      link('AccessPolicy'),
      link('Bot'),
      link('ClientApplication'),
    ]
    menu.push({ title: 'Admin', link: admin })
  }
  if (principal.isSuperAdmin) {
    menu.push({ title: 'Super Admin', link: [link('Project'), link('User')] })
  }
  return { ...configuration, resourceType: 'UserConfiguration', menu }
}

function link(type: string) {
  return { name: type, target: `/${type}` }
}

export async function createMemberLogin(
  { repository }: Pick<Services, 'repository'>,
  { principal, membership, profile }: Session,
  authMethod: 'execute' | 'client',
): Promise<string> {
  const { id } = await repository.create(system, {
    resourceType: 'Login',
    authMethod,
    authTime: new Date().toISOString(),
    user: { reference: principal.profile },
    project: { reference: `Project/${principal.project.id}` },
    membership: { reference: `ProjectMembership/${membership.id}` },
    profileType: profile.resourceType,
    granted: true,
    scope: principal.scope,
    ...(principal.patient === undefined
      ? {}
      : { patient: { reference: `Patient/${principal.patient}` } }),
  })
  return id
}

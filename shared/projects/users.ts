/**
 * Users: one per e-mail address and scope, which is the platform ("server") or one Project. Users of one address in
 * different scopes are unrelated.
 */
import { hashPassword } from '../access/credentials/passwords.ts'
import type { Principal } from '../access/principal.ts'
import { system } from '../access/project-context.ts'
import { type Resource, referenceTo, targetIn } from '../fhir/resource.ts'
import type { Services } from '../request/services.ts'
import type { Condition } from '../search/language/search-request.ts'
import { equals, exactly, find, readRegistry, searchFor } from '../store/lookups.ts'
import type { Repository } from '../store/repository.ts'
import { parseVersion } from '../store/rows/rows.ts'

const SCOPES = 1000
const MEMBERSHIPS = 1000
const LOGINS_AT_ONCE = 1000
type Changes = Readonly<Record<string, unknown>>

/** Returns the id of the User's Project; undefined for server scoped ones. */
export function projectOfUser(user: Resource): string | undefined {
  return targetIn(user.project)?.id
}

export const EMAIL = /^[^\s@]{1,64}@[^\s@]{1,255}$/

export function normalEmail(email: string): string {
  return email.trim().toLowerCase()
}

/** Finds the User of exactly this scope; server scoped if `projectId` is undefined. One statement. */
export async function findUser(
  repository: Repository,
  email: string,
  projectId: string | undefined,
): Promise<Resource | undefined> {
  const users = await findUsersByEmail(repository, email)
  return users.find((user) => projectOfUser(user) === projectId)
}

/**
 * Finds a User to sign in: in a Project its own, otherwise the server scoped one. Without a Project only server scoped
 * Users are found, which keeps others out of platform tools. One statement.
 */
export async function findUserForSignIn(
  repository: Repository,
  email: string,
  projectId: string | undefined,
): Promise<Resource | undefined> {
  const users = await findUsersByEmail(repository, email)
  const own = users.find((user) => projectId !== undefined && projectOfUser(user) === projectId)
  return own ?? users.find((user) => projectOfUser(user) === undefined)
}

async function findUsersByEmail(repository: Repository, email: string): Promise<Resource[]> {
  const wanted = normalEmail(email)
  const conditions = [exactly('email', wanted)]
  const found = await find(repository, system, 'User', { conditions, count: SCOPES })
  return found.filter((user) => user.email === wanted)
}

interface NewUser {
  readonly firstName: string
  readonly lastName: string
  readonly email?: string | undefined
  readonly externalId?: string | undefined
  readonly projectId?: string | undefined
  /** The result of `hashPassword`; absent: no password sign-in until one is set. */
  readonly passwordHash?: string | undefined
  readonly mfaRequired?: boolean | undefined
  /** True when the creator vouches for address and credentials (ownership.ts). */
  readonly isProven?: boolean
}

/** Errors: 409 for a second User with the address in the scope. One statement. */
export async function createUser(
  repository: Repository,
  actor: Principal,
  { projectId, email, isProven = false, ...rest }: NewUser,
): Promise<Resource> {
  const address = email === undefined ? undefined : normalEmail(email)
  const user = Object.fromEntries(Object.entries(rest).filter(([, value]) => value !== undefined))
  const written = await repository.create(
    actor,
    {
      ...user,
      resourceType: 'User',
      ...(address === undefined ? {} : { email: address }),
      ...(isProven ? { provenEmail: address } : {}),
      ...(projectId === undefined
        ? {}
        : { meta: { project: projectId }, project: { reference: `Project/${projectId}` } }),
    },
    address === undefined ? {} : { unique: [{ scope: projectId ?? 'server', value: address }] },
  )
  return parseVersion(written)
}

/** Reads the User with secrets; undefined when deleted. */
export async function readUser(repository: Repository, id: string): Promise<Resource | undefined> {
  return await readRegistry(repository, 'User', id)
}

/** `change` sees the latest state and may throw. Undefined values remove elements. */
export async function patchUser(
  repository: Repository,
  id: string,
  change: Changes | ((user: Resource) => Changes),
): Promise<void> {
  await repository.patch(system, { type: 'User', id }, (user) => {
    const changes = typeof change === 'function' ? change(user) : change
    const next = Object.entries({ ...user, ...changes }).filter(([, value]) => value !== undefined)
    // Safe: `resourceType` is never among the changes.
    return Object.fromEntries(next) as Resource
  })
}

interface PasswordChange {
  readonly change?: ((user: Resource) => Changes) | undefined
  readonly exceptLogin?: string | undefined
}

/** Ends the User's logins except `exceptLogin`; runs inside `Hashing.run`. The caller has checked the password rules. */
export async function setPassword(
  services: Pick<Services, 'repository' | 'principals'>,
  userId: string,
  password: string,
  { change = () => ({}), exceptLogin }: PasswordChange = {},
): Promise<void> {
  const passwordHash = await hashPassword(password)
  await patchUser(services.repository, userId, (user) => ({ ...change(user), passwordHash }))
  await revokeUserLogins(services, userId, ({ id }) => id !== exceptLogin)
}

/** Revokes matching logins at once, or within 5 s if Redis is unavailable. */
export async function revokeUserLogins(
  { repository }: Pick<Services, 'repository'>,
  userId: string,
  isMeant: (login: Resource) => boolean,
): Promise<void> {
  for (let offset = 0; ; offset += LOGINS_AT_ONCE) {
    // Ids are immutable, so that order skips none.
    const sort = [{ code: '_id', descending: false }]
    const request = searchFor('Login', [ofUser(userId)], LOGINS_AT_ONCE, sort)
    const { versions } = await repository.search(system, { ...request, offset })
    const live = versions
      .map(parseVersion)
      .filter((login) => login.revoked !== true && isMeant(login))
    for (const { id = '' } of live) {
      await repository.patch(system, { type: 'Login', id }, (login) => ({
        ...login,
        revoked: true,
      }))
    }
    if (versions.length < LOGINS_AT_ONCE) return
  }
}

/** Returns the memberships in all Projects, also inactive ones. One statement. */
export async function findMemberships(repository: Repository, user: Resource): Promise<Resource[]> {
  const conditions = [equals('user', 'reference', referenceTo(user))]
  return await find(repository, system, 'ProjectMembership', { conditions, count: MEMBERSHIPS })
}

/** Newest first. One statement. */
export async function recentLogins(
  repository: Repository,
  userId: string,
  count: number,
): Promise<Resource[]> {
  const sort = [{ code: '_lastUpdated', descending: true }]
  return await find(repository, system, 'Login', { conditions: [ofUser(userId)], count, sort })
}

function ofUser(userId: string): Condition {
  return equals('user', 'reference', `User/${userId}`)
}

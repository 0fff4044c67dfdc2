/**
 * Users: one for an e-mail address in one scope, which is the platform ("server") or one Project. Users
 * of equal address in different scopes have nothing to do with each other.
 */
import { hashPassword } from '../access/passwords.ts'
import { type Principal, systemPrincipal } from '../access/principal.ts'
import { parseReference, type Resource, referenceTo } from '../fhir/resource.ts'
import { escapeValue } from '../fhir/search-values.ts'
import type { Services } from '../services.ts'
import { find } from '../store/lookups.ts'
import { referenceIn } from '../store/memberships.ts'
import { SYSTEM_PROJECT } from '../store/projects.ts'
import type { Repository } from '../store/repository.ts'
import { parseVersion } from '../store/rows.ts'

const system = systemPrincipal(SYSTEM_PROJECT)
/** More users of one address than this: in so many Projects nobody works. */
const SCOPES = 1000
const LOGINS_AT_ONCE = 1000

/** Id of the Project a User is scoped to; undefined for server scoped ones. */
export function projectOfUser(user: Resource): string | undefined {
  return parseReference(referenceIn(user.project))?.id
}

export function normalEmail(email: string): string {
  return email.trim().toLowerCase()
}

/** The User of exactly this scope; `projectId` undefined is server scoped. One statement. */
export async function findUser(
  repository: Repository,
  email: string,
  projectId: string | undefined,
): Promise<Resource | undefined> {
  const users = await usersOf(repository, email)
  return users.find((user) => projectOfUser(user) === projectId)
}

/**
 * Who signs in: in a known Project its own User, else the server scoped one. Without a Project only
 * server scoped Users exist, which keeps all others out of the platform's tools. One statement.
 */
export async function findUserForSignIn(
  repository: Repository,
  email: string,
  projectId: string | undefined,
): Promise<Resource | undefined> {
  const users = await usersOf(repository, email)
  const own = users.find((user) => projectId !== undefined && projectOfUser(user) === projectId)
  return own ?? users.find((user) => projectOfUser(user) === undefined)
}

async function usersOf(repository: Repository, email: string): Promise<Resource[]> {
  const wanted = normalEmail(email)
  const values = [escapeValue(wanted)]
  const condition = { code: 'email', type: 'string', modifier: 'exact', values } as const
  const found = await find(repository, system, 'User', [condition], SCOPES)
  return found.filter((user) => user.email === wanted)
}

export interface NewUser {
  readonly firstName: string
  readonly lastName: string
  readonly email?: string | undefined
  /** Subject at an external identity provider. */
  readonly externalId?: string | undefined
  /** Absent: server scoped. */
  readonly projectId?: string | undefined
  /** Of `hashPassword`; absent: nobody can sign in by password until one is set. */
  readonly passwordHash?: string | undefined
  readonly mfaRequired?: boolean | undefined
}

/** Errors: 409 for a second User of one address in one scope. One statement. */
export async function createUser(
  repository: Repository,
  actor: Principal,
  { projectId, email, ...rest }: NewUser,
): Promise<Resource> {
  const address = email === undefined ? undefined : normalEmail(email)
  const user = Object.fromEntries(Object.entries(rest).filter(([, value]) => value !== undefined))
  const written = await repository.create(
    actor,
    {
      ...user,
      resourceType: 'User',
      ...(address === undefined ? {} : { email: address }),
      ...(projectId === undefined
        ? {}
        : { meta: { project: projectId }, project: { reference: `Project/${projectId}` } }),
    },
    address === undefined ? {} : { unique: [{ scope: projectId ?? 'server', value: address }] },
  )
  return parseVersion(written)
}

/** The User with secrets, as the service itself reads it; undefined when it is gone. */
export async function readUser(repository: Repository, id: string): Promise<Resource | undefined> {
  const [found] = await repository.readMany(system, [{ type: 'User', id }])
  return found?.content === undefined ? undefined : parseVersion(found)
}

export async function patchUser(
  repository: Repository,
  id: string,
  changes: Readonly<Record<string, unknown>>,
): Promise<void> {
  await repository.patch(system, 'User', id, (user) => {
    const next = Object.entries({ ...user, ...changes }).filter(([, value]) => value !== undefined)
    // Safe: `resourceType` is never among the changes.
    return Object.fromEntries(next) as Resource
  })
}

/** Ends the User's logins, except `keptLogin`. The caller has looked at the rules of passwords. */
export async function setPassword(
  services: Pick<Services, 'repository' | 'principals'>,
  userId: string,
  password: string,
  changes: { readonly emailVerified?: true } = {},
  keptLogin?: string,
): Promise<void> {
  const passwordHash = await hashPassword(password)
  await patchUser(services.repository, userId, { passwordHash, ...changes })
  await revokeLoginsOf(services, userId, keptLogin)
}

/** In force at once in this process, within 5 s in the others. */
export async function revokeLoginsOf(
  { repository, principals }: Pick<Services, 'repository' | 'principals'>,
  userId: string,
  keptLogin?: string,
): Promise<void> {
  const logins = await loginsOf(repository, userId, LOGINS_AT_ONCE)
  const ids = logins.flatMap(({ id, revoked }) =>
    revoked === true || id === undefined || id === keptLogin ? [] : [id],
  )
  for (const id of ids) {
    await repository.patch(system, 'Login', id, (login) => ({ ...login, revoked: true }))
    principals.forget(id)
  }
}

/** The newest first. One statement. */
export async function loginsOf(
  repository: Repository,
  userId: string,
  count: number,
): Promise<Resource[]> {
  const values = [referenceTo({ resourceType: 'User', id: userId })]
  const condition = { code: 'user', type: 'reference', modifier: undefined, values } as const
  const sort = [{ code: '_lastUpdated', descending: true }]
  return await find(repository, system, 'Login', [condition], count, sort)
}

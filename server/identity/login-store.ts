/** Stores Logins, which codes and tokens refer to, and creates their secrets. States: `login-states.ts`. */

import { hash, randomBytes } from 'node:crypto'
import { CLI_CLIENT, isSameSecret } from '../../shared/access/credentials/clients.ts'
import { system } from '../../shared/access/project-context.ts'
import { badRequest } from '../../shared/core/errors.ts'
import { uuidFromBytes, uuidToBytes } from '../../shared/core/uuid.ts'
import { type Resource, targetIn } from '../../shared/fhir/resource.ts'
import type { Session } from '../../shared/identity/principals.ts'
import type { Services } from '../../shared/request/services.ts'
import { readRegistry } from '../../shared/store/lookups.ts'
import { parseVersion } from '../../shared/store/rows/rows.ts'
import type { Context } from '../http/context.ts'
import { revoke, signInProblem, type Transition } from './login-states.ts'

export const UNGRANTED_MS = 600_000
/** The command line tool has neither secret nor challenge. */
const CLI_LOGIN_MS = 60_000
const SECRET_BYTES = 32

export async function createLogin(
  { repository }: Services,
  ctx: Context,
  elements: Readonly<Record<string, unknown>>,
): Promise<Resource> {
  const userAgent = ctx.get('User-Agent').slice(0, 512) || undefined
  const all = { ...elements, remoteAddress: ctx.ip, userAgent }
  const given = Object.entries(all).filter(([, value]) => value !== undefined)
  return parseVersion(
    await repository.create(system, { ...Object.fromEntries(given), resourceType: 'Login' }),
  )
}

export async function createClientLogin(
  services: Services,
  ctx: Context,
  { principal, membership }: Session,
  scope: string,
): Promise<Resource> {
  const client = { reference: principal.profile }
  return await createLogin(services, ctx, {
    authMethod: 'client',
    authTime: new Date().toISOString(),
    user: client,
    client,
    project: { reference: `Project/${principal.project.id}` },
    membership: { reference: `ProjectMembership/${membership.id}` },
    profileType: 'ClientApplication',
    granted: true,
    scope,
  })
}

export async function readLogin(
  { repository }: Services,
  id: string,
): Promise<Resource | undefined> {
  return await readRegistry(repository, 'Login', id)
}

/**
 * Runs a transition under the lock of the Login and stores its result. Errors: the result of `refuse` for a problem.
 */
export async function changeLogin(
  { repository }: Pick<Services, 'repository'>,
  login: Resource,
  transition: (current: Resource) => Transition,
  refuse: (problem: string) => Error = (problem) => badRequest(problem, 'login'),
): Promise<Resource> {
  let problem: string | undefined
  const target = { type: 'Login', id: login.id ?? '' }
  const written = await repository.patch(system, target, (current) => {
    const next = transition(current)
    problem = next.problem
    if (next.login === undefined) throw refuse(next.problem)
    return next.login
  })
  if (problem !== undefined) throw refuse(problem)
  return parseVersion(written)
}

/** Revokes at once, within 5 s if Redis is unavailable. A missing Login counts as revoked. */
export async function revokeLogin(services: Services, login: Resource): Promise<void> {
  await changeLogin(services, login, revoke)
}

/** Requires a Login whose sign-in is open. Errors: 400. */
export function requireOpen(login: Resource): void {
  const problem = signInProblem(login)
  if (problem !== undefined) throw badRequest(problem, 'login')
}

/** Returns the expiry of a new Login, unless it is granted before. */
export function loginExpiry(clientId: string | undefined): string {
  const lifetimeMs = clientId === CLI_CLIENT.id ? CLI_LOGIN_MS : UNGRANTED_MS
  return new Date(Date.now() + lifetimeMs).toISOString()
}

export function loginClientId(login: Resource): string | undefined {
  return targetIn(login.client)?.id
}

export function loginUserId(login: Resource): string | undefined {
  const user = targetIn(login.user)
  return user?.type === 'User' ? user.id : undefined
}

/** Creates a code, cookie or refresh token: the Login's id for lookup, and 256 random bits, stored only as a digest. */
export function newLoginSecret(loginId: string): string {
  const id = uuidToBytes(loginId)
  return Buffer.concat([id, randomBytes(SECRET_BYTES)]).toString('base64url')
}

/** Returns the Login whose code or cookie this is. */
export async function loginBySecret(
  services: Services,
  element: 'code' | 'cookie',
  secret: string,
): Promise<Resource | undefined> {
  if (!/^[\w-]{64}$/.test(secret)) return undefined
  const login = await readLogin(services, uuidFromBytes(Buffer.from(secret, 'base64url')))
  return matchesDigest(login?.[element], secret) ? login : undefined
}

export function hashSecret(secret: string): string {
  return hash('sha256', secret)
}

/** `digest` is a result of `hashSecret`; any other value never matches. */
export function matchesDigest(digest: unknown, secret: string): boolean {
  return typeof digest === 'string' && isSameSecret(digest, hashSecret(secret))
}

/** Links that prove an e-mail address: to set a first or a new password, or to verify the address. */
import { randomBytes, timingSafeEqual } from 'node:crypto'
import { type Principal, systemPrincipal } from '../access/principal.ts'
import { badRequest, notFound } from '../errors.ts'
import { parseReference, type Resource, referenceTo } from '../fhir/resource.ts'
import type { Services } from '../services.ts'
import { referenceIn } from '../store/memberships.ts'
import { SYSTEM_PROJECT } from '../store/projects.ts'
import type { Repository } from '../store/repository.ts'
import { parseVersion } from '../store/rows.ts'
import { projectOfUser } from './users.ts'

export type SecurityRequestType = 'invite' | 'reset' | 'verify-email'

/** What a link is made of: `…/setpassword/<id>/<secret>`. */
export interface SecurityRequest {
  readonly id: string
  readonly secret: string
}

const system = systemPrincipal(SYSTEM_PROJECT)
const DAY_MS = 86_400_000
const LIFETIME_MS: Readonly<Record<SecurityRequestType, number>> = {
  invite: 7 * DAY_MS,
  'verify-email': DAY_MS,
  reset: DAY_MS / 24,
}
const WRONG_SECRETS = 5

/** In the Project that the User is scoped to; that of a server scoped User is in none. One statement. */
export async function createSecurityRequest(
  repository: Repository,
  actor: Principal,
  type: SecurityRequestType,
  user: Resource,
  redirectUri?: string,
): Promise<SecurityRequest> {
  const secret = randomBytes(16).toString('hex')
  const projectId = projectOfUser(user)
  const { id } = await repository.create(actor, {
    resourceType: 'UserSecurityRequest',
    ...(projectId === undefined ? {} : { meta: { project: projectId } }),
    type,
    user: { reference: referenceTo(user) },
    secret,
    expires: new Date(Date.now() + LIFETIME_MS[type]).toISOString(),
    ...(redirectUri === undefined ? {} : { redirectUri }),
  })
  return { id, secret }
}

/**
 * Uses a request up and answers the id of its User; of two callers at a time one succeeds. The fifth
 * wrong secret uses it up, too. Errors: 404, 400.
 */
export async function redeemSecurityRequest(
  { repository, redis }: Pick<Services, 'repository' | 'redis'>,
  id: string,
  secret: string,
  types: readonly SecurityRequestType[],
): Promise<string> {
  const [found] = await repository.readMany(system, [{ type: 'UserSecurityRequest', id }])
  if (found?.content === undefined) throw notFound()
  const request = parseVersion(found)
  requireLive(request, types)
  if (!isSame(String(request.secret ?? ''), secret)) {
    const key = `botica:wrong-secrets:${id}`
    const wrong = await redis.incr(key)
    if (wrong === 1) await redis.expire(key, (7 * DAY_MS) / 1000)
    if (wrong >= WRONG_SECRETS) await useUp(repository, id, types)
    throw badRequest('Incorrect secret', 'secret')
  }
  await useUp(repository, id, types)
  const user = parseReference(referenceIn(request.user))
  if (user?.type !== 'User') throw badRequest('Invalid request type', 'id')
  return user.id
}

function requireLive(request: Resource, types: readonly SecurityRequestType[]): void {
  if (!types.some((type) => type === request.type)) throw badRequest('Invalid request type', 'id')
  if (request.used === true) throw badRequest('Already used', 'id')
  if (Date.parse(String(request.expires)) < Date.now()) throw badRequest('Expired', 'id')
}

/** Its secret is worth nothing any more and goes with it. */
async function useUp(
  repository: Repository,
  id: string,
  types: readonly SecurityRequestType[],
): Promise<void> {
  await repository.patch(system, 'UserSecurityRequest', id, (request) => {
    requireLive(request, types)
    const { secret: _, ...rest } = request
    return { ...rest, resourceType: request.resourceType, used: true }
  })
}

function isSame(stored: string, given: string): boolean {
  const wanted = Buffer.from(stored)
  const found = Buffer.from(given)
  return wanted.length > 0 && wanted.length === found.length && timingSafeEqual(wanted, found)
}

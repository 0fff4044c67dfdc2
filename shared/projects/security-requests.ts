/** Links that prove an e-mail address, to set a password or verify the address. */
import { randomBytes } from 'node:crypto'
import { isSameSecret } from '../access/credentials/clients.ts'
import type { Principal } from '../access/principal.ts'
import { system } from '../access/project-context.ts'
import { badRequest, notFound } from '../core/errors.ts'
import { type Resource, referenceTo, targetIn } from '../fhir/resource.ts'
import { countEvent } from '../redis/limiter.ts'
import type { Redis } from '../redis/redis.ts'
import type { Services } from '../request/services.ts'
import { readRegistry } from '../store/lookups.ts'
import type { Repository } from '../store/repository.ts'
import { projectOfUser } from './users.ts'

type SecurityRequestType = 'invite' | 'reset' | 'verify-email'

/** The parts of a link: `…/setpassword/<id>/<secret>`, and the Project of its User, if any. */
export interface SecurityLink {
  readonly id: string
  readonly secret: string
  readonly accountProject: string | undefined
}

const DAY_MS = 86_400_000
const LIFETIME_MS: Readonly<Record<SecurityRequestType, number>> = {
  invite: 7 * DAY_MS,
  'verify-email': DAY_MS,
  reset: DAY_MS / 24,
}
const SECRETS = 5
const MAILS_AN_HOUR = 3

interface NewSecurityRequest {
  readonly type: SecurityRequestType
  readonly user: Resource
  readonly redirectUri?: string | undefined
}

/** Stored in the User's Project; in none for server scoped Users. One statement. */
export async function createSecurityRequest(
  repository: Repository,
  actor: Principal,
  { type, user, redirectUri }: NewSecurityRequest,
): Promise<SecurityLink> {
  const secret = randomBytes(16).toString('hex')
  const projectId = projectOfUser(user)
  const { id } = await repository.create(actor, {
    resourceType: 'UserSecurityRequest',
    ...(projectId === undefined ? {} : { meta: { project: projectId } }),
    type,
    user: { reference: referenceTo(user) },
    ...(typeof user.email === 'string' ? { email: user.email } : {}),
    secret,
    expires: new Date(Date.now() + LIFETIME_MS[type]).toISOString(),
    ...(redirectUri === undefined ? {} : { redirectUri }),
  })
  return { id, secret, accountProject: projectId }
}

/** Counts a mailed link, and returns false above the hourly limit of the User. */
export async function allowLinkMail(redis: Redis, user: Resource): Promise<boolean> {
  return (await countEvent(redis, `botica:resets:${user.id}`, 3600)) <= MAILS_AN_HOUR
}

/** The User of a redeemed link, and the address it was mailed to. */
interface Redeemed {
  readonly userId: string
  readonly email: string | undefined
}

/**
 * Redeems a request and returns its User; of two concurrent calls one succeeds. The fifth wrong secret invalidates it.
 * Errors: 404, 400.
 */
export async function redeemSecurityRequest(
  { repository, redis }: Pick<Services, 'repository' | 'redis'>,
  id: string,
  secret: string,
  types: readonly SecurityRequestType[],
): Promise<Redeemed> {
  const request = await readRegistry(repository, 'UserSecurityRequest', id)
  if (request === undefined) throw notFound()
  requireLive(request, types)
  // Counted before the comparison, so that parallel guesses gain nothing.
  const tries = await countEvent(redis, `botica:secrets:${id}`, LIFETIME_MS.invite / 1000)
  if (tries > SECRETS) throw badRequest('Already used', 'id')
  if (typeof request.secret !== 'string' || !isSameSecret(request.secret, secret)) {
    if (tries === SECRETS) await consumeRequest(repository, id, types)
    throw badRequest('Incorrect secret', 'secret')
  }
  await consumeRequest(repository, id, types)
  const user = targetIn(request.user)
  if (user?.type !== 'User') throw badRequest('Invalid request type', 'id')
  return { userId: user.id, email: typeof request.email === 'string' ? request.email : undefined }
}

/** A link proves the address it was mailed to, not a later one. Errors: 400. */
export function requireSameAddress(user: Resource, { email }: Redeemed): void {
  if (user.email !== email) throw badRequest('Expired', 'id')
}

function requireLive(request: Resource, types: readonly SecurityRequestType[]): void {
  if (!types.some((type) => type === request.type)) throw badRequest('Invalid request type', 'id')
  if (request.used === true) throw badRequest('Already used', 'id')
  if (Date.parse(String(request.expires)) < Date.now()) throw badRequest('Expired', 'id')
}

/** Deletes the request with its secret. */
async function consumeRequest(
  repository: Repository,
  id: string,
  types: readonly SecurityRequestType[],
): Promise<void> {
  await repository.patch(system, { type: 'UserSecurityRequest', id }, (request) => {
    requireLive(request, types)
    const { secret: _, ...rest } = request
    return { ...rest, resourceType: request.resourceType, used: true }
  })
}

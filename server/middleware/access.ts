/** Checks a caller against the access mark of a route. */

import { secretMatches } from '../../shared/access/credentials/clients.ts'
import { type Area, requireArea } from '../../shared/access/grant.ts'
import type { Principal } from '../../shared/access/principal.ts'
import { forbidden, forbiddenByPlatform, tooManyRequests } from '../../shared/core/errors.ts'
import type { Resource } from '../../shared/fhir/resource.ts'
import { retryAfterSeconds } from '../../shared/redis/limiter.ts'
import type { Services } from '../../shared/request/services.ts'
import { caller, type Middleware } from '../http/context.ts'

/** Routes without a token. With `address` and `secret` the handler checks another proof. */
const OPEN = {
  public: true,
  /** The URL is the proof: it contains a signature or a secret id. */
  address: true,
  /** Client credentials, or the token of the scraper. */
  secret: true,
} as const

interface Check {
  /** Required scope of the login. */
  readonly area?: Area
  readonly isMet?: (principal: Principal) => boolean
}

/** The handler checks which Project an administrator administers, and super administrators restricted by a policy. */
const CHECKED = {
  'signed-in': {},
  /** Callers read or change their own sign-in. */
  account: { area: 'account' },
  administrator: {
    area: 'administration',
    isMet: ({ isProjectAdmin, isSuperAdmin }) => isProjectAdmin || isSuperAdmin,
  },
  'super-administrator': { area: 'administration', isMet: ({ isSuperAdmin }) => isSuperAdmin },
} as const satisfies Readonly<Record<string, Check>>

export type Access = keyof typeof OPEN | keyof typeof CHECKED

export function isOpen(access: Access): access is keyof typeof OPEN {
  return Object.hasOwn(OPEN, access)
}

/** Authenticates callers of all routes not marked as open. Throws for a route without a mark. Errors: 401, 403, 429. */
export function requireAccess(authenticate: Middleware, access: Access): Middleware {
  if (isOpen(access)) return (_ctx, next) => next()
  if (!Object.hasOwn(CHECKED, access)) throw new Error(`A route carries no mark: ${String(access)}`)
  const { area, isMet }: Check = CHECKED[access]
  return (ctx, next) =>
    authenticate(ctx, () => {
      const { principal } = caller(ctx)
      if (area !== undefined) requireArea(principal, area)
      if (isMet?.(principal) === false) throw forbidden()
      if (isMet !== undefined && principal.declared !== undefined) {
        throw forbiddenByPlatform('A Bot that names its secrets or hosts administers nothing')
      }
      return next()
    })
}

// Client secrets. Wrong ones are counted by client and address, so that guessing does not block other addresses. The
// count is kept in this process first (limiter.ts), so that a correct one needs no Redis command.

const WRONG_PER_MINUTE = 60

/** `address` comes from `rateLimitAddress`. Errors: 429 after too many wrong ones in a minute. */
export function verifyClientSecret(
  { wrongSecrets }: Services,
  client: Resource,
  secret: string,
  address: string,
): boolean {
  const key = `${client.id}:${address}`
  const { remaining, resetMs } = wrongSecrets.spend(key, 0, WRONG_PER_MINUTE)
  if (remaining <= 0) throw tooManyRequests(retryAfterSeconds(resetMs))
  const isRight = secretMatches(client, secret)
  if (!isRight) wrongSecrets.spend(key, 1, WRONG_PER_MINUTE)
  return isRight
}

/** Checks a caller against the mark that a route carries in its own line. */

import { secretMatches } from '../../shared/access/credentials/clients.ts'
import { type Area, requireArea } from '../../shared/access/grant.ts'
import type { Principal } from '../../shared/access/principal.ts'
import { forbidden, tooManyRequests } from '../../shared/core/errors.ts'
import type { Resource } from '../../shared/fhir/resource.ts'
import { retryAfterSeconds } from '../../shared/redis/limiter.ts'
import type { Services } from '../../shared/request/services.ts'
import { caller, type Middleware } from '../http/context.ts'

/** These ask for no token. Behind `address` and `secret` the handler checks another proof. */
const OPEN = {
  public: true,
  /** The address itself is the proof: it carries a signature or a secret id. */
  address: true,
  /** A client's own credentials, or the token of the scraper. */
  secret: true,
} as const

interface Check {
  /** The scope of the login has to reach it. */
  readonly area?: Area
  readonly isMet?: (principal: Principal) => boolean
}

/** The handler checks which Project an administrator administers, and what a policy leaves to a super administrator. */
const CHECKED = {
  'signed-in': {},
  /** Callers change or read how they themselves sign in. */
  account: { area: 'account' },
  administrator: {
    area: 'administration',
    isMet: ({ isProjectAdmin, isSuperAdmin }) => isProjectAdmin || isSuperAdmin,
  },
  'super-administrator': { area: 'administration', isMet: ({ isSuperAdmin }) => isSuperAdmin },
} as const satisfies Readonly<Record<string, Check>>

/** The mark of a route that says who may call it. */
export type Access = keyof typeof OPEN | keyof typeof CHECKED

export function isOpen(access: Access): access is keyof typeof OPEN {
  return Object.hasOwn(OPEN, access)
}

/** Authenticates whatever is not marked as open. Throws for a route without a mark. Errors: 401, 403, 429. */
export function requireAccess(authenticate: Middleware, access: Access): Middleware {
  if (isOpen(access)) return (_ctx, next) => next()
  if (!Object.hasOwn(CHECKED, access)) throw new Error(`A route carries no mark: ${String(access)}`)
  const { area, isMet }: Check = CHECKED[access]
  return (ctx, next) =>
    authenticate(ctx, () => {
      const { principal } = caller(ctx)
      if (area !== undefined) requireArea(principal, area)
      if (isMet?.(principal) === false) throw forbidden()
      return next()
    })
}

// Secrets of clients at the door. Wrong ones are counted by client and address, so that whoever guesses pauses nobody
// elsewhere; the count is this process' own first (limiter.ts), so that a right one costs no command of Redis.

const WRONG_PER_MINUTE = 60

/** `address` as of `addressOf`. Errors: 429 after too many wrong ones in a minute. */
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

/**
 * Requests per minute and address. Each process counts for itself and tells Redis only after every
 * hundredth of the limit, in the background, so that no request waits for Redis; processes together
 * may let through that much more than the limit. While Redis is away each counts alone.
 */
import { isIPv6 } from 'node:net'
import { LRUCache } from 'lru-cache'
import type { Config } from '../../shared/config.ts'
import { tooManyRequests } from '../../shared/errors.ts'
import type { Logger } from '../../shared/log.ts'
import type { Redis } from '../../shared/redis.ts'
import type { Middleware } from '../context.ts'

const WINDOW_MS = 60_000
const TRACKED_ADDRESSES = 50_000
const SHARES = 100

export interface Limiter {
  readonly limit: number
  /** Counts one request; answers what is left, negative beyond the limit. */
  spend(address: string, now: number): { readonly left: number; readonly resetMs: number }
}

interface Count {
  readonly window: number
  own: number
  /** How many of `own` Redis knows. */
  told: number
  others: number
  telling: boolean
}

/** `name` keeps the counts of several limiters apart in Redis. */
export function createLimiter(name: string, limit: number, redis: Redis, log: Logger): Limiter {
  const counts = new LRUCache<string, Count>({ max: TRACKED_ADDRESSES })
  const share = Math.max(1, Math.floor(limit / SHARES))

  const tell = async (address: string, count: Count): Promise<void> => {
    const telling = count.own - count.told
    const key = `botica:limit:${name}:${address}:${count.window}`
    const replies = await redis
      .multi()
      .incrby(key, telling)
      .pexpire(key, 2 * WINDOW_MS)
      .exec()
    count.told += telling
    count.others = Math.max(0, Number(replies?.[0]?.[1] ?? count.told) - count.told)
  }

  return {
    limit,
    spend(address, now) {
      const window = Math.floor(now / WINDOW_MS)
      const known = counts.get(address)
      const count =
        known?.window === window ? known : { window, own: 0, told: 0, others: 0, telling: false }
      if (count !== known) counts.set(address, count)
      count.own += 1
      const isDue = count.told === 0 || count.own - count.told >= share
      if (isDue && !count.telling) {
        count.telling = true
        tell(address, count)
          .catch((error: Error) => log.debug({ reason: error.message }, 'Limits are not shared'))
          .finally(() => {
            count.telling = false
          })
      }
      const left = limit - count.own - count.others
      return { left, resetMs: (window + 1) * WINDOW_MS - now }
    },
  }
}

/** Errors: 429 with RateLimit and Retry-After. A limit of 0 is none. */
export function limits(config: Config, redis: Redis, log: Logger): Middleware {
  const general = createLimiter('requests', config.rateLimitPerMinute, redis, log)
  const sensitive = createLimiter('auth', config.authRateLimitPerMinute, redis, log)
  return async (ctx, next) => {
    const limiter = isSensitive(ctx.path) ? sensitive : general
    if (limiter.limit > 0) {
      const { left, resetMs } = limiter.spend(addressOf(ctx.ip), Date.now())
      const seconds = Math.max(1, Math.ceil(resetMs / 1000))
      // The SDK parses exactly this form: quoted name, remaining, seconds.
      ctx.set('RateLimit', `"requests";r=${Math.max(0, left)};t=${seconds}`)
      if (left < 0) {
        const diagnostics = JSON.stringify({ msBeforeNext: resetMs, limit: limiter.limit })
        throw tooManyRequests(seconds, diagnostics)
      }
    }
    await next()
  }
}

function isSensitive(path: string): boolean {
  return /^\/(auth|oauth2)\//.test(path) && path !== '/auth/me'
}

/** One subscriber owns a whole /64 of IPv6, so that is what is counted. */
export function addressOf(ip: string): string {
  const plain = ip.replace(/^::ffff:(?=\d+\.)/i, '')
  if (!isIPv6(plain)) return plain
  const [head = '', tail] = plain.split('::')
  const before = head === '' ? [] : head.split(':')
  const after = tail === undefined || tail === '' ? [] : tail.split(':')
  const zeros = tail === undefined ? 0 : 8 - before.length - after.length
  const groups = [...before, ...Array<string>(zeros).fill('0'), ...after]
  return `${groups.slice(0, 4).join(':')}::/64`
}

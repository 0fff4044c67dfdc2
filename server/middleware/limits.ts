/** Requests per minute and address. */
import { isIPv6 } from 'node:net'
import type { Config } from '../../shared/config.ts'
import { tooManyRequests } from '../../shared/errors.ts'
import { createLimiter, rateLimitItem, secondsOf } from '../../shared/limiter.ts'
import type { Logger } from '../../shared/log.ts'
import type { Redis } from '../../shared/redis.ts'
import type { Middleware } from '../context.ts'

/** Errors: 429 with RateLimit and Retry-After. A limit of 0 is none. */
export function limits(config: Config, redis: Redis, log: Logger): Middleware {
  const general = createLimiter('requests', redis, log)
  const sensitive = createLimiter('auth', redis, log)
  const { rateLimitPerMinute, authRateLimitPerMinute } = config
  return async (ctx, next) => {
    const [limiter, limit] = isSensitive(ctx.path)
      ? [sensitive, authRateLimitPerMinute]
      : [general, rateLimitPerMinute]
    if (limit > 0) {
      const spent = limiter.spend(addressOf(ctx.ip), 1, limit)
      ctx.set('RateLimit', rateLimitItem('requests', spent))
      if (spent.left < 0) {
        const diagnostics = JSON.stringify({ msBeforeNext: spent.resetMs, limit })
        throw tooManyRequests(secondsOf(spent.resetMs), diagnostics)
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

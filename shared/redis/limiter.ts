/**
 * Per-minute rate limits. Processes sync to Redis in the background after each hundredth of the limit, so no request
 * waits for Redis. Without Redis each process counts alone.
 */
import { Cache } from '../core/cache.ts'
import type { Logger } from '../core/log.ts'
import type { Redis } from './redis.ts'

const WINDOW_MS = 60_000
const TRACKED = 50_000
const SHARES = 100

export interface RateLimitState {
  /** Negative beyond the limit. */
  readonly remaining: number
  readonly resetMs: number
}

export interface Limiter {
  /** Counts `units` for `key`, including units beyond the limit. */
  spend(key: string, units: number, limit: number): RateLimitState
}

interface Count {
  readonly window: number
  own: number
  sent: number
  others: number
  isSending: boolean
}

/** `name` separates the counts of limiters in Redis. */
export function createLimiter(name: string, redis: Redis, log: Logger): Limiter {
  const counts = new Cache<string, Count>({ name: `limits-${name}`, max: TRACKED })

  const publish = async (of: string, count: Count): Promise<void> => {
    const units = count.own - count.sent
    const key = `botica:limit:${name}:${of}:${count.window}`
    const replies = await redis
      .multi()
      .incrby(key, units)
      .pexpire(key, 2 * WINDOW_MS)
      .exec()
    count.sent += units
    count.others = Math.max(0, Number(replies?.[0]?.[1] ?? count.sent) - count.sent)
  }

  return {
    spend(key, units, limit) {
      const now = Date.now()
      const window = Math.floor(now / WINDOW_MS)
      const known = counts.get(key)
      const count =
        known?.window === window ? known : { window, own: 0, sent: 0, others: 0, isSending: false }
      if (count !== known) counts.set(key, count)
      count.own += units
      const share = Math.max(1, Math.floor(limit / SHARES))
      const isDue = count.sent === 0 || count.own - count.sent >= share
      if (isDue && units > 0 && !count.isSending) {
        count.isSending = true
        publish(key, count)
          .catch((error: Error) => log.debug({ reason: error.message }, 'Limits are not shared'))
          .finally(() => {
            count.isSending = false
          })
      }
      const left = limit - count.own - count.others
      return { remaining: left, resetMs: (window + 1) * WINDOW_MS - now }
    },
  }
}

/** One item of a `RateLimit` header. The SDK parses exactly this form: quoted name, remaining, seconds. */
export function rateLimitItem(name: string, { remaining, resetMs }: RateLimitState): string {
  return `"${name}";r=${Math.max(0, remaining)};t=${retryAfterSeconds(resetMs)}`
}

export function retryAfterSeconds(resetMs: number): number {
  return Math.max(1, Math.ceil(resetMs / 1000))
}

/** Counts an event of a key in a window of `seconds` from the first; returns a unique number to each caller. */
export async function countEvent(redis: Redis, key: string, seconds: number): Promise<number> {
  const replies = await redis.multi().set(key, 0, 'EX', seconds, 'NX').incr(key).exec()
  return Number(replies?.[1]?.[1] ?? 0)
}

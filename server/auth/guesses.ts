/**
 * Wrong guesses are counted in Redis, where all processes see them. An account answers 429 after ten
 * in 15 minutes, for a minute first and twice as long each time after, never for good; an address
 * after a hundred over all accounts.
 */
import { tooManyRequests } from '../../shared/errors.ts'
import type { Redis } from '../../shared/redis.ts'
import { addressOf } from '../middleware/limits.ts'

const WINDOW_SECONDS = 900
const ACCOUNT_GUESSES = 10
const ADDRESS_GUESSES = 100
const FIRST_PAUSE_SECONDS = 60
const LONGEST_PAUSE_SECONDS = 900

export interface Guesses {
  /** Before the password is looked at. Errors: 429. */
  check(account: string, ip: string): Promise<void>
  failed(account: string, ip: string): Promise<void>
  /** A right one forgives the account. */
  succeeded(account: string): Promise<void>
}

export function createGuesses(redis: Redis): Guesses {
  return {
    async check(account, ip) {
      const [pause, others, rest] = await Promise.all([
        redis.ttl(pauseKey(account)),
        redis.get(addressKey(ip)),
        redis.ttl(addressKey(ip)),
      ])
      if (pause > 0) throw tooManyRequests(pause)
      if (Number(others ?? 0) >= ADDRESS_GUESSES) throw tooManyRequests(Math.max(1, rest))
    },
    async failed(account, ip) {
      const [wrong] = await Promise.all([
        count(redis, guessKey(account)),
        count(redis, addressKey(ip)),
      ])
      const excess = wrong - ACCOUNT_GUESSES
      if (excess < 0) return
      const pause = Math.min(FIRST_PAUSE_SECONDS * 2 ** excess, LONGEST_PAUSE_SECONDS)
      await redis.set(pauseKey(account), '1', 'EX', pause)
      // The count outlives the pause, so that the next wrong guess doubles it.
      await redis.expire(guessKey(account), WINDOW_SECONDS + pause)
    },
    async succeeded(account) {
      await redis.del(guessKey(account), pauseKey(account))
    },
  }
}

/** Events of a key within `seconds`, this one included. */
export async function count(redis: Redis, key: string, seconds = WINDOW_SECONDS): Promise<number> {
  const replies = await redis.multi().set(key, 0, 'EX', seconds, 'NX').incr(key).exec()
  return Number(replies?.[1]?.[1] ?? 0)
}

const guessKey = (account: string) => `botica:guesses:account:${account}`
const pauseKey = (account: string) => `botica:guesses:pause:${account}`
const addressKey = (ip: string) => `botica:guesses:address:${addressOf(ip)}`

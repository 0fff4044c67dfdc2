/**
 * Rate limits of password and second-factor guesses, in Redis for all processes. A guess is counted before its check,
 * so that parallel guesses gain nothing: after five, each waits for a pause, doubling from one to 15 minutes. Strangers
 * share one count per account; known devices and sessions of the User have their own, so that strangers pause only
 * strangers.
 */

import { hash } from 'node:crypto'
import { tooManyRequests } from '../core/errors.ts'
import type { Redis } from '../redis/redis.ts'
import { runScript, script } from '../redis/script.ts'

const WINDOW_SECONDS = 900
const GUESSES = 5
const ADDRESS_GUESSES = 100
const FIRST_PAUSE_SECONDS = 60
const LONGEST_PAUSE_SECONDS = 900

export interface Guessed {
  readonly name: string
  /** A stranger's address, whose guesses at all accounts are counted, too. */
  readonly address?: string
}

/** Counts strangers' sign-ins per e-mail address, which all Users with it share. */
export function anonymousGuess(email: string, address?: string): Guessed {
  const name = `password:${hash('sha256', email, 'base64url')}`
  return address === undefined ? { name } : { name, address }
}

export function factorGuess(userId: string): Guessed {
  return { name: `factor:${userId}` }
}

export function deviceGuess(kind: 'password' | 'factor', deviceId: string): Guessed {
  return { name: `device-${kind}:${deviceId}` }
}

/** Counts guesses of a signed-in User at a reauthentication. */
export function sessionGuess(kind: 'password' | 'factor', userId: string): Guessed {
  return { name: `session-${kind}:${userId}` }
}

const SUM = `
local sum = 0
for _, guesses in ipairs(redis.call('HVALS', KEYS[1])) do sum = sum + guesses end`

/**
 * KEYS count, pause, address if counted; ARGV account (none: only check), most guesses, seconds of the window, of the
 * first and of the longest pause, most guesses of an address. Returns the pause in ms, or 0 to proceed.
 */
const RESERVE = script(`
local pause = redis.call('PTTL', KEYS[2])
if pause > 0 then return pause end
if KEYS[3] and tonumber(redis.call('GET', KEYS[3]) or 0) >= tonumber(ARGV[6]) then
  return math.max(1, redis.call('PTTL', KEYS[3]))
end
if ARGV[1] == '' then return 0 end
if KEYS[3] then
  redis.call('SET', KEYS[3], 0, 'EX', ARGV[3], 'NX')
  redis.call('INCR', KEYS[3])
end
redis.call('HINCRBY', KEYS[1], ARGV[1], 1)
redis.call('EXPIRE', KEYS[1], ARGV[3] + ARGV[5])
${SUM}
local excess = sum - ARGV[2]
if excess >= 0 then
  redis.call('SET', KEYS[2], 1, 'EX', math.min(ARGV[4] * 2 ^ excess, ARGV[5]))
end
return 0`)

/**
 * KEYS as before; ARGV account, most guesses, 1 for a right guess. A right guess clears the wrong ones of the account;
 * an unchecked one is taken back.
 */
const RELEASE = script(`
if ARGV[3] == '1' or redis.call('HINCRBY', KEYS[1], ARGV[1], -1) <= 0 then
  redis.call('HDEL', KEYS[1], ARGV[1])
end
if KEYS[3] and tonumber(redis.call('GET', KEYS[3]) or 0) > 0 then redis.call('DECR', KEYS[3]) end
${SUM}
if sum < tonumber(ARGV[2]) then redis.call('DEL', KEYS[2]) end`)

/** Checks without counting. Errors: 429 during a pause. */
export async function requireNoPause(redis: Redis, guessed: Guessed): Promise<void> {
  await reserve(redis, guessed, '')
}

/**
 * Runs `check` on a guess at `account`; undefined is a wrong guess. A guess whose check fails does not count.
 * Errors: 429 during a pause, and those of `check`.
 */
export async function checkGuess<T>(
  redis: Redis,
  guessed: Guessed,
  account: string,
  check: () => Promise<T | undefined>,
): Promise<T | undefined> {
  await reserve(redis, guessed, account)
  let found: T | undefined
  try {
    found = await check()
  } catch (error) {
    await release(redis, guessed, account, 0)
    throw error
  }
  if (found !== undefined) await release(redis, guessed, account, 1)
  return found
}

/** Clears the guesses of an account whose owner was proven in another way. */
export function forgiveGuesses(redis: Redis, guessed: Guessed, account: string): Promise<void> {
  return release(redis, guessed, account, 1)
}

async function release(redis: Redis, guessed: Guessed, account: string, isRight: 0 | 1) {
  await runScript(redis, RELEASE, guessKeys(guessed), [account, GUESSES, isRight])
}

async function reserve(redis: Redis, guessed: Guessed, account: string): Promise<void> {
  const pauseMs = await runScript(redis, RESERVE, guessKeys(guessed), [
    account,
    GUESSES,
    WINDOW_SECONDS,
    FIRST_PAUSE_SECONDS,
    LONGEST_PAUSE_SECONDS,
    ADDRESS_GUESSES,
  ])
  if (Number(pauseMs) > 0) throw tooManyRequests(Math.ceil(Number(pauseMs) / 1000))
}

function guessKeys({ name, address }: Guessed): string[] {
  const keys = [`botica:guesses:${name}`, `botica:guesses-pause:${name}`]
  return address === undefined ? keys : [...keys, `botica:guesses-of:${address}`]
}

// Known addresses: earlier sign-ins came from them. Under load they take precedence over strangers of a shared
// address; programs without cookies have no other identification. Wrong guesses count as strangers'.

const MEMORY_SECONDS = 90 * 86_400

export async function isRegular(redis: Redis, email: string, address: string): Promise<boolean> {
  return (await redis.exists(regularKey(email, address))) > 0
}

export async function rememberRegular(redis: Redis, email: string, address: string): Promise<void> {
  await redis.set(regularKey(email, address), 1, 'EX', MEMORY_SECONDS)
}

function regularKey(email: string, address: string): string {
  return `botica:regular:${hash('sha256', `${address} ${email}`, 'base64url')}`
}

/**
 * People who have signed in from an address before. Under load they go before strangers of the same address, which
 * many share; a program that keeps no cookies is known by nothing else. Wrong guesses are counted as those of strangers.
 */
import { hash } from 'node:crypto'
import type { Redis } from '../platform/redis/redis.ts'

const MEMORY_SECONDS = 90 * 86_400

export async function isRegular(redis: Redis, email: string, address: string): Promise<boolean> {
  return (await redis.exists(keyOf(email, address))) > 0
}

export async function rememberRegular(redis: Redis, email: string, address: string): Promise<void> {
  await redis.set(keyOf(email, address), 1, 'EX', MEMORY_SECONDS)
}

function keyOf(email: string, address: string): string {
  return `botica:regular:${hash('sha256', `${address} ${email}`, 'base64url')}`
}

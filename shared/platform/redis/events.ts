/** Counts of what happens, in Redis, where all processes see them. */
import type { Redis } from './redis.ts'

/** Events of a key within `seconds` of the first, this one included; of callers at a time each gets its own number. */
export async function countEvent(redis: Redis, key: string, seconds: number): Promise<number> {
  const replies = await redis.multi().set(key, 0, 'EX', seconds, 'NX').incr(key).exec()
  return Number(replies?.[1]?.[1] ?? 0)
}

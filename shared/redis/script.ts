/** Atomic Lua scripts for Redis. */
import { createHash } from 'node:crypto'
import type { Redis } from './redis.ts'

/** Prefix of every key and channel. */
export const PREFIX = 'botica'

interface Script {
  readonly text: string
  readonly sha: string
}

export function script(text: string): Script {
  return { text, sha: createHash('sha1').update(text).digest('hex') }
}

/** Lua: `now` in ms. */
export const NOW = `
local time = redis.call('TIME')
local now = time[1] * 1000 + math.floor(time[2] / 1000)`

export async function runScript(
  redis: Redis,
  { text, sha }: Script,
  keyNames: readonly string[],
  values: readonly (string | number)[],
): Promise<unknown> {
  try {
    return await redis.evalsha(sha, keyNames.length, ...keyNames, ...values)
  } catch (error) {
    if (!(error instanceof Error && error.message.startsWith('NOSCRIPT'))) throw error
    return redis.eval(text, keyNames.length, ...keyNames, ...values)
  }
}

/**
 * Web processes say, through one key in Redis, that they have much to do: who can wait, as an export, then
 * leaves more to them and to PostgreSQL, which answers them. Nothing depends on it but speed.
 */
import { performance } from 'node:perf_hooks'
import type { Redis } from './redis.ts'
import { PREFIX } from './script.ts'

const KEY = `${PREFIX}:web-busy`
const TELL_MS = 500
const LOOK_MS = 250
/** Published twice before it expires. */
const VALID_MS = 1200
/** Share of the time in which the event loop did not wait. */
const MUCH = 0.5

/** From now on. */
export function publishWebLoad(redis: Pick<Redis, 'set'>): void {
  let last = performance.eventLoopUtilization()
  setInterval(() => {
    const now = performance.eventLoopUtilization()
    const { utilization } = performance.eventLoopUtilization(now, last)
    last = now
    // The connection itself logs that Redis is away.
    if (utilization > MUCH) redis.set(KEY, 1, 'PX', VALID_MS).catch(() => undefined)
  }, TELL_MS).unref()
}

/** Answers what was so at the last look, and looks again now and then: one command every 250 ms at most. */
export function watchWebLoad(redis: Pick<Redis, 'exists'>): () => boolean {
  let isBusy = false
  let looked = Number.NEGATIVE_INFINITY
  return () => {
    const now = performance.now()
    const sinceLook = now - looked
    if (sinceLook >= LOOK_MS) {
      looked = now
      redis.exists(KEY).then(
        (found) => {
          isBusy = found > 0
        },
        () => {
          isBusy = false
        },
      )
    }
    return isBusy && sinceLook < VALID_MS
  }
}

/** Busy web processes set one key in Redis, and background work yields to them. A performance hint only. */
import { performance } from 'node:perf_hooks'
import type { Redis } from './redis.ts'
import { PREFIX } from './script.ts'

const KEY = `${PREFIX}:web-busy`
const TELL_MS = 500
const LOOK_MS = 250
const VALID_MS = 1200
const MUCH = 0.5

export function publishWebLoad(redis: Pick<Redis, 'set'>): void {
  let last = performance.eventLoopUtilization()
  setInterval(() => {
    const now = performance.eventLoopUtilization()
    const { utilization } = performance.eventLoopUtilization(now, last)
    last = now
    // The connection logs outages.
    if (utilization > MUCH) redis.set(KEY, 1, 'PX', VALID_MS).catch(() => undefined)
  }, TELL_MS).unref()
}

/** Returns the latest reading; refreshes it at most every 250 ms. */
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

/**
 * Slows exports down while others wait: they go on in bursts, with rests between them. Rests must be
 * longer than it takes PostgreSQL to fill the buffers of a connection, some megabytes: after a shorter one the
 * next block is there already, and only this process has rested.
 */
import { setTimeout as delay } from 'node:timers/promises'

const BURST_MS = 100
/** Beside each burst. */
const REST = 2
const LONGEST_REST_MS = 500
/** A look sees only callers that wait at that moment. */
const REMEMBERED_MS = 500

export interface Pace {
  /** To be awaited now and then, by all that goes on. */
  keep(): Promise<void>
  /** Others wait, or did a moment ago. */
  isAwaited(): boolean
}

/** `isBusy`: somebody waits for the processors that exports use. */
export function createPace(isBusy: () => boolean): Pace {
  let awaitedUntil = Number.NEGATIVE_INFINITY
  let begun = 0
  let resting: Promise<void> | undefined

  function isAwaited(): boolean {
    const now = performance.now()
    if (isBusy()) {
      if (now > awaitedUntil) begun = now
      awaitedUntil = now + REMEMBERED_MS
    }
    return now <= awaitedUntil
  }

  async function rest(ms: number): Promise<void> {
    await delay(Math.min(ms, LONGEST_REST_MS))
    resting = undefined
    begun = performance.now()
  }

  return {
    isAwaited,
    async keep() {
      if (isAwaited()) {
        const burst = performance.now() - begun
        if (burst > BURST_MS) resting ??= rest(burst * REST)
      }
      await resting
    },
  }
}

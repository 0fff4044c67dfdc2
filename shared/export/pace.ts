/** Slows exports down while callers wait for the processors. */
import { setTimeout as delay } from 'node:timers/promises'

/** A rest must outlast the connection's buffers (several MB), otherwise PostgreSQL keeps working through it. */
const BURST_MS = 100
const REST = 2
const LONGEST_REST_MS = 500
/** One check only sees callers that wait at that moment. */
const REMEMBERED_MS = 500

export interface Pace {
  /** To be awaited now and then, by all that goes on. */
  keep(): Promise<void>
  isAwaited(): boolean
}

/** `isBusy`: callers wait for the processors that exports use. */
export function createPace(isBusy: () => boolean): Pace {
  let awaitedUntil = Number.NEGATIVE_INFINITY
  let burstAt = 0
  let resting: Promise<void> | undefined

  function isAwaited(): boolean {
    const now = performance.now()
    if (isBusy()) {
      if (now > awaitedUntil) burstAt = now
      awaitedUntil = now + REMEMBERED_MS
    }
    return now <= awaitedUntil
  }

  async function rest(ms: number): Promise<void> {
    await delay(Math.min(ms, LONGEST_REST_MS))
    resting = undefined
    burstAt = performance.now()
  }

  return {
    isAwaited,
    async keep() {
      if (isAwaited()) {
        const burst = performance.now() - burstAt
        if (burst > BURST_MS) resting ??= rest(burst * REST)
      }
      await resting
    },
  }
}

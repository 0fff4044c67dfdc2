/** Loops, leases and pauses of the worker's jobs: PostgreSQL knows what is to be done, a wake only spares time. */

import { HttpError } from '../core/errors.ts'
import type { Logger } from '../core/log.ts'
import { type Lease, type LeaseTable, renewLeases } from '../postgres/leases.ts'
import type { Services } from '../request/services.ts'

export interface Loop {
  /** There may be something to do. */
  wake(): void
  wakeIn(ms: number): void
  /** Resolves when the rounds under way have ended; their signal is aborted. */
  stop(): Promise<void>
}

interface LoopOptions {
  readonly log: Logger
  /** Names the work in the log. */
  readonly name: string
  /** A lane rests for so long after a round that leaves nothing to do, or fails. */
  readonly everyMs: number
  /** Rounds side by side; default 1. */
  readonly lanes?: number
  /** Level at which an outage begins in the log; default warn. */
  readonly level?: 'debug' | 'warn' | 'error'
  /** Runs before a lane rests, while `working` others do not. */
  onRest?(working: number): void
}

/** Answers true when there is more to do at once. */
export type Round = (signal: AbortSignal, lane: number) => Promise<boolean>

/** Runs rounds until `stop`: at once, after a wake, and every so often. */
export function startLoop(options: LoopOptions, round: Round): Loop {
  const { everyMs, lanes = 1, onRest } = options
  const stopping = new AbortController()
  const { signal } = stopping
  const timers = new Set<NodeJS.Timeout>()
  const outage = createOutage(options)
  const bench = createBench(everyMs)

  async function run(lane: number): Promise<void> {
    while (!signal.aborted) {
      const seen = bench.wakes()
      let hasMore = false
      try {
        hasMore = await round(signal, lane)
        outage.ended()
      } catch (error) {
        outage.failed(error)
      }
      // A wake during the round may be about what it has missed.
      if (hasMore || seen !== bench.wakes() || signal.aborted) continue
      onRest?.(lanes - bench.resting() - 1)
      await bench.rest()
    }
  }

  // The caller has its Loop before the first round begins.
  const running = Promise.resolve().then(() =>
    Promise.all(Array.from({ length: lanes }, (_, lane) => run(lane))),
  )
  return {
    wake: bench.wake,
    wakeIn(ms) {
      const timer = setTimeout(() => {
        timers.delete(timer)
        bench.wake()
      }, ms)
      timers.add(timer)
    },
    async stop() {
      stopping.abort(new Error('The worker stops'))
      for (const timer of timers) clearTimeout(timer)
      bench.wake()
      await running
    },
  }
}

/** Where lanes rest until the next wake, or for a while. */
function createBench(everyMs: number) {
  const resting = new Set<() => void>()
  let wakes = 0
  return {
    wakes: () => wakes,
    resting: () => resting.size,
    wake() {
      wakes += 1
      for (const end of resting) end()
    },
    rest: () =>
      new Promise<void>((resolve) => {
        const end = () => {
          clearTimeout(timer)
          resting.delete(end)
          resolve()
        }
        const timer = setTimeout(end, everyMs)
        resting.add(end)
      }),
  }
}

/** Logs the first failure and the recovery; PostgreSQL being away is logged by its pool alone. */
function createOutage({ log, name, level = 'warn' }: LoopOptions) {
  let isFailing = false
  return {
    failed(cause: unknown) {
      const isNews = !isFailing && !isUnavailable(cause)
      isFailing ||= isNews
      log[isNews ? level : 'debug']({ cause }, `${name} failed`)
    },
    ended() {
      if (isFailing) log[level === 'debug' ? 'debug' : 'info'](`${name} works again`)
      isFailing = false
    },
  }
}

/** True while PostgreSQL or Redis cannot be reached, which their connections log. */
export function isUnavailable(error: unknown): boolean {
  return error instanceof HttpError && error.status === 503
}

/** Somebody else has what this worker had taken, or nobody wants it any more. */
export class LeaseLost extends Error {}

export interface Renewal {
  readonly log: Logger
  readonly everyMs: number
  /** Answers false when the lease is lost. */
  renew(): Promise<boolean>
}

/** Renews the lease of a row three times as often as it has to be. */
export function createRenewal(
  { database, log }: Pick<Services, 'database' | 'log'>,
  table: LeaseTable,
  lease: Lease,
): Renewal {
  const renew = async () => (await renewLeases(database, table, [lease])).length === 0
  return { log, everyMs: table.leaseMs / 3, renew }
}

/** The signal of `work` aborts when the lease is lost, with LeaseLost, and with `stopping`. */
export async function withLease<T>(
  { log, everyMs, renew }: Renewal,
  stopping: AbortSignal | undefined,
  work: (signal: AbortSignal) => Promise<T>,
): Promise<T> {
  const lost = new AbortController()
  const timer = setInterval(() => {
    renew().then(
      (isHeld) => isHeld || lost.abort(new LeaseLost()),
      (error: Error) => log.debug({ reason: error.message }, 'A lease was not renewed'),
    )
  }, everyMs)
  try {
    return await work(AbortSignal.any(stopping ? [stopping, lost.signal] : [lost.signal]))
  } finally {
    clearInterval(timer)
  }
}

/** The pause before the next attempt doubles with each that has failed. */
export function backoffMs(failures: number, firstMs: number, longestMs = Infinity): number {
  return Math.min(firstMs * 2 ** (failures - 1), longestMs)
}

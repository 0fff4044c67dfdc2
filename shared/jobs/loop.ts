/** Loops, leases and pauses for worker jobs. PostgreSQL holds the work; wakes only reduce latency. */

import { isUnavailable, LeaseLost } from '../core/errors.ts'
import type { Logger } from '../core/log.ts'
import { type Lease, type LeaseTable, renewLeases } from '../postgres/leases.ts'
import type { Services } from '../request/services.ts'

export interface Loop {
  wake(): void
  wakeIn(ms: number): void
  /** Aborts the signals of running rounds and resolves when they have ended. */
  stop(): Promise<void>
}

export interface LoopOptions {
  readonly log: Logger
  readonly name: string
  /** Pause after a round that found no work or failed. */
  readonly everyMs: number
  /** Concurrent rounds; default 1. */
  readonly lanes?: number
  /** Log level of an outage; default warn. */
  readonly level?: 'debug' | 'warn' | 'error'
  onIdle?(working: number): void
}

/** Returns true when more work is ready. */
type Round = (signal: AbortSignal, lane: number) => Promise<boolean>

/** Runs rounds at once, after each wake and at intervals, until `stop`. */
export function startLoop(options: LoopOptions, round: Round): Loop {
  const { everyMs, lanes = 1, onIdle } = options
  const stopping = new AbortController()
  const { signal } = stopping
  const timers = new Set<NodeJS.Timeout>()
  const outage = createOutage(options)
  const idle = createIdleLanes(everyMs)

  async function run(lane: number): Promise<void> {
    while (!signal.aborted) {
      const seen = idle.wakes()
      let hasMore = false
      try {
        hasMore = await round(signal, lane)
        outage.ended()
      } catch (error) {
        outage.failed(error)
      }
      // A wake during the round may concern work that the round missed.
      if (hasMore || seen !== idle.wakes() || signal.aborted) continue
      onIdle?.(lanes - idle.count() - 1)
      await idle.wait()
    }
  }

  // Returns the Loop to the caller before the first round starts.
  const running = Promise.resolve().then(() =>
    Promise.all(Array.from({ length: lanes }, (_, lane) => run(lane))),
  )
  return {
    wake: idle.wake,
    wakeIn(ms) {
      const timer = setTimeout(() => {
        timers.delete(timer)
        idle.wake()
      }, ms)
      timers.add(timer)
    },
    async stop() {
      stopping.abort(new Error('The worker stops'))
      for (const timer of timers) clearTimeout(timer)
      idle.wake()
      await running
    },
  }
}

function createIdleLanes(everyMs: number) {
  const waiting = new Set<() => void>()
  let wakes = 0
  return {
    wakes: () => wakes,
    count: () => waiting.size,
    wake() {
      wakes += 1
      for (const end of waiting) end()
    },
    wait: () =>
      new Promise<void>((resolve) => {
        const end = () => {
          clearTimeout(timer)
          waiting.delete(end)
          resolve()
        }
        const timer = setTimeout(end, everyMs)
        waiting.add(end)
      }),
  }
}

/** Logs the first failure and the recovery; only the pool logs PostgreSQL outages. */
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

interface Renewal {
  readonly log: Logger
  readonly everyMs: number
  /** Returns false when the lease is lost. */
  renew(): Promise<boolean>
}

/** Renews a row lease three times per lease duration. */
export function createRenewal(
  { database, log }: Pick<Services, 'database' | 'log'>,
  table: LeaseTable,
  lease: Lease,
): Renewal {
  const renew = async () => (await renewLeases(database, table, [lease])).length === 0
  return { log, everyMs: table.leaseMs / 3, renew }
}

/** Aborts the signal of `work` with LeaseLost when the lease is lost, and with `stopping`. */
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

export function backoffMs(failures: number, firstMs: number, longestMs = Infinity): number {
  return Math.min(firstMs * 2 ** (failures - 1), longestMs)
}

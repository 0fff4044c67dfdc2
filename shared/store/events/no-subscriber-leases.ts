/**
 * The guard of a writing statement asks whether somebody waits in its Project. A process need not ask
 * again and again: a strict lease says for how long it may leave the guard out.
 *
 *   1. A guarded statement answers whether its Project has any row in `active_subscription`. If it has
 *      none, this process leaves the guard out for LEASE_MS, counted from before that statement was sent.
 *   2. Whoever makes a Subscription active acknowledges it only once `outlastLeases` has passed after its
 *      commit.
 *
 * The snapshot of the statement is not older than the start of the lease, so a Subscription that it does
 * not see is committed later, and acknowledged when the lease is over: each write that begins after the
 * acknowledgement is guarded, in whatever process. Clocks are not compared, only their pace is trusted.
 * Statements inside a transaction have the snapshot of the transaction: they neither learn nor leave out.
 */
import { setTimeout as delay } from 'node:timers/promises'
import { LRUCache } from 'lru-cache'
import { REGISTRY_PROJECT } from '../rows/tenants.ts'
import type { Write, Written } from '../rows/write-rows.ts'

export const LEASE_MS = 250
/** A timer may fire a little early. */
const MARGIN_MS = 20
const KEPT = 10_000

/** Resolves when no process leaves the guard out that had not seen what is committed by now. */
export function outlastLeases(): Promise<void> {
  return delay(LEASE_MS + MARGIN_MS)
}

export interface NoSubscriberLeases {
  /** Returns the write without its guard, if nobody can wait for it. */
  unguarded<T extends Pick<Write, 'project' | 'event'>>(write: T): T
  /** `sentAt`: of the clock `now`, from before the statement was sent. */
  learn(writes: readonly Write[], rows: readonly Written[], sentAt: number): void
  now(): number
}

export function createNoSubscriberLeases(
  now: () => number = () => performance.now(),
): NoSubscriberLeases {
  const leases = new LRUCache<number, { readonly until: number }>({ max: KEPT })
  return {
    now,
    unguarded(write) {
      const { project, event } = write
      // Rows of the registry are changes of other Projects.
      if (event === undefined || project === REGISTRY_PROJECT) return write
      const isQuiet = now() < (leases.get(project)?.until ?? 0)
      return isQuiet ? { ...write, event: undefined } : write
    },
    learn(writes, rows, sentAt) {
      for (const { n, isQuiet } of rows) {
        const write = writes[n - 1]
        if (isQuiet && write) leases.set(write.project, { until: sentAt + LEASE_MS })
      }
    },
  }
}

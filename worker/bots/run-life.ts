/**
 * The life cycle of a run, from its job to its end. Every transition is a function here and returns the new state.
 *
 *             lease              noteWrite              end
 *   queued ──────────▶ leased ─────────────▶ wrote ──────────▶ ended
 *     ▲                 │  │                   │
 *     │    give back    │  ├─────── end ───────┼─────────────▶ ended
 *     ├─────────────────┘  │                   │
 *     │                    ├─────── lost ──────┴─────────────▶ lost       another worker has the run
 *     │                    └─────── cancel ──────────────────▶ cancelled  no longer wanted
 *     └── again: the bot asks for a retry
 *
 * - queued: a BullMQ job holds the run. Asynchronous, scheduled and delivered runs also have a row in PostgreSQL
 *   (`pending_run`, `occurrence`, `delivery`), which restores the job after a loss of Redis.
 * - leased: a worker has the job and the lease of the row (shared/postgres/leases.ts). A run without a row names each
 *   attempt instead.
 * - wrote: the run may have had an effect, so no other attempt begins. Noted in the row (`effect`) or in the Redis journal,
 *   where only the first attempt may write. Occurrences and deliveries are repeated regardless of effects; their writes name
 *   the lease, and PostgreSQL rejects those of an older one.
 * - ended: the reply is published, and the result is in the AsyncJob, or the row is removed.
 * - lost: the worker has lost the lease and writes nothing more; the new holder ends the run.
 * - cancelled: by its AsyncJob, a disconnected caller, or its deadline.
 *
 * A nested bot is never queued: with every slot held by a caller, it would wait forever. It starts as leased in its caller's slot
 * and lease, has its own time limit, is one level deeper (at most 10), writes under its caller's mark, and stops with its caller.
 */
import { randomUUID } from 'node:crypto'
import type { RunLease } from '../../shared/access/principal.ts'
import {
  leasePendingRun,
  PENDING_RUNS,
  pendingLease,
  recordPendingEffect,
  releasePendingRun,
} from '../../shared/bots/pending-runs.ts'
import {
  leaseOccurrence,
  OCCURRENCES,
  occurrenceLease,
  releaseOccurrence,
} from '../../shared/bots/schedules.ts'
import { HttpError, RunLeaseLost } from '../../shared/core/errors.ts'
import { startLoop } from '../../shared/jobs/loop.ts'
import type { Database } from '../../shared/postgres/database.ts'
import { type Lease, type LeaseTable, renewLeases } from '../../shared/postgres/leases.ts'
import type { ExecuteJob } from '../../shared/queue/jobs.ts'
import type { Runs } from '../../shared/queue/runs.ts'
import type { JobEnd, TakenJob } from '../../shared/queue/worker.ts'
import type { Services } from '../../shared/request/services.ts'
import { requireRunLease } from '../../shared/store/rows/run-leases.ts'
import type { Attempt } from './run-result.ts'

const RENEW_MS = Math.min(PENDING_RUNS.leaseMs, OCCURRENCES.leaseMs) / 3

export interface LeasedRun {
  readonly attempt: Attempt
  leave(end: JobEnd): Promise<void>
}

type Leasing =
  | { readonly state: 'leased'; readonly run: LeasedRun }
  /** Another worker has the run, or it has ended. */
  | { readonly state: 'lost' }
  /** PostgreSQL is unavailable; the row brings the run back. */
  | { readonly state: 'away' }

export interface RunLives {
  /** queued → leased. `isRepeat`: a worker lost the job before. Calls `lost` when another worker gets the lease. */
  lease(taken: TakenJob, lost: () => void): Promise<Leasing>
  noteWrite(job: ExecuteJob, attempt: Attempt): Promise<'wrote' | 'lost'>
  stop(): Promise<void>
}

interface Held {
  /** 0 while the run has no row; a row created meanwhile is leased by its creation. */
  readonly token: number
  readonly lost: () => void
}

const LOST: Leasing = { state: 'lost' }
const AWAY: Leasing = { state: 'away' }

export function createRunLives({ database, log }: Services, runs: Runs): RunLives {
  const pending: Rows = new Map()
  const occurrences: Rows = new Map()
  const renewing = startLoop({ log, name: 'The lease of runs', everyMs: RENEW_MS }, async () => {
    await Promise.all([
      renew(database, PENDING_RUNS, pendingLease, pending),
      renew(database, OCCURRENCES, occurrenceLease, occurrences),
    ])
    return false
  })
  return {
    async lease(taken, lost) {
      const { job, number, isRepeat } = taken
      const at = { database, lost }
      if (job.scheduled !== undefined) return await orAway(leaseScheduled(at, occurrences, taken))
      if (job.asynchronous) return await orAway(leasePending(at, pending, taken))
      // A caller's run gets a row when the caller stops waiting.
      const attempt = { number, isRepeat, id: randomUUID() }
      return held(pending, job.runId, { token: 0, lost }, { attempt, leave: async () => {} })
    },
    async noteWrite(job, { lease, id }) {
      if (lease !== undefined) return (await noteIn(database, lease)) ? 'wrote' : 'lost'
      // A nested bot writes under the mark of its caller, which is already set.
      return id === undefined || (await runs.markWrite(job, id)) ? 'wrote' : 'lost'
    },
    stop: () => renewing.stop(),
  }
}

type Rows = Map<string, Held>

interface At {
  readonly database: Database
  readonly lost: () => void
}

async function leasePending(
  { database, lost }: At,
  rows: Rows,
  { job: { runId }, isRepeat }: TakenJob,
): Promise<Leasing> {
  const leased = await leasePendingRun(database, runId, isRepeat)
  if (leased === undefined) return LOST
  const { token, attempt: number, hadEffect } = leased
  const lease: RunLease = { owner: 'r', run: runId, token }
  const attempt = { number, isRepeat, hadEffect, lease }
  const leave = async ({ kind }: JobEnd) => {
    if (kind !== 'done') await releasePendingRun(database, runId, token, kind === 'again')
  }
  return held(rows, runId, { token, lost }, { attempt, leave })
}

async function leaseScheduled(
  { database, lost }: At,
  rows: Rows,
  { job: { runId, scheduled }, number, isRepeat }: TakenJob,
): Promise<Leasing> {
  const token = await leaseOccurrence(database, runId, scheduled?.attempt ?? 1, isRepeat)
  if (token === undefined) return LOST
  const lease: RunLease = { owner: 'o', run: runId, token }
  const attempt = { number, isRepeat, hadEffect: false, lease }
  const leave = async ({ kind }: JobEnd) => {
    if (kind !== 'done') await releaseOccurrence(database, runId, token)
  }
  return held(rows, runId, { token, lost }, { attempt, leave })
}

function held(rows: Rows, runId: string, row: Held, run: LeasedRun): Leasing {
  rows.set(runId, row)
  const leave = async (end: JobEnd) => {
    if (rows.get(runId) === row) rows.delete(runId)
    // A row that could not be released is free in some seconds.
    await run.leave(end).catch(() => undefined)
  }
  return { state: 'leased', run: { ...run, leave } }
}

async function orAway(leasing: Promise<Leasing>): Promise<Leasing> {
  return await leasing.catch((error: unknown) => {
    if (error instanceof HttpError) return AWAY
    throw error
  })
}

async function renew(
  database: Database,
  table: LeaseTable,
  leaseOf: (run: string, token: number) => Lease,
  rows: Rows,
): Promise<void> {
  const leases = [...rows].map(([run, row]) => ({ ...leaseOf(run, row.token), row }))
  const missing = await renewLeases(database, table, leases)
  for (const { token, row } of missing) if (token > 0) row.lost()
}

/** Notes in the run's row that it may have had an effect. False when the lease was lost. */
async function noteIn(database: Database, lease: RunLease): Promise<boolean> {
  if (lease.owner === 'r') return await recordPendingEffect(database, lease.run, lease.token)
  return await requireRunLease(database, lease).then(
    () => true,
    (error: unknown) => {
      if (error instanceof RunLeaseLost) return false
      throw error
    },
  )
}

/**
 * The life of a run, from its job to its end. Every transition is a function here, and returns what has become of the run.
 *
 *             lease              noteWrite              end
 *   queued ──────────▶ leased ─────────────▶ wrote ──────────▶ ended
 *     ▲                 │  │                   │
 *     │    give back    │  ├─────── end ───────┼─────────────▶ ended
 *     ├─────────────────┘  │                   │
 *     │                    ├─────── lost ──────┴─────────────▶ lost       another worker has the run
 *     │                    └─────── cancel ──────────────────▶ cancelled  nobody wants it any more
 *     └── again: the bot wants a failed attempt repeated
 *
 * - queued: a job of BullMQ has the run. One that is asked for later, scheduled or delivered has a row in PostgreSQL, too
 *   (`pending_run`, `occurrence`, `delivery`), which brings the job back when Redis has lost it.
 * - leased: a worker has the job, and the lease of the row (shared/postgres/leases.ts). A run without a row has a
 *   name for each of its attempts instead.
 * - wrote: the run may have changed something, so no other attempt begins. Noted in the row (`effect`), or in the journal in
 *   Redis, where the first attempt that asks is the only one that may write. Occurrences and deliveries are repeated
 *   whatever they have done; their writes name the lease, and PostgreSQL refuses those of an older one.
 * - ended: its reply is published, and its result is in its AsyncJob, or its row is gone.
 * - lost: the worker has lost the lease, and writes nothing more; the worker that has it now ends the run.
 * - cancelled: by its AsyncJob, by a caller that has gone, or by its deadline.
 *
 * A bot that a run calls is never queued: with every slot held by a caller, it would wait forever. It begins as leased, in the
 * slot and under the lease of its caller, has its own time limit, is one level deeper (at most 10), writes under its caller's
 * mark, and stops when its caller stops.
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

/** A run while this worker has it. */
export interface LeasedRun {
  readonly attempt: Attempt
  /** Gives the row back, unless the run is done. */
  leave(end: JobEnd): Promise<void>
}

type Leasing =
  | { readonly state: 'leased'; readonly run: LeasedRun }
  /** Another worker has the run, or it has ended. */
  | { readonly state: 'lost' }
  /** PostgreSQL is away; the row brings the run back. */
  | { readonly state: 'away' }

export interface RunLives {
  /**
   * queued → leased. A job that `isRepeat` was lost by the worker before. `lost` is called when another worker gets the
   * lease.
   */
  lease(taken: TakenJob, lost: () => void): Promise<Leasing>
  /** leased → wrote. */
  noteWrite(job: ExecuteJob, attempt: Attempt): Promise<'wrote' | 'lost'>
  stop(): Promise<void>
}

interface Held {
  /** 0 while the run has no row; one that is made meanwhile is leased by that. */
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
      // The row of a run whose caller waits is made when it stops waiting.
      const attempt = { number, isRepeat, id: randomUUID() }
      return held(pending, job.runId, { token: 0, lost }, { attempt, leave: async () => {} })
    },
    async noteWrite(job, { lease, id }) {
      if (lease !== undefined) return (await noteIn(database, lease)) ? 'wrote' : 'lost'
      // A bot that is called by a run writes in the name of that one, which has noted so.
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
    // A row that could not be given back is free in some seconds.
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

/** Notes in the row of a run that it may have changed something. False when the lease was lost. */
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

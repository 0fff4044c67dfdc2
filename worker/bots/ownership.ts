/**
 * The runs that this worker has. A run that is asked for later is owned by its row of `pending_run`, an occurrence by
 * its own: whoever has lost the row learns it within seconds, and until then its writes are refused.
 */
import { type RunLease, systemPrincipal } from '../../shared/access/principal.ts'
import { settleAsyncJob } from '../../shared/bots/async-jobs.ts'
import {
  type LeftRun,
  leasePendingRun,
  notePendingEffect,
  PENDING_RUNS,
  type PendingRun,
  pendingLease,
  pendingRuns,
  releasePendingRun,
  removePendingRun,
} from '../../shared/bots/pending-runs.ts'
import {
  leaseOccurrence,
  OCCURRENCES,
  occurrenceLease,
  releaseOccurrence,
} from '../../shared/bots/schedules.ts'
import { waits } from '../../shared/config/waits.ts'
import { HttpError, RunLost } from '../../shared/errors.ts'
import type { Database } from '../../shared/platform/postgres/database.ts'
import { type Lease, type LeaseTable, renewLeases } from '../../shared/platform/postgres/leases.ts'
import type { ExecuteJob } from '../../shared/platform/queue/jobs.ts'
import { interrupted } from '../../shared/platform/queue/replies.ts'
import type { Services } from '../../shared/services.ts'
import { requireRun } from '../../shared/store/rows/run-leases.ts'
import { platformMeta } from '../../shared/store/rows/version.ts'
import { type Loop, startLoop } from '../loop.ts'
import { Again } from './retries.ts'

const RENEW_MS = Math.min(PENDING_RUNS.leaseMs, OCCURRENCES.leaseMs) / 3

/** Thrown for a run that could not start: its row in PostgreSQL brings it back. */
export class LeftToUpkeep extends Error {}

export interface Owned {
  /** Undefined for a run without a row. */
  readonly lease: RunLease | undefined
  /** Undefined where the job knows best. */
  readonly attempt: number | undefined
  readonly hadEffect: boolean
}

export interface Ownership {
  /**
   * Runs a job while its row is held; drops one that another worker has, or that has ended. `lost` is called when
   * the row is lost meanwhile; `isGone`: Redis has found that the worker before has lost the job. Errors: those of `work`; LeftToUpkeep while PostgreSQL is away.
   */
  whileOwned(
    job: ExecuteJob,
    isGone: boolean,
    lost: (error: RunLost) => void,
    work: (owned: Owned) => Promise<void>,
  ): Promise<void>
  stop(): Promise<void>
}

interface Held {
  /** 0 while the run has no row; one that is made meanwhile is leased by that. */
  readonly token: number
  readonly lost: (error: RunLost) => void
  /** Gives the row back after a failure. */
  readonly release: (error: unknown) => Promise<unknown>
}

const WITHOUT_ROW: Owned = { lease: undefined, attempt: undefined, hadEffect: false }

export function createOwnership({ database, log }: Services): Ownership {
  const runs = new Map<string, Held>()
  const occurrences = new Map<string, Held>()
  const renewing = startLoop({ log, name: 'The lease of runs', everyMs: RENEW_MS }, async () => {
    await Promise.all([
      renew(database, PENDING_RUNS, pendingLease, runs),
      renew(database, OCCURRENCES, occurrenceLease, occurrences),
    ])
    return false
  })

  async function pending({ runId }: ExecuteJob, isGone: boolean, lost: Held['lost'], work: Work) {
    const leased = await orLeave(leasePendingRun(database, runId, isGone))
    if (leased === undefined) return
    const { token, ...owned } = leased
    const release = (error: unknown) =>
      releasePendingRun(database, runId, token, error instanceof Again)
    await listed(runs, runId, { token, lost, release }, () =>
      work({ lease: { owner: 'r', run: runId, token }, ...owned }),
    )
  }

  async function scheduled(job: ExecuteJob, isGone: boolean, lost: Held['lost'], work: Work) {
    const { runId, scheduled } = job
    const token = await orLeave(leaseOccurrence(database, runId, scheduled?.attempt ?? 1, isGone))
    if (token === undefined) return
    const release = () => releaseOccurrence(database, runId, token)
    await listed(occurrences, runId, { token, lost, release }, () =>
      work({ ...WITHOUT_ROW, lease: { owner: 'o', run: runId, token } }),
    )
  }

  return {
    async whileOwned(job, isGone, lost, work) {
      if (job.scheduled !== undefined) return await scheduled(job, isGone, lost, work)
      if (job.asynchronous) return await pending(job, isGone, lost, work)
      // The row of a run whose caller waits is made when it stops waiting.
      const held = { token: 0, lost, release: async () => {} }
      await listed(runs, job.runId, held, () => work(WITHOUT_ROW))
    },
    stop: () => renewing.stop(),
  }
}

type Rows = ReadonlyMap<string, Held>

async function listed(
  rows: Map<string, Held>,
  run: string,
  held: Held,
  work: () => Promise<void>,
): Promise<void> {
  rows.set(run, held)
  try {
    await work()
  } catch (error) {
    // A row that could not be given back is free in some seconds.
    if (!(error instanceof LeftToUpkeep)) await held.release(error).catch(() => {})
    throw error
  } finally {
    rows.delete(run)
  }
}

async function renew(
  database: Database,
  table: LeaseTable,
  leaseOf: (run: string, token: number) => Lease,
  rows: Rows,
): Promise<void> {
  const leases = [...rows].map(([run, held]) => ({ ...leaseOf(run, held.token), held }))
  const missing = await renewLeases(database, table, leases)
  for (const { token, held } of missing) if (token > 0) held.lost(new RunLost())
}

type Work = (owned: Owned) => Promise<void>

async function orLeave<T>(leasing: Promise<T>): Promise<T> {
  try {
    return await leasing
  } catch (error) {
    if (error instanceof HttpError) throw new LeftToUpkeep('PostgreSQL is away', { cause: error })
    throw error
  }
}

/** Notes that a run is about to change something. Errors: RunLost. */
export async function noteEffect({ database }: Services, lease: RunLease): Promise<void> {
  const { owner, run, token } = lease
  if (owner !== 'r') return await requireRun(database, lease)
  if (!(await notePendingEffect(database, run, token))) throw new RunLost()
}

// * Upkeep of accepted runs. Redis may lose a second of its memory, or all of it: what PostgreSQL knows
// to be accepted, that no worker has and Redis does not know, is queued again, or ended when it may have had an effect.

/** Younger runs may be on their way into the queue. */
const OLDER_THAN_MS = 10_000
const PAGE = 200
const BEFORE_ALL = '00000000-0000-0000-0000-000000000000'

/** Runs until `stop`; workers do it side by side, adding a job twice is harmless. */
export function startSweep(services: Services): Loop {
  const { log } = services
  return startLoop({ log, name: 'Upkeep of accepted runs', everyMs: waits.sweepMs }, (signal) =>
    sweep(services, signal),
  )
}

async function sweep(services: Services, signal: AbortSignal): Promise<boolean> {
  let after = BEFORE_ALL
  for (;;) {
    const { database, queues } = services
    const page = await pendingRuns(database, queues.home, {
      olderThanMs: OLDER_THAN_MS,
      after,
      count: PAGE,
    })
    for (const run of page) {
      if (signal.aborted) return false
      await look(services, run)
    }
    const last = page.at(-1)
    if (last === undefined || page.length < PAGE) return false
    after = last.id
  }
}

async function look(services: Services, run: LeftRun): Promise<void> {
  const { queues, log, database } = services
  const queue = run.job === undefined ? 'bots-sync' : 'bots-async'
  if (await queues.has(queue, run.id)) return
  // After the look at the queue: a run that ended in between has its AsyncJob finished.
  const open = await openJob(services, run)
  if (open === undefined) return await removePendingRun(database, run.id)
  if (run.job === undefined || run.hadEffect) {
    const job = { projectId: run.projectId, requester: open.author, contentType: undefined }
    await settleAsyncJob(services, job, interrupted(run.id))
    log.warn({ runId: run.id }, 'An accepted run was lost and is ended')
    return
  }
  // Written by `createAsyncJob` from a job.
  if (await queues.restore(JSON.parse(run.job) as ExecuteJob)) {
    log.warn({ runId: run.id }, 'An accepted run was lost and is queued again')
  }
}

/** Undefined when its AsyncJob is finished or gone. */
async function openJob(
  services: Services,
  { id, projectId }: PendingRun,
): Promise<{ readonly author: string | undefined } | undefined> {
  const project = await services.principals.project(projectId)
  if (project === undefined) return undefined
  try {
    const version = await services.repository.read(systemPrincipal(project), 'AsyncJob', id)
    const { status }: { status?: string } = JSON.parse(version.content ?? '{}')
    if (status !== 'accepted' && status !== 'active') return undefined
    return { author: platformMeta(version).author?.reference }
  } catch (error) {
    if (error instanceof HttpError && error.status < 500) return undefined
    throw error
  }
}

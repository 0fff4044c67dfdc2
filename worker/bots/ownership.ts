/**
 * The runs that this worker has. A run that is asked for later is owned by its row of `pending_run`, an occurrence by
 * its own: whoever has lost the row learns it within seconds, and until then its writes are refused.
 */
import type { RunTaking } from '../../shared/access/principal.ts'
import {
  holdPendingRuns,
  notePendingEffect,
  releasePendingRun,
  takePendingRun,
} from '../../shared/bots/pending-runs.ts'
import { holdOccurrence, releaseOccurrence, takeOccurrence } from '../../shared/bots/schedules.ts'
import { HttpError, RunLost } from '../../shared/errors.ts'
import type { Database } from '../../shared/platform/postgres/database.ts'
import type { ExecuteJob } from '../../shared/platform/queue/jobs.ts'
import type { Services } from '../../shared/services.ts'
import { requireRun } from '../../shared/store/rows/run-takings.ts'
import { startLoop } from '../loop.ts'
import { Again } from './retries.ts'

/** A third of the time that a row is held. */
const HOLD_MS = 3000

/** Thrown for a run that could not start: its row in PostgreSQL brings it back. */
export class LeftToUpkeep extends Error {}

export interface Owned {
  /** Undefined for a run without a row. */
  readonly taking: RunTaking | undefined
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
  readonly taking: number
  readonly lost: (error: RunLost) => void
  /** Gives the row back after a failure. */
  readonly release: (error: unknown) => Promise<void>
}

const WITHOUT_ROW: Owned = { taking: undefined, attempt: undefined, hadEffect: false }

export function createOwnership({ database, log }: Services): Ownership {
  const runs = new Map<string, Held>()
  const occurrences = new Map<string, Held>()
  const holding = startLoop({ log, name: 'The lease of runs', everyMs: HOLD_MS }, async () => {
    await hold(database, runs, occurrences)
    return false
  })

  async function pending({ runId }: ExecuteJob, isGone: boolean, lost: Held['lost'], work: Work) {
    const taken = await orLeave(takePendingRun(database, runId, isGone))
    if (taken === undefined) return
    const { taking, ...owned } = taken
    const release = (error: unknown) =>
      releasePendingRun(database, runId, taking, error instanceof Again)
    await listed(runs, runId, { taking, lost, release }, () =>
      work({ taking: { owner: 'r', run: runId, taking }, ...owned }),
    )
  }

  async function scheduled(job: ExecuteJob, isGone: boolean, lost: Held['lost'], work: Work) {
    const { runId, scheduled } = job
    const taking = await orLeave(takeOccurrence(database, runId, scheduled?.attempt ?? 1, isGone))
    if (taking === undefined) return
    const release = () => releaseOccurrence(database, runId, taking)
    await listed(occurrences, runId, { taking, lost, release }, () =>
      work({ ...WITHOUT_ROW, taking: { owner: 'o', run: runId, taking } }),
    )
  }

  return {
    async whileOwned(job, isGone, lost, work) {
      if (job.scheduled !== undefined) return await scheduled(job, isGone, lost, work)
      if (job.asynchronous) return await pending(job, isGone, lost, work)
      // The row of a run whose caller waits is made when it stops waiting.
      const held = { taking: 0, lost, release: async () => {} }
      await listed(runs, job.runId, held, () => work(WITHOUT_ROW))
    },
    stop: () => holding.stop(),
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

async function hold(database: Database, runs: Rows, occurrences: Rows): Promise<void> {
  const rows = [...runs].map(([run, { taking }]) => ({ run, taking }))
  const lost = rows.length === 0 ? [] : await holdPendingRuns(database, rows)
  for (const run of lost) runs.get(run)?.lost(new RunLost())
  for (const [run, { taking, lost }] of occurrences) {
    if (!(await holdOccurrence(database, run, taking))) lost(new RunLost())
  }
}

type Work = (owned: Owned) => Promise<void>

async function orLeave<T>(taking: Promise<T>): Promise<T> {
  try {
    return await taking
  } catch (error) {
    if (error instanceof HttpError) throw new LeftToUpkeep('PostgreSQL is away', { cause: error })
    throw error
  }
}

/** Notes that a run is about to change something. Errors: RunLost. */
export async function noteEffect({ database }: Services, taking: RunTaking): Promise<void> {
  if (taking.owner === 'r') await notePendingEffect(database, taking.run, taking.taking)
  else await requireRun(database, taking)
}

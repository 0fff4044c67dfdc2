/** Durable rows of asynchronous bot runs, from acceptance until the AsyncJob is finished. */
import {
  isFree,
  type Lease,
  type LeaseTable,
  leaseRow,
  releaseLeased,
  updateLeased,
} from '../postgres/leases.ts'
import type { Connection } from '../postgres/statement.ts'

const FOREIGN_MS = 30 * 60_000

export interface PendingRun {
  readonly id: string
  /** Id of the Project its AsyncJob lives in. */
  readonly projectId: string
  /** The Redis that holds its job. */
  readonly home: string
  /** The job as JSON text; undefined for a run that must not start again. */
  readonly job: string | undefined
}

export interface AbandonedRun extends PendingRun {
  readonly hadEffect: boolean
}

export async function addPendingRun(database: Connection, run: PendingRun): Promise<void> {
  await database.query({
    name: 'pending-run-add',
    text: `insert into pending_run (id, project, home, job) values ($1, $2, $3, $4)
      on conflict do nothing`,
    values: [run.id, run.projectId, run.home, run.job ?? null],
  })
}

/** The lease is shorter than the lock of the run's job. */
export const PENDING_RUNS: LeaseTable = {
  name: 'pending_run',
  key: { id: 'uuid' },
  token: 'takes',
  expiresAt: 'held',
  leaseMs: 10_000,
}

export function pendingLease(id: string, token: number): Lease {
  return { key: [id], token }
}

export interface LeasedRun {
  readonly token: number
  readonly attempt: number
  readonly hadEffect: boolean
}

/** Returns undefined once the AsyncJob is finished, or while another worker that is not `isGone` has the run. */
export async function leasePendingRun(
  database: Connection,
  id: string,
  isGone: boolean,
): Promise<LeasedRun | undefined> {
  const [leased] = await database.query<LeasedRun>({
    name: 'pending-run-lease',
    text: `update pending_run x set ${leaseRow(PENDING_RUNS, 'x')}
      where id = $1 and ($2 or ${isFree(PENDING_RUNS, 'x')})
      returning takes as token, takes - returned as attempt, effect as "hadEffect"`,
    values: [id, isGone],
  })
  return leased
}

/**
 * Releases a run that has not begun or, with `isAnew`, is to be repeated regardless of effects. False when the lease
 * was lost.
 */
export async function releasePendingRun(
  database: Connection,
  id: string,
  token: number,
  isAnew: boolean,
): Promise<boolean> {
  return await releaseLeased(database, PENDING_RUNS, pendingLease(id, token), {
    name: 'pending-run-release',
    // An expired lease counts as an attempt; a released or unstarted one does not.
    set: 'held = null, effect = effect and not $3, returned = returned + 1 + (not $3)::int',
    values: [isAnew],
  })
}

/** Notes that the run is about to have an effect. False when the lease was lost. */
export async function recordPendingEffect(
  database: Connection,
  id: string,
  token: number,
): Promise<boolean> {
  return await updateLeased(database, PENDING_RUNS, pendingLease(id, token), {
    name: 'pending-run-effect',
    set: 'effect = true',
  })
}

export async function removePendingRun(database: Connection, id: string): Promise<void> {
  await database.query({
    name: 'pending-run-remove',
    text: 'delete from pending_run where id = $1',
    values: [id],
  })
}

interface PendingPage {
  readonly olderThanMs: number
  readonly after: string
  readonly count: number
}

/**
 * Returns runs without a worker accepted longer ago than `olderThanMs`, in id order after `after`. Runs of another
 * Redis are included much later: during a migration between two Redis servers workers of both read this table.
 */
export async function pendingRuns(
  database: Connection,
  home: string,
  { olderThanMs, after, count }: PendingPage,
): Promise<readonly AbandonedRun[]> {
  const rows = await database.query<{
    id: string
    project: string
    home: string
    job: string | null
    hadEffect: boolean
  }>({
    name: 'pending-runs',
    text: `
      select id, project, home, job, effect as "hadEffect" from pending_run x
      where id > $1::uuid and ${isFree(PENDING_RUNS, 'x')}
        and added < clock_timestamp() - case when home = $2 then $3::float8 else $4::float8 end * interval '1 ms'
      order by id limit $5`,
    values: [after, home, olderThanMs, FOREIGN_MS, count],
  })
  return rows.map(({ project, job, ...row }) => ({
    ...row,
    projectId: project,
    job: job ?? undefined,
  }))
}

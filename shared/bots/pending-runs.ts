/** The durable side of asynchronous bot runs: a row from acceptance until the AsyncJob is finished. */
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
  /** The Redis that knows its job. */
  readonly home: string
  /** The job as JSON text; undefined for a run that must not be started a second time. */
  readonly job: string | undefined
}

/** A run without a worker. */
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
  /** 1-based, as the bot sees it. */
  readonly attempt: number
  /** An attempt before has perhaps changed something. */
  readonly hadEffect: boolean
}

/** Undefined while another worker has the run, unless that `isGone`, and once its AsyncJob is finished. */
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

/** Gives a run back that has not begun, or, `isAnew`, is to be made again whatever it has done. False when the lease was lost. */
export async function releasePendingRun(
  database: Connection,
  id: string,
  token: number,
  isAnew: boolean,
): Promise<boolean> {
  return await releaseLeased(database, PENDING_RUNS, pendingLease(id, token), {
    name: 'pending-run-release',
    // The end of a lease counts as one; it is no attempt, nor is a run that has not begun.
    set: 'held = null, effect = effect and not $3, returned = returned + 1 + (not $3)::int',
    values: [isAnew],
  })
}

/** Notes that the run is about to change something. False when the lease was lost. */
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
 * Runs accepted longer ago than `olderThanMs` that no worker has, in the order of their ids, those after `after`. Runs
 * of another Redis come much later: while a deployment moves from one to the other, workers of both
 * see this table.
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

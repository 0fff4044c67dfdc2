/** The durable side of asynchronous bot runs: a row from acceptance until the AsyncJob is finished. */
import type { Connection } from '../platform/postgres/statement.ts'

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

export async function addPendingRun(database: Connection, run: PendingRun): Promise<void> {
  await database.query({
    name: 'pending-run-add',
    text: `insert into pending_run (id, project, home, job) values ($1, $2, $3, $4)
      on conflict do nothing`,
    values: [run.id, run.projectId, run.home, run.job ?? null],
  })
}

/** False once its AsyncJob is finished. */
export async function isPendingRun(database: Connection, id: string): Promise<boolean> {
  const rows = await database.query({
    name: 'pending-run-is',
    text: 'select from pending_run where id = $1',
    values: [id],
  })
  return rows.length > 0
}

export async function removePendingRun(database: Connection, id: string): Promise<void> {
  await database.query({
    name: 'pending-run-remove',
    text: 'delete from pending_run where id = $1',
    values: [id],
  })
}

/**
 * Runs accepted longer ago than `olderThanMs`, in the order of their ids, those after `after`. Runs
 * of another Redis come much later: while a deployment moves from one to the other, workers of both
 * see this table.
 */
export async function pendingRuns(
  database: Connection,
  home: string,
  olderThanMs: number,
  after: string,
  count: number,
): Promise<readonly PendingRun[]> {
  const rows = await database.query<{
    id: string
    project: string
    home: string
    job: string | null
  }>({
    name: 'pending-runs',
    text: `
      select id, project, home, job from pending_run
      where id > $1::uuid
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

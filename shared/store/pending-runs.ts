/** The durable side of asynchronous bot runs: a row from acceptance until the AsyncJob is finished. */
import type { Connection } from '../database.ts'

export interface PendingRun {
  readonly id: string
  /** Id of the Project its AsyncJob lives in. */
  readonly projectId: string
  /** The job as JSON text; undefined for a run that must not be started a second time. */
  readonly job: string | undefined
}

export async function addPendingRun(database: Connection, run: PendingRun): Promise<void> {
  await database.query({
    name: 'pending-run-add',
    text: 'insert into pending_run (id, project, job) values ($1, $2, $3) on conflict do nothing',
    values: [run.id, run.projectId, run.job ?? null],
  })
}

export async function removePendingRun(database: Connection, id: string): Promise<void> {
  await database.query({
    name: 'pending-run-remove',
    text: 'delete from pending_run where id = $1',
    values: [id],
  })
}

/** Runs accepted longer ago than `olderThanMs`, in the order of their ids, those after `after`. */
export async function pendingRuns(
  database: Connection,
  olderThanMs: number,
  after: string,
  count: number,
): Promise<readonly PendingRun[]> {
  const rows = await database.query<{ id: string; project: string; job: string | null }>({
    name: 'pending-runs',
    text: `
      select id, project, job from pending_run
      where added < clock_timestamp() - $1 * interval '1 millisecond' and id > $2::uuid
      order by id limit $3`,
    values: [olderThanMs, after, count],
  })
  return rows.map(({ id, project, job }) => ({ id, projectId: project, job: job ?? undefined }))
}

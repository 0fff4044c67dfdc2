/**
 * Long work of the upkeep, one row of table `job` each until it is done: what a worker that dies has
 * begun another one goes on with. Its AsyncJob has the same id.
 */
import type { Connection } from '../database.ts'

export type UpkeepKind = 'reindex' | 'expunge'

/** What is to be done; ids alone. */
export interface UpkeepInput {
  /** Project whose AsyncJob it is, and who asked. */
  readonly homeId: string
  readonly requester: string | undefined
  readonly membershipId: string
  /** Project that is worked on. */
  readonly projectId: string
  readonly type: string | undefined
  readonly id: string | undefined
}

export interface UpkeepJob {
  readonly id: string
  readonly kind: UpkeepKind
  readonly input: UpkeepInput
  /** Whatever the work needs to go on; null at its beginning. */
  readonly progress: unknown
}

/** Without a sign of life for so long a job is taken by another worker. */
const ABANDONED_MS = 30_000

export async function addUpkeepJob(
  connection: Connection,
  id: string,
  project: number,
  kind: UpkeepKind,
  input: UpkeepInput,
): Promise<void> {
  await connection.query({
    name: 'upkeep-job-add',
    text: `insert into job (id, project, kind, state, input) values ($1, $2, $3, 'waiting', $4)`,
    values: [id, project, kind, JSON.stringify(input)],
  })
}

/** The oldest job that nobody works on, now taken. */
export async function takeUpkeepJob(connection: Connection): Promise<UpkeepJob | undefined> {
  const [job] = await connection.query<UpkeepJob>({
    name: 'upkeep-job-take',
    text: `update job set state = 'active', touched = clock_timestamp(),
        started = coalesce(started, clock_timestamp())
      where id = (select id from job where kind in ('reindex', 'expunge') and (state = 'waiting'
          or touched < clock_timestamp() - $1::float8 * interval '1 ms')
        order by touched limit 1 for update skip locked)
      returning id, kind, input, progress`,
    values: [ABANDONED_MS],
  })
  return job
}

export async function saveProgress(
  connection: Connection,
  id: string,
  progress: unknown,
): Promise<void> {
  await connection.query({
    name: 'upkeep-job-progress',
    text: 'update job set touched = clock_timestamp(), progress = $2 where id = $1',
    values: [id, JSON.stringify(progress)],
  })
}

/** It goes back to those that wait. */
export async function releaseUpkeepJob(connection: Connection, id: string): Promise<void> {
  await connection.query({
    name: 'upkeep-job-release',
    text: `update job set state = 'waiting' where id = $1`,
    values: [id],
  })
}

export async function removeUpkeepJob(connection: Connection, id: string): Promise<void> {
  await connection.query({
    name: 'upkeep-job-remove',
    text: 'delete from job where id = $1',
    values: [id],
  })
}

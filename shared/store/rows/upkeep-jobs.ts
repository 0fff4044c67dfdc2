/**
 * Long work of the upkeep, one row of table `job` each until it is done: what a worker that dies has
 * begun another one goes on with. What somebody has asked for has an AsyncJob of the same id.
 */
import type { Connection } from '../../platform/postgres/statement.ts'

export type UpkeepKind = 'reindex' | 'expunge'

/** The kinds of work that the service finds by itself. */
export type OwnKind = 'own-parameters' | 'index-revision'

/** The input of a job; ids alone. */
export interface UpkeepInput {
  /** Project whose AsyncJob it is, and who asked. */
  readonly homeId: string
  readonly requester: string | undefined
  readonly membershipId: string
  readonly scope: string
  readonly patient: string | undefined
  /** Project that is worked on. */
  readonly projectId: string
  readonly type: string | undefined
  readonly id: string | undefined
  /** For a reindex: a search that selects some of the resources. */
  readonly filter?: string | undefined
}

interface JobRow {
  readonly id: string
  /** Number of the Project that it belongs to. */
  readonly project: number
  /** Whatever the work needs to go on; null at its beginning. */
  readonly progress: unknown
}

export interface UpkeepJob extends JobRow {
  readonly kind: UpkeepKind
  readonly input: UpkeepInput
}

export interface OwnJob extends JobRow {
  readonly kind: OwnKind
  readonly input: OwnJobInput
}

export function isOwnJob(job: UpkeepJob | OwnJob): job is OwnJob {
  return job.kind === 'own-parameters' || job.kind === 'index-revision'
}

export interface OwnJobInput {
  /** Reasons for the job that came while there was one already. */
  readonly changes: number
}

/** By then a change has been heard of. */
const HEARD_MS = 100
/** Without a sign of life for so long a job is taken by another worker. */
const ABANDONED_MS = 30_000

interface NewUpkeepJob {
  readonly project: number
  readonly kind: UpkeepKind
  readonly input: UpkeepInput
}

export async function addUpkeepJob(
  connection: Connection,
  id: string,
  { project, kind, input }: NewUpkeepJob,
): Promise<void> {
  await connection.query({
    name: 'upkeep-job-add',
    text: `insert into job (id, project, kind, state, input) values ($1, $2, $3, 'waiting', $4)`,
    values: [id, project, kind, JSON.stringify(input)],
  })
}

/** The oldest job that nobody works on, now taken. */
export async function takeUpkeepJob(
  connection: Connection,
): Promise<UpkeepJob | OwnJob | undefined> {
  const [job] = await connection.query<UpkeepJob | OwnJob>({
    name: 'upkeep-job-take',
    text: `update job set state = 'active', touched = clock_timestamp(),
        started = coalesce(started, clock_timestamp())
      where id = (select id from job
        where kind in ('reindex', 'expunge', 'own-parameters', 'index-revision')
          and touched < clock_timestamp()
            - case state when 'waiting' then 0 else $1::float8 end * interval '1 ms'
        order by touched limit 1 for update skip locked)
      returning id, project, kind, input, progress`,
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

/**
 * The part of a statement that has the index of Projects brought up to date: one job a Project, which
 * starts over when a change comes while it runs. `projects` is the SQL of an int[].
 */
export function ownParametersJob(projects: string): string {
  return `insert into job (id, project, kind, state, input, touched)
    select gen_random_uuid(), x, 'own-parameters', 'waiting', '{"changes":0}',
      clock_timestamp() + ${HEARD_MS} * interval '1 ms'
    from unnest(${projects}) x order by x
    on conflict (project) where kind = 'own-parameters' do update
      set input = jsonb_build_object('changes', (job.input->>'changes')::int + 1),
        touched = case when job.state = 'waiting' then excluded.touched else job.touched end`
}

export async function addOwnParametersJob(connection: Connection, project: number): Promise<void> {
  await connection.query({ text: ownParametersJob('$1::int[]'), values: [[project]] })
}

/** Nothing when there is such a job already. */
export async function addRevisionJob(connection: Connection): Promise<void> {
  await connection.query({
    text: `insert into job (id, project, kind, state, input)
      values (gen_random_uuid(), 1, 'index-revision', 'waiting', '{"changes":0}')
      on conflict (kind) where kind = 'index-revision' do nothing`,
    values: [],
  })
}

/** Ends a job, unless there is a new reason for it: then it waits to be done once more. */
export async function endOwnJob(connection: Connection, { id, input }: OwnJob): Promise<void> {
  const [done] = await connection.query({
    name: 'own-job-end',
    text: `delete from job where id = $1 and (input->>'changes')::int = $2 returning 1`,
    values: [id, input.changes],
  })
  if (done === undefined) await postponeOwnJob(connection, id)
}

/** It goes on where it is, a little later: other jobs come first. */
export async function deferOwnJob(
  connection: Connection,
  id: string,
  waitMs: number,
): Promise<void> {
  await connection.query({
    name: 'own-job-defer',
    text: `update job set state = 'waiting',
      touched = clock_timestamp() + $2::float8 * interval '1 ms' where id = $1`,
    values: [id, waitMs],
  })
}

/** It is begun anew when all processes have heard of what has changed. */
export async function postponeOwnJob(connection: Connection, id: string): Promise<void> {
  await connection.query({
    name: 'own-job-postpone',
    text: `update job set state = 'waiting', progress = null,
      touched = clock_timestamp() + $2::float8 * interval '1 ms' where id = $1`,
    values: [id, HEARD_MS],
  })
}

/** How far the index of a Project is; undefined when nothing is to be done. */
export async function ownJobProgress(
  connection: Connection,
  project: number,
): Promise<{ readonly seen: number; readonly total: number } | undefined> {
  const [job] = await connection.query<{ seen: number; total: number }>({
    name: 'own-job-progress',
    text: `select coalesce((progress->>'seen')::int, 0) as seen,
        coalesce((progress->>'total')::int, 0) as total
      from job where project = $1 and kind = 'own-parameters'`,
    values: [project],
  })
  return job
}

interface UpkeepDepth {
  readonly kind: string
  readonly waiting: number
  readonly active: number
  /** Since it was last worked on. */
  readonly oldestMs: number
}

/** Long work that is not done, by kind. */
export async function upkeepDepths(connection: Connection): Promise<readonly UpkeepDepth[]> {
  return await connection.query<UpkeepDepth>({
    name: 'upkeep-job-depths',
    text: `select kind, count(*) filter (where state = 'waiting')::int as waiting,
        count(*) filter (where state = 'active')::int as active,
        greatest(0, extract(epoch from clock_timestamp() - min(touched)) * 1000)::float8
          as "oldestMs"
      from job group by kind order by kind`,
    values: [],
  })
}

export async function removeUpkeepJob(connection: Connection, id: string): Promise<void> {
  await connection.query({
    name: 'upkeep-job-remove',
    text: 'delete from job where id = $1',
    values: [id],
  })
}

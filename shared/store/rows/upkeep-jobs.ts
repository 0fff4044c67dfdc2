/**
 * Long work of the upkeep, one row of table `job` each until it is done: what a worker that dies has
 * begun another one goes on with. What somebody has asked for has an AsyncJob of the same id.
 */
import type { RunLease } from '../../access/principal.ts'
import { timings } from '../../core/config/waits.ts'
import {
  deleteLeased,
  isLeased,
  type Lease,
  type LeaseTable,
  leaseNext,
  leaseValues,
  releaseLeased,
  updateLeased,
} from '../../postgres/leases.ts'
import type { Connection } from '../../postgres/statement.ts'

/** All kinds of jobs: upkeep, accepted requests, downloads. */
export const JOBS: LeaseTable = {
  name: 'job',
  key: { id: 'uuid' },
  token: 'takes',
  expiresAt: 'held',
  leaseMs: timings.leaseMs,
}

/** A job as its worker has it. */
export interface LeasedJob {
  readonly id: string
  readonly token: number
}

export function jobLease({ id, token }: LeasedJob): Lease {
  return { key: [id], token }
}

/** For a Principal whose writes are refused once the job is another worker's. */
export function jobRunLease({ id, token }: LeasedJob): RunLease {
  return { owner: 'j', run: id, token }
}

export type UpkeepKind = 'reindex' | 'expunge'

/** The kinds of work that the service finds by itself. */
type OwnKind = 'own-parameters' | 'index-revision'

/** The input of a job; ids alone. */
interface UpkeepInput {
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

interface JobRow extends LeasedJob {
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

interface OwnJobInput {
  /** Reasons for the job that came while there was one already. */
  readonly changes: number
}

/** By then a change has been heard of. */
const HEARD_MS = 100
/** A worker of the version before writes down no lease, but touches its job at least so often. */
const TOUCHED = "interval '30 s'"

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

/** Leases the oldest job that no worker has. */
export async function leaseUpkeepJob(
  connection: Connection,
): Promise<UpkeepJob | OwnJob | undefined> {
  return await leaseNext<UpkeepJob | OwnJob>(connection, JOBS, {
    name: 'upkeep-job-lease',
    where: `x.kind in ('reindex', 'expunge', 'own-parameters', 'index-revision')
      and (x.held is not null or x.touched < clock_timestamp()
        - case x.state when 'waiting' then interval '0' else ${TOUCHED} end)`,
    orderBy: 'x.touched',
    set: `state = 'active', touched = clock_timestamp(), started = coalesce(x.started, clock_timestamp())`,
    returning: 'x.id, x.project, x.kind, x.input, x.progress',
  })
}

/** False when the lease of the job was lost; the same of all that follow. */
export async function saveProgress(
  connection: Connection,
  job: LeasedJob,
  progress: unknown,
): Promise<boolean> {
  return await updateLeased(connection, JOBS, jobLease(job), {
    name: 'upkeep-job-progress',
    set: 'touched = clock_timestamp(), progress = $3',
    values: [JSON.stringify(progress)],
  })
}

/** Gives the job back: it waits for another worker. */
export async function releaseUpkeepJob(connection: Connection, job: LeasedJob): Promise<boolean> {
  return await releaseLeased(connection, JOBS, jobLease(job), {
    name: 'upkeep-job-release',
    set: `state = 'waiting', held = null`,
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

/** Ends a job; one that has a new reason waits to be done once more. */
export async function endOwnJob(connection: Connection, job: OwnJob): Promise<boolean> {
  const [done] = await connection.query({
    name: 'own-job-end',
    text: `delete from job where ${isLeased(JOBS)} and (input->>'changes')::int = $3 returning 1`,
    values: [...leaseValues(jobLease(job)), job.input.changes],
  })
  return done !== undefined || (await postponeOwnJob(connection, job))
}

/** The job goes on where it is, a little later: other jobs come first. */
export async function deferOwnJob(
  connection: Connection,
  job: LeasedJob,
  waitMs: number,
): Promise<boolean> {
  return await releaseLeased(connection, JOBS, jobLease(job), {
    name: 'own-job-defer',
    set: `state = 'waiting', held = null,
      touched = clock_timestamp() + $3::float8 * interval '1 ms'`,
    values: [waitMs],
  })
}

/** The job begins again when all processes have heard of what has changed. */
async function postponeOwnJob(connection: Connection, job: LeasedJob): Promise<boolean> {
  return await releaseLeased(connection, JOBS, jobLease(job), {
    name: 'own-job-postpone',
    set: `state = 'waiting', held = null, progress = null,
      touched = clock_timestamp() + $3::float8 * interval '1 ms'`,
    values: [HEARD_MS],
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

export async function removeJob(connection: Connection, job: LeasedJob): Promise<boolean> {
  return await deleteLeased(connection, JOBS, jobLease(job))
}

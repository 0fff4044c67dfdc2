/** Long-running jobs, one row of table `job` each until done. Requested ones have an AsyncJob of the same id. */
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

export interface LeasedJob {
  readonly id: string
  readonly token: number
}

export function jobLease({ id, token }: LeasedJob): Lease {
  return { key: [id], token }
}

/** For a Principal whose writes are rejected once the lease is lost. */
export function jobRunLease({ id, token }: LeasedJob): RunLease {
  return { owner: 'j', run: id, token }
}

export type UpkeepKind = 'reindex' | 'expunge' | 'dry-run'

type OwnKind = 'own-parameters' | 'index-revision'

export interface UpkeepInput {
  /** Project of the AsyncJob; the next elements are its caller. */
  readonly homeId: string
  readonly requester: string | undefined
  readonly membershipId: string
  readonly scope: string
  readonly patient: string | undefined
  readonly projectId: string
  readonly type: string | undefined
  readonly id: string | undefined
  /** Narrows a reindex. */
  readonly filter?: string | undefined
  readonly dryRun?: DryRunInput | undefined
}

/** Past runs of a Bot, to be repeated with the code of a label in a version of the Bot. */
export interface DryRunInput {
  readonly version: number
  readonly label: string
  readonly runs: readonly string[]
}

interface JobRow extends LeasedJob {
  readonly project: number
  /** State of the work; null at its beginning. */
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

/** Time until all processes know of a change. */
const HEARD_MS = 100
/** Workers of the previous release write no lease, but touch their job at least this often. */
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

export async function leaseUpkeepJob(
  connection: Connection,
): Promise<UpkeepJob | OwnJob | undefined> {
  return await leaseNext<UpkeepJob | OwnJob>(connection, JOBS, {
    name: 'upkeep-job-lease',
    where: `x.kind in ('reindex', 'expunge', 'dry-run', 'own-parameters', 'index-revision')
      and (x.held is not null or x.touched < clock_timestamp()
        - case x.state when 'waiting' then interval '0' else ${TOUCHED} end)`,
    orderBy: 'x.touched',
    set: `state = 'active', touched = clock_timestamp(), started = coalesce(x.started, clock_timestamp())`,
    returning: 'x.id, x.project, x.kind, x.input, x.progress',
  })
}

/** False when the lease was lost, here and below. */
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

export async function releaseUpkeepJob(connection: Connection, job: LeasedJob): Promise<boolean> {
  return await releaseLeased(connection, JOBS, jobLease(job), {
    name: 'upkeep-job-release',
    set: `state = 'waiting', held = null`,
  })
}

/** One job per Project, which restarts on a change. `projects` is the SQL of an int[]. */
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

/** Does nothing if the job exists. */
export async function addRevisionJob(connection: Connection): Promise<void> {
  await connection.query({
    text: `insert into job (id, project, kind, state, input)
      values (gen_random_uuid(), 1, 'index-revision', 'waiting', '{"changes":0}')
      on conflict (kind) where kind = 'index-revision' do nothing`,
  })
}

/** Ends a job; one with a new reason runs again. */
export async function endOwnJob(connection: Connection, job: OwnJob): Promise<boolean> {
  const [done] = await connection.query({
    name: 'own-job-end',
    text: `delete from job where ${isLeased(JOBS)} and (input->>'changes')::int = $3 returning 1`,
    values: [...leaseValues(jobLease(job)), job.input.changes],
  })
  return done !== undefined || (await postponeOwnJob(connection, job))
}

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

/** Restarts the job when all processes know of the change. */
async function postponeOwnJob(connection: Connection, job: LeasedJob): Promise<boolean> {
  return await releaseLeased(connection, JOBS, jobLease(job), {
    name: 'own-job-postpone',
    set: `state = 'waiting', held = null, progress = null,
      touched = clock_timestamp() + $3::float8 * interval '1 ms'`,
    values: [HEARD_MS],
  })
}

/** Undefined without a job. */
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

export async function upkeepDepths(connection: Connection): Promise<readonly UpkeepDepth[]> {
  return await connection.query<UpkeepDepth>({
    name: 'upkeep-job-depths',
    text: `select kind, count(*) filter (where state = 'waiting')::int as waiting,
        count(*) filter (where state = 'active')::int as active,
        greatest(0, extract(epoch from clock_timestamp() - min(touched)) * 1000)::float8
          as "oldestMs"
      from job group by kind order by kind`,
  })
}

export async function removeJob(connection: Connection, job: LeasedJob): Promise<boolean> {
  return await deleteLeased(connection, JOBS, jobLease(job))
}

/** Table `export_job` (request, caller and state of each export), and the parts that workers write. */
import type { Issue } from '../../core/errors.ts'
import type { Slice } from '../../outbound/storage/storage.ts'
import { type Connection, hasRows } from '../../postgres/statement.ts'
import type { Criterion } from '../../search/language/search-request.ts'

type ExportState = 'accepted' | 'active' | 'completed' | 'error' | 'cancelled'

export type ExportLevel = 'system' | 'patient' | 'group' | 'instance'

export interface ElementChoice {
  readonly type: string | undefined
  readonly name: string
}

export interface TypeFilter {
  readonly type: string
  /** AND; several filters of a type are combined by OR. */
  readonly conditions: readonly Criterion[]
}

/** Provenance to export: the newest per resource, or all. */
export type ProvenanceChoice = 'latest' | 'relevant'

export interface ExportInput {
  readonly projectId: string
  readonly membershipId: string
  readonly scope: string
  readonly patient: string | undefined
  readonly profile: string | undefined
  readonly clientId: string | undefined
  /** Digest of the member's read access at kick-off. */
  readonly rights: string
  /** Full URL of the request. */
  readonly request: string
  readonly level: ExportLevel
  readonly id: string | undefined
  /** Defaults to all types that are exported without being named. */
  readonly types: readonly string[] | undefined
  readonly since: string | undefined
  readonly until: string | undefined
  readonly elements: readonly ElementChoice[]
  readonly filters: readonly TypeFilter[]
  readonly patients: readonly string[] | undefined
  /** Defaults to the level's choice. */
  readonly provenance: ProvenanceChoice | undefined
  readonly separateStatus: boolean
  readonly partialManifests: boolean
  /** Default: by type; absent in older jobs. */
  readonly organizedBy?: 'Patient' | undefined
  /** Stores each file as one object for direct download. */
  readonly presigned: boolean
}

export interface ExportJob {
  readonly id: string
  readonly project: number
  readonly state: ExportState
  readonly input: ExportInput
  readonly requested: Date
  /** `transactionTime`; null until planned. */
  readonly at: Date | null
  readonly finished: Date | null
  readonly expires: Date | null
  readonly issues: readonly Issue[]
  readonly failure: { readonly status: number; readonly text: string } | null
}

export type PlannedJob = ExportJob & { readonly at: Date }

const COLUMNS = 'id, project, state, input, requested, at, finished, expires, issues, failure'

/** Call inside a transaction. False when the Project already has `most` waiting. */
export async function addExport(
  connection: Connection,
  job: Pick<ExportJob, 'id' | 'project' | 'input' | 'issues'>,
  most: number,
): Promise<boolean> {
  await lockExports(connection, job.project)
  return await hasRows(connection, {
    name: 'export-add',
    text: `with j as (insert into export_job (id, project, state, input, issues)
        select $1, $2, 'accepted', $3::jsonb, $4::jsonb where (select count(*) from export_job
          where project = $2 and state = 'accepted') < $5 returning id)
      insert into export_part (job, n, kind) select id, 0, 'plan' from j returning job`,
    values: [job.id, job.project, JSON.stringify(job.input), JSON.stringify(job.issues), most],
  })
}

/** Serializes counting per Project until the transaction ends. */
export async function lockExports(connection: Connection, project: number): Promise<void> {
  await connection.query({
    name: 'export-lock',
    text: 'select pg_advisory_xact_lock($1, $2)',
    values: [EXPORTS_LOCK, project],
  })
}

const EXPORTS_LOCK = 0x4558

/** Undefined if unknown, expired or cancelled. */
export async function readExport(
  connection: Connection,
  id: string,
): Promise<ExportJob | undefined> {
  const [job] = await connection.query<ExportJob>({
    name: 'export-read',
    text: `select ${COLUMNS} from export_job where id = $1
      and state <> 'cancelled' and (expires is null or expires > clock_timestamp())`,
    values: [id],
  })
  return job
}

/** Returns the number of parts and of completed parts. The plan counts as one part. */
export async function exportProgress(
  connection: Connection,
  id: string,
): Promise<{ readonly done: number; readonly total: number; readonly ageMs: number }> {
  const [found] = await connection.query<{ done: number; total: number; ageMs: number }>({
    name: 'export-progress',
    text: `select count(*) filter (where p.state = 'done')::int as done, count(*)::int as total,
        (extract(epoch from clock_timestamp() - min(j.requested)) * 1000)::float8 as "ageMs"
      from export_job j join export_part p on p.job = j.id where j.id = $1`,
    values: [id],
  })
  return found ?? { done: 0, total: 1, ageMs: 0 }
}

export async function cancelExport(connection: Connection, id: string): Promise<boolean> {
  return await hasRows(connection, {
    name: 'export-cancel',
    text: `update export_job set state = 'cancelled', finished = clock_timestamp()
      where id = $1 and state <> 'cancelled' and not swept returning id`,
    values: [id],
  })
}

/** Fails a running job; `isRevoked`: also a completed one whose member was removed. False if already ended. */
export async function failExport(
  connection: Connection,
  id: string,
  failure: NonNullable<ExportJob['failure']>,
  { keepHours, isRevoked }: { readonly keepHours: number; readonly isRevoked: boolean },
): Promise<boolean> {
  return await hasRows(connection, {
    name: 'export-fail',
    text: `update export_job set state = 'error', failure = $2,
        finished = coalesce(finished, clock_timestamp()),
        expires = coalesce(expires, clock_timestamp() + $3::float8 * interval '1 hour')
      where id = $1 and (state in ('accepted', 'active') or ($4 and state = 'completed'))
      returning id`,
    values: [id, JSON.stringify(failure), keepHours, isRevoked],
  })
}

/** Issue code of an unreadable row; errors count for the limits. */
export const UNREADABLE = 'incomplete'

/** Adds distinct non-fatal issues for the `error` file. Returns the number of unreadable rows among all. */
export async function addIssues(
  connection: Connection,
  id: string,
  issues: readonly Issue[],
): Promise<number> {
  if (issues.length === 0) return 0
  const [row] = await connection.query<{ count: number }>({
    name: 'export-issues',
    text: `update export_job set issues = issues || $2::jsonb
      where id = $1 and not issues @> $2::jsonb
      returning (select count(*)::int from jsonb_array_elements(issues) x
        where x->>'severity' = 'error' and x->>'code' = $3) as count`,
    values: [id, JSON.stringify(issues), UNREADABLE],
  })
  return row?.count ?? 0
}

/** Extends the files' lifetime by an hour for a new download. False when removal has begun. */
export async function extendForDownload(connection: Connection, id: string): Promise<boolean> {
  return await hasRows(connection, {
    name: 'export-hold',
    text: `update export_job set downloaded = clock_timestamp(),
        expires = case when state = 'completed'
          then greatest(expires, clock_timestamp() + interval '1 hour') else expires end
      where id = $1 and state in ('active', 'completed')
        and (expires is null or expires > clock_timestamp()) returning id`,
    values: [id],
  })
}

export interface ExportPart {
  readonly n: number
  readonly kind: PartKind
  /** Fencing token of the lease; 1 for the first. */
  readonly token: number
  /** Attempts, and failed attempts, since the last progress. */
  readonly tries: number
  readonly failures: number
  /** Type of `after`, in a part of several types. */
  readonly type: string | undefined
  /** Types of a shared part in writing order, and of a listed part. */
  readonly types: readonly string[]
  /** Row ids, or patients of listed arrays, above `low`, up to `high`; undefined is unbounded. */
  readonly low: string | undefined
  readonly high: string | undefined
  readonly after: string | undefined
}

/**
 * `plan` creates the other parts, of which `shared` covers several types and `listed` listed rows of some; `close` runs
 * after all others.
 */
export type PartKind = 'plan' | 'output' | 'shared' | 'listed' | 'deleted' | 'close'

export interface Range {
  readonly low: string | undefined
  readonly high: string | undefined
  readonly ids?: readonly string[] | undefined
}

export interface LineWriter {
  /** Copies a line; await a returned promise before the next. `header` precedes a patient's first line in each file. */
  add(id: Slice, line: Slice, header?: Slice, isFirst?: boolean): Promise<void> | undefined
  /** Starts a new type, with its own files. */
  turn(type: string): void
  /** Records the row id of an unreadable row; `type` if not the file's. */
  bad(id: Buffer, type?: string): Promise<void>
}

/**
 * Exports, one row of `export_job` each: what was asked for, by whom, and what has become of it; and the part of
 * one that a worker writes at a time.
 */
import type { Issue } from '../../core/errors.ts'
import type { Connection } from '../../postgres/statement.ts'
import type { Criterion } from '../../search/language/search-request.ts'
import type { Slice } from '../../storage/storage.ts'

type ExportState = 'accepted' | 'active' | 'completed' | 'error' | 'cancelled'

export type ExportLevel = 'system' | 'patient' | 'group' | 'instance'

export interface ElementChoice {
  /** Undefined: of every type. */
  readonly type: string | undefined
  readonly name: string
}

export interface TypeFilter {
  readonly type: string
  /** AND-ed; several filters of a type are OR-ed. */
  readonly conditions: readonly Criterion[]
}

/** How much Provenance goes with what is exported: the newest of each resource, or all. */
export type ProvenanceChoice = 'latest' | 'relevant'

/** The request, and its caller; it holds no token. */
export interface ExportInput {
  readonly projectId: string
  readonly membershipId: string
  readonly scope: string
  readonly patient: string | undefined
  readonly profile: string | undefined
  readonly clientId: string | undefined
  /** Digest of what the member could read when it asked. */
  readonly rights: string
  /** Full URL of the request. */
  readonly request: string
  readonly level: ExportLevel
  /** Id of the Group, or of the Patient. */
  readonly id: string | undefined
  /** Undefined: all that can be exported without being named. */
  readonly types: readonly string[] | undefined
  readonly since: string | undefined
  readonly until: string | undefined
  readonly elements: readonly ElementChoice[]
  readonly filters: readonly TypeFilter[]
  /** Ids of Patients, when they were named. */
  readonly patients: readonly string[] | undefined
  /** Undefined: as the level has it. */
  readonly provenance: ProvenanceChoice | undefined
  readonly separateStatus: boolean
  readonly partialManifests: boolean
  /** Undefined: by types. Jobs that were asked for before there was a choice have none. */
  readonly organizedBy?: 'Patient' | undefined
  /** Each file is made one object, which its caller fetches from the storage. */
  readonly presigned: boolean
}

export interface ExportJob {
  readonly id: string
  readonly project: number
  readonly state: ExportState
  readonly input: ExportInput
  readonly requested: Date
  /** `transactionTime`; null until it is planned. */
  readonly at: Date | null
  readonly finished: Date | null
  readonly expires: Date | null
  readonly issues: readonly Issue[]
  /** Why it has failed. */
  readonly failure: { readonly status: number; readonly text: string } | null
}

/** One that has its time. */
export type PlannedJob = ExportJob & { readonly at: Date }

const COLUMNS = 'id, project, state, input, requested, at, finished, expires, issues, failure'

/** Inside a transaction. False when the Project has `most` waiting already. */
export async function addExport(
  connection: Connection,
  job: Pick<ExportJob, 'id' | 'project' | 'input' | 'issues'>,
  most: number,
): Promise<boolean> {
  await lockExports(connection, job.project)
  const rows = await connection.query({
    name: 'export-add',
    text: `with j as (insert into export_job (id, project, state, input, issues)
        select $1, $2, 'accepted', $3::jsonb, $4::jsonb where (select count(*) from export_job
          where project = $2 and state = 'accepted') < $5 returning id)
      insert into export_part (job, n, kind) select id, 0, 'plan' from j returning job`,
    values: [job.id, job.project, JSON.stringify(job.input), JSON.stringify(job.issues), most],
  })
  return rows.length > 0
}

/** Until the transaction ends: those of a Project are counted by one at a time. */
export async function lockExports(connection: Connection, project: number): Promise<void> {
  await connection.query({
    name: 'export-lock',
    text: 'select pg_advisory_xact_lock($1, $2)',
    values: [EXPORTS_LOCK, project],
  })
}

const EXPORTS_LOCK = 0x4558

/** Undefined for what is unknown, expired or cancelled. */
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

/** How many parts it has, and how many are done. The plan counts as one that has the others in it. */
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

/** False when somebody was first. */
export async function cancelExport(connection: Connection, id: string): Promise<boolean> {
  const rows = await connection.query({
    name: 'export-cancel',
    text: `update export_job set state = 'cancelled', finished = clock_timestamp()
      where id = $1 and state <> 'cancelled' and not swept returning id`,
    values: [id],
  })
  return rows.length > 0
}

/**
 * Ends a job that cannot be completed; `isRevoked`: also one that is, since its member has gone. False for any other job
 * that has ended.
 */
export async function failExport(
  connection: Connection,
  id: string,
  failure: NonNullable<ExportJob['failure']>,
  { keepHours, isRevoked }: { readonly keepHours: number; readonly isRevoked: boolean },
): Promise<boolean> {
  const rows = await connection.query({
    name: 'export-fail',
    text: `update export_job set state = 'error', failure = $2,
        finished = coalesce(finished, clock_timestamp()),
        expires = coalesce(expires, clock_timestamp() + $3::float8 * interval '1 hour')
      where id = $1 and (state in ('accepted', 'active') or ($4 and state = 'completed'))
      returning id`,
    values: [id, JSON.stringify(failure), keepHours, isRevoked],
  })
  return rows.length > 0
}

/** Code of the issue of a row that could not be read. */
export const UNREADABLE = 'incomplete'

/** Adds issues that do not stop the export, each once, for its `error` file. Returns their number. */
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
      returning jsonb_array_length(issues) as count`,
    values: [id, JSON.stringify(issues)],
  })
  return row?.count ?? 0
}

/** A download that begins is given an hour. False when the files are about to be taken away. */
export async function extendForDownload(connection: Connection, id: string): Promise<boolean> {
  const rows = await connection.query({
    name: 'export-hold',
    text: `update export_job set downloaded = clock_timestamp(),
        expires = case when state = 'completed'
          then greatest(expires, clock_timestamp() + interval '1 hour') else expires end
      where id = $1 and state in ('active', 'completed')
        and (expires is null or expires > clock_timestamp()) returning id`,
    values: [id],
  })
  return rows.length > 0
}

export interface ExportPart {
  readonly n: number
  readonly kind: PartKind
  /** Number of the lease that a worker holds; 1 for the first. */
  readonly token: number
  /** Taken so often since it last came forward, and thrown so often. */
  readonly tries: number
  readonly failures: number
  /** The type that `after` belongs to, in a shared part. */
  readonly type: string | undefined
  /** The types of a shared part, in the order in which they are written. */
  readonly types: readonly string[]
  /** Row ids: above `low`, up to `high`; undefined has no bound. */
  readonly low: string | undefined
  readonly high: string | undefined
  /** The last row that is written. */
  readonly after: string | undefined
}

export type TypedPart = Pick<ExportPart, 'low' | 'high' | 'after'> & { readonly type: string }

export function hasType(part: ExportPart): part is ExportPart & { readonly type: string } {
  return part.type !== undefined
}

/** `plan` makes the others, of which `shared` is several types; `close` is taken when they are done. */
export type PartKind = 'plan' | 'output' | 'shared' | 'deleted' | 'close'

/** Row ids above `low`, up to `high`. */
export interface Range {
  readonly low: string | undefined
  readonly high: string | undefined
  /** And among these. */
  readonly ids?: readonly string[]
}

/** The destination of the lines of a part. */
export interface LineWriter {
  /**
   * Copies a line, whose bytes may change afterwards; a promise: no more until then. `header` goes before the first line of
   * a patient, and again at the beginning of a file that continues with one.
   */
  add(id: Slice, line: Slice, header?: Slice, isFirst?: boolean): Promise<void> | undefined
  /** Takes the last line back, once. */
  undo(): void
  /** The next lines have this type, and files of their own. */
  turn(type: string): void
  /** Takes the row id of what cannot be read; `type`: not that of the file. */
  bad(id: Buffer, type?: string): Promise<void>
}

/** Row ids as COPY gives them, and as text. */

export const ROW_ID_BYTES = 16

export function uuidFromBytes(bytes: Buffer): string {
  const hex = bytes.toString('hex')
  return hex.replace(/^(.{8})(.{4})(.{4})(.{4})/, '$1-$2-$3-$4-')
}

export function uuidToBytes(uuid: string): Buffer {
  return Buffer.from(uuid.replaceAll('-', ''), 'hex')
}

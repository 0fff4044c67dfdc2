/** Import jobs as the web process sees them: added, looked at, cancelled; and forgotten when they are old. */
import type { Principal } from '../../access/principal.ts'
import type { OperationOutcome } from '../../errors.ts'
import type { Acting } from '../../identity/principals.ts'
import type { Connection } from '../../platform/postgres/statement.ts'

/** `ifNoneMatch` leaves alone what is there. */
export type ImportMode = 'upsert' | 'ifNoneMatch'

/** As whom the lines are written. Holds no token. */
export type ImportCaller = Pick<Principal, 'profile' | 'clientId'> & Acting

export interface ImportInput {
  /** Null: the address is that of a manifest, which names the inputs. */
  readonly type: string | null
  readonly url: string
}

export interface NewImport {
  readonly id: string
  /** Number of the Project. */
  readonly project: number
  /** URL of the kick-off. */
  readonly request: string
  readonly caller: ImportCaller
  readonly mode: ImportMode
  /** An input is begun when those before it are done. */
  readonly inOrder: boolean
  readonly inputs: readonly ImportInput[]
}

/** Inside a transaction. False when the Project has `most` under way already. */
export async function addImport(
  connection: Connection,
  { id, project, request, caller, mode, inOrder, inputs }: NewImport,
  most: number,
): Promise<boolean> {
  // One transaction at a time counts the imports of a Project.
  await connection.query({
    name: 'import-lock',
    text: 'select pg_advisory_xact_lock($1, $2)',
    values: [IMPORTS_LOCK, project],
  })
  const rows = await connection.query({
    text: `with job as (
        insert into import_job (id, project, request, caller, mode, in_order)
        select $1, $2, $3, $4::jsonb, $5, $6
        where (select count(*) from import_job where project = $2 and state = 'active') < $7
        returning id)
      insert into import_part (job, part, type, url)
      select job.id, x.part, x.type, x.url
      from job, unnest($8::text[], $9::text[]) with ordinality as x(type, url, part)
      returning part`,
    values: [
      id,
      project,
      request,
      JSON.stringify(caller),
      mode,
      inOrder,
      most,
      inputs.map(({ type }) => type),
      inputs.map(({ url }) => url),
    ],
  })
  return rows.length > 0
}

const IMPORTS_LOCK = 0x494d

export interface ImportJob {
  readonly id: string
  readonly project: number
  readonly state: 'active' | 'completed' | 'failed' | 'cancelled'
  readonly request: string
  readonly caller: ImportCaller
  readonly failure: OperationOutcome | null
  readonly added: Date
  readonly ended: Date | null
}

export interface ImportPart extends ImportInput {
  readonly part: number
  readonly state: 'waiting' | 'done'
  /** From 0 to 1. */
  readonly progress: number
  readonly created: number
  readonly updated: number
  readonly unchanged: number
  readonly skipped: number
  readonly failed: number
}

export async function readImport(
  database: Connection,
  id: string,
): Promise<{ readonly job: ImportJob; readonly parts: readonly ImportPart[] } | undefined> {
  const [job] = await database.query<ImportJob>({
    name: 'import-read',
    text: `select id, project, state, request, caller, failure, added, ended
      from import_job where id = $1`,
    values: [id],
  })
  if (job === undefined) return undefined
  const parts = await database.query<ImportPart>({
    name: 'import-parts',
    text: `select part, type, url, state, created::float8, updated::float8, unchanged::float8,
        skipped::float8, failed::float8,
        case when state = 'done' then 1 when coalesce(size, 0) = 0 then 0
          else least(1, coalesce(upper(bytes), 0)::float8 / size) end as progress
      from import_part where job = $1 order by part`,
    values: [id],
  })
  return { job, parts }
}

/** False when it was cancelled already. */
export async function cancelImport(database: Connection, id: string): Promise<boolean> {
  const rows = await database.query({
    name: 'import-cancel',
    text: `update import_job set state = 'cancelled', ended = coalesce(ended, clock_timestamp())
      where id = $1 and state <> 'cancelled' returning id`,
    values: [id],
  })
  return rows.length > 0
}

/** The lines of an error file, without their ends, `count` at most behind line `after`. */
export async function readImportErrors(
  database: Connection,
  id: string,
  { part, after, count }: { readonly part: number; readonly after: number; readonly count: number },
): Promise<readonly { readonly line: number; readonly outcome: string }[]> {
  return database.query({
    name: 'import-errors',
    text: `select line::float8, outcome from import_error
      where job = $1 and part = $2 and line > $3 order by line limit $4`,
    values: [id, part, after, count],
  })
}

/** Cancelled imports, and those that ended longer ago than `ttlHours`. */
export async function removeOldImports(database: Connection, ttlHours: number): Promise<void> {
  await database.query({
    name: 'import-remove',
    text: `delete from import_job where ended <= clock_timestamp()
      - case when state = 'cancelled' then 0 else $1::float8 end * interval '1 hour'`,
    values: [ttlHours],
  })
}

/** Import parts for workers. Writes after a lost lease or a cancel roll back with their transaction. */

import type { OperationOutcome } from '../core/errors.ts'
import { endPartSql, isHeld, leasePart, type PartTable } from '../jobs/part-queue.ts'
import { dialect } from '../postgres/chosen-dialect.ts'
import { deleteLeased, type Lease, leaseValues, updateLeased } from '../postgres/leases.ts'
import { type Connection, hasRows } from '../postgres/statement.ts'
import type { ImportCaller, ImportInput, ImportMode } from './jobs.ts'

export interface LeasedImportPart extends ImportInput {
  readonly job: string
  readonly part: number
  readonly token: number
  readonly caller: ImportCaller
  readonly mode: ImportMode
  /** Attempts since the last commit, including this one. */
  readonly attempts: number
  /** Offset of the first uncommitted line. */
  readonly from: number
  readonly nextLine: number
  /** Committed byte ranges `[start, end)`, in order. */
  readonly done: readonly (readonly [start: number, end: number])[]
}

/** Concurrent imports per Project; others wait. */
const MOST_RUNNING = 2

/** `due` is the end of a lease, or the start of the next. Column `lease` serves workers of the previous release. */
export const PARTS: PartTable = {
  name: 'import_part',
  key: { job: 'uuid', part: 'int' },
  token: 'takes',
  expiresAt: 'due',
  leaseMs: 15_000,
  jobs: 'import_job',
  isOpen: "j.state = 'active'",
  isRunning: 'a.lease is not null and a.due > clock_timestamp()',
  failed: 'lease = null',
  uncounted: 'lease = null, attempts = greatest(p.attempts - 1, 0)',
}

type LeasedPart = Pick<LeasedImportPart, 'job' | 'part' | 'token'>

export function partLease({ job, part, token }: LeasedPart): Lease {
  return { key: [job, part], token }
}

/** SQL: the first line of a part that is not committed. */
const NEXT_LINE =
  '(select coalesce(min(upper(r)), 1) from unnest(lines) r where lower(r) = 1)::float8'

export async function leaseImportPart(database: Connection): Promise<LeasedImportPart | undefined> {
  type Row = Omit<LeasedImportPart, 'done' | 'from'> & { readonly bytes: string }
  const row = await leasePart<Row>(database, PARTS, {
    name: 'import-take',
    where: `x.state = 'waiting'
      and (select count(*) from import_job o where o.project = j.project and o.state = 'active'
        and (o.added, o.id) < (j.added, j.id)) < ${MOST_RUNNING}
      and not (j.in_order and exists (select 1 from import_part b
        where b.job = x.job and b.part < x.part and b.state <> 'done'))`,
    orderBy: 'j.added, x.job, x.part',
    set: 'lease = gen_random_uuid(), attempts = x.attempts + 1',
    returning: `x.job, x.part, x.type, x.url, x.attempts, x.bytes::text, ${NEXT_LINE} as "nextLine",
      (select caller from import_job where id = x.job), (select mode from import_job where id = x.job)`,
  })
  if (row === undefined) return undefined
  const done = parseRanges(row.bytes)
  // The second of two batches in flight may commit first.
  const from = done.find(([start]) => start === 0)?.[1] ?? 0
  return { ...row, done, from }
}

function parseRanges(text: string): readonly (readonly [number, number])[] {
  return [...text.matchAll(/\[(\d+),(\d+)\)/g)].map(
    ([, start, end]) => [Number(start), Number(end)] as const,
  )
}

/** True when the part must wait for earlier ones, whose resources it may search for; enforces their order. */
export async function enforcePartOrder(
  database: Connection,
  { job, part }: Pick<LeasedImportPart, 'job' | 'part'>,
): Promise<boolean> {
  return await hasRows(database, {
    name: 'import-order',
    text: `update import_job set in_order = true where id = $1
        and exists (select 1 from import_part where job = $1 and part < $2 and state <> 'done')
      returning id`,
    values: [job, part],
  })
}

export async function notePartSize(
  database: Connection,
  part: LeasedPart,
  size: number,
): Promise<void> {
  await updateLeased(database, PARTS, partLease(part), {
    name: 'import-size',
    set: 'size = $4',
    values: [size],
  })
}

export interface ImportProgress extends LeasedPart {
  readonly bytes: readonly [number, number]
  readonly lines: readonly [number, number]
  readonly created: number
  readonly updated: number
  readonly unchanged: number
  readonly skipped: number
  readonly failures: readonly { readonly line: number; readonly outcome: string }[]
}

/**
 * False when the transaction must not commit. The commit is asynchronous: after a crash of PostgreSQL lines and
 * progress are lost together and written again. The end of the part commits synchronously.
 */
export async function savePartProgress(
  connection: Connection,
  progress: ImportProgress,
): Promise<boolean> {
  const { bytes, lines, failures } = progress
  return await hasRows(connection, {
    name: 'import-advance',
    text: `with moved as (
        update import_part p set bytes = bytes + int8multirange(int8range($4, $5)),
          lines = lines + int8multirange(int8range($6, $7)), created = created + $8,
          updated = updated + $9, unchanged = unchanged + $10, skipped = skipped + $11,
          failed = failed + $12, attempts = 0
        where ${isHeld(PARTS, 'p')}
          and exists (select 1 from import_job where id = $1 and state = 'active')
        returning part),
      failures as (
        insert into import_error (job, part, line, outcome)
        select $1, $2, x.line, x.outcome from moved,
          ${dialect.unnest('$13::bigint[]', '$14::text[]')} as x(line, outcome)
        on conflict do nothing)
      select set_config('synchronous_commit', 'off', true) from moved`,
    values: [
      ...leaseValues(partLease(progress)),
      ...bytes,
      ...lines,
      progress.created,
      progress.updated,
      progress.unchanged,
      progress.skipped,
      failures.length,
      failures.map(({ line }) => line),
      failures.map(({ outcome }) => outcome),
    ],
  })
}

/**
 * Ends a part, and the import with the last one. `failure` describes an input not read to its end, by its first uncommitted
 * line. Call inside a transaction.
 */
export async function endImportPart(
  connection: Connection,
  leased: LeasedPart,
  failure?: (line: number) => string,
): Promise<boolean> {
  const { job, part } = leased
  const [ended] = await connection.query<{ line: number }>({
    text: `${endPartSql(PARTS)}, ${NEXT_LINE} as line`,
    values: leaseValues(partLease(leased)),
  })
  if (ended === undefined) return false
  if (failure !== undefined) {
    await connection.query({
      text: `with p as (update import_part set failed = failed + 1 where job = $1 and part = $2)
        insert into import_error (job, part, line, outcome) values ($1, $2, $3, $4)`,
      values: [job, part, ended.line, failure(ended.line)],
    })
  }
  return completeImport(connection, job)
}

/** Replaces the manifest by its inputs; true when there are none, which ends the import. */
export async function replaceManifest(
  connection: Connection,
  part: LeasedPart,
  inputs: readonly ImportInput[],
): Promise<boolean> {
  const { job } = part
  if (!(await deleteLeased(connection, PARTS, partLease(part)))) return false
  await connection.query({
    text: `insert into import_part (job, part, type, url)
      select $1, x.part, x.type, x.url
      from unnest($2::text[], $3::text[]) with ordinality as x(type, url, part)`,
    values: [job, inputs.map(({ type }) => type), inputs.map(({ url }) => url)],
  })
  return completeImport(connection, job)
}

async function completeImport(connection: Connection, job: string): Promise<boolean> {
  // Serializes parts that end together, so that the second sees the first.
  await connection.query({
    text: 'select 1 from import_job where id = $1 for update',
    values: [job],
  })
  return await hasRows(connection, {
    text: `update import_job set state = 'completed', ended = clock_timestamp()
      where id = $1 and state = 'active'
        and not exists (select 1 from import_part where job = $1 and state <> 'done')
      returning id`,
    values: [job],
  })
}

export async function failImport(
  database: Connection,
  job: string,
  failure: OperationOutcome,
): Promise<void> {
  await database.query({
    name: 'import-fail',
    text: `update import_job set state = 'failed', failure = $2::jsonb, ended = clock_timestamp()
      where id = $1 and state = 'active'`,
    values: [job, JSON.stringify(failure)],
  })
}

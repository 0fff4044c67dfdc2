/** Plans an export: its time, chosen before any read, and its parts. */

import { REGISTRY_TYPES } from '../../access/policy.ts'
import type { Principal } from '../../access/principal.ts'
import type { Issue } from '../../core/errors.ts'
import { typeName, typeNumber } from '../../fhir/definitions.ts'
import { UPKEEP } from '../../jobs/upkeep/upkeep.ts'
import { dialect } from '../../postgres/chosen-dialect.ts'
import type { Database } from '../../postgres/database.ts'
import type { Connection } from '../../postgres/statement.ts'
import { rowScope, type StoreContext, withAbortSignal } from '../../store/rows/context.ts'
import { cutList, listCompartments } from './compartments.ts'
import { type ExportJob, lockExports, type PlannedJob } from './jobs.ts'
import { MOST_RUNNING, type NewPart } from './parts.ts'
import { provenanceChoice } from './provenance.ts'
import { exportedTypes, typesWritten } from './scope.ts'
import { isListed, stateTime } from './select.ts'

/** Rows per range of a type's ids: fits a file, with deletions in the meantime. */
const PART_ROWS = 95_000
/** Rows per shared part of small types: each part has a fixed cost. */
const SHARED_ROWS = 20_000

/**
 * Chooses the export's time once: no open transaction can still commit a `lastUpdated` up to it. `heldMs` is the delay
 * caused by the oldest one. Undefined for an ended job, or at the limit of running exports.
 */
export async function startExport(
  database: Database,
  { id, project }: Pick<ExportJob, 'id' | 'project'>,
): Promise<{ readonly at: Date; readonly heldMs: number } | undefined> {
  return database.transaction(async (connection) => {
    // Pipelined: PostgreSQL counts only once it has the lock.
    const [, started] = await Promise.all([
      lockExports(connection, project),
      startOne(connection, id),
    ])
    return started
  })
}

async function startOne(connection: Connection, id: string) {
  const [found] = await connection.query<{ at: Date; heldMs: number }>({
    name: 'export-start',
    text: `update export_job set state = 'active', at = coalesce(at,
        date_trunc('milliseconds', least(clock_timestamp(), (select min(xact_start)
          from pg_stat_activity where datname = current_database() and ${dialect.mayHaveWritten}
            and backend_type = 'client backend' and application_name <> $3)))
        - interval '1 ms')
      where id = $1 and (state = 'active' or (state = 'accepted' and (select count(*)
        from export_job a where a.project = export_job.project and a.state = 'active') < $2))
      returning at, (extract(epoch from clock_timestamp() - at) * 1000)::float8 as "heldMs"`,
    values: [id, MOST_RUNNING, UPKEEP],
  })
  return found
}

interface ExportPlan {
  readonly parts: readonly NewPart[]
  readonly issues: readonly Issue[]
}

/** Safe to repeat. Errors: the reason of `signal`. */
export async function planExport(
  ownStore: StoreContext,
  principal: Principal,
  job: PlannedJob,
  signal: AbortSignal,
): Promise<ExportPlan> {
  const store = withAbortSignal(ownStore, signal)
  const { connection } = store
  const { input } = job
  const at = stateTime(job.at, input.until)
  const types = exportedTypes(principal, input)
  const deleted = await deletedTypes(store, principal, types, { since: input.since, at })
  if (isListed(input)) {
    const { ends, counts, issues } = await listCompartments(store, principal, job, { types, at })
    const parts =
      input.organizedBy === undefined
        ? await listedParts(connection, job, counts)
        : ends.map(
            (high, i): NewPart => ({ kind: 'output', type: 'Patient', low: ends[i - 1], high }),
          )
    return { parts: withEnd(parts, deleted), issues }
  }
  const { number } = principal.project
  const [counted, late] = await Promise.all([
    countRows(connection, principal, types),
    typesWritten(connection, number, { types, at }, false),
  ])
  const kept = types.flatMap((type): TypeRows[] => {
    const rows = counted.get(type) ?? 0
    return rows > 0 || late.includes(type) || REGISTRY_TYPES.has(type) ? [[type, rows]] : []
  })
  // The exported Provenance depends on the other types.
  const isAlone = (type: string) => type === 'Provenance' && provenanceChoice(input) !== undefined
  const cut = (type: string) => rangeBoundaries(connection, principal, type)
  const parts = await findParts(kept, { isAlone, cut })
  return { parts: withEnd(parts, deleted), issues: [] }
}

/** Parts of a listed export by type. */
async function listedParts(
  connection: Connection,
  job: PlannedJob,
  counts: ReadonlyMap<string, number>,
): Promise<readonly NewPart[]> {
  const cut = async (type: string) =>
    (await cutList(connection, job.id, type, PART_ROWS)).slice(0, -1)
  const parts = await findParts([...counts], { isAlone: () => false, cut })
  return parts.map(({ type, types, ...part }) => ({
    ...part,
    kind: 'listed',
    types: types ?? [type ?? ''],
  }))
}

type TypeRows = readonly [type: string, rows: number]

interface Cutting {
  readonly isAlone: (type: string) => boolean
  /** Returns the boundaries between the parts of a large type. */
  readonly cut: (type: string) => Promise<readonly string[]>
}

/** The longest parts come first; the manifest has its own order. */
async function findParts(
  kept: readonly TypeRows[],
  { isAlone, cut }: Cutting,
): Promise<readonly NewPart[]> {
  const parts: NewPart[] = []
  const sorted = kept.toSorted(([, a], [, b]) => b - a)
  const isLarge = ([type, rows]: TypeRows) => rows > SHARED_ROWS || isAlone(type)
  for (const [type, rows] of sorted.filter(isLarge)) {
    const cuts = rows > PART_ROWS ? await cut(type) : []
    for (const [i, high] of [...cuts, undefined].entries()) {
      parts.push({ kind: 'output', type, low: cuts[i - 1], high })
    }
  }
  for (const types of groupTypes(sorted.filter((one) => !isLarge(one)))) {
    parts.push(types.length > 1 ? { kind: 'shared', types } : { kind: 'output', type: types[0] })
  }
  return parts
}

function withEnd(parts: readonly NewPart[], deleted: readonly string[]): readonly NewPart[] {
  const deletions = deleted.map((type): NewPart => ({ kind: 'deleted', type }))
  return [...parts, ...deletions, { kind: 'close' }]
}

function groupTypes(types: readonly TypeRows[]): string[][] {
  const groups: string[][] = []
  let room = -1
  for (const [type, rows] of types) {
    if (rows > room) {
      groups.push([])
      room = SHARED_ROWS
    }
    groups.at(-1)?.push(type)
    room -= rows
  }
  return groups
}

async function countRows(
  connection: Connection,
  { project }: Principal,
  types: readonly string[],
): Promise<ReadonlyMap<string, number>> {
  const rows = await connection.query<{ type: number; rows: number }>({
    text: `select type, count(*)::int as rows from resource
      where project = $1 and type = any($2) group by type`,
    values: [project.number, types.map(typeNumber)],
  })
  return new Map(rows.map(({ type, rows }) => [typeName(type), rows]))
}

async function rangeBoundaries(
  connection: Connection,
  { project }: Principal,
  type: string,
): Promise<readonly string[]> {
  // Walks the index from boundary to boundary, which is faster than numbering all rows.
  const next = (after: string) => `(select id from resource
    where project = $1 and type = $2 and id > ${after} order by id offset $3 limit 1)`
  const rows = await connection.query<{ id: string }>({
    text: `with recursive cut as (select ${next("'00000000-0000-0000-0000-000000000000'")} as id
        union all select ${next('cut.id')} from cut where cut.id is not null)
      select id from cut where id is not null`,
    values: [project.number, typeNumber(type), PART_ROWS - 1],
  })
  return rows.map(({ id }) => id)
}

async function deletedTypes(
  { connection }: StoreContext,
  principal: Principal,
  types: readonly string[],
  { since, at }: { readonly since: string | undefined; readonly at: Date },
): Promise<readonly string[]> {
  if (since === undefined) return []
  const projects = types.map((type) => rowScope(principal, type).project)
  const rows = await connection.query<{ type: number }>({
    perProject: projects,
    text: `select x.type from ${dialect.unnest('$1::int[]', '$2::smallint[]')} x(project, type) cross join lateral (
      select 1 from version v where ${dialect.projectOfList('v.project', 4)} and v.type = x.type
        and v.lu > $3 and v.lu <= $4 and v.content is null limit 1) v`,
    values: [projects, types.map(typeNumber), since, at],
  })
  return rows.map(({ type }) => typeName(type))
}

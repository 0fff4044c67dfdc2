/** The plan of an export: its time, chosen before anything is read, and its parts. */
import { REGISTRY_TYPES } from '../../access/policy.ts'
import type { Principal } from '../../access/principal.ts'
import type { Connection, Database } from '../../database.ts'
import { typeName, typeNumber } from '../../fhir/definitions.ts'
import type { Issue } from '../../fhir/outcome.ts'
import { type Store, scopeOf } from '../context.ts'
import { type ExportJob, lockExports, type PlannedJob } from './jobs.ts'
import { cutList } from './list.ts'
import { addChanged, listMembers } from './members.ts'
import { MOST_RUNNING, type NewPart } from './parts.ts'
import { targetTypes } from './provenance.ts'
import { hasProvenance, listProvenance } from './provenance-list.ts'
import { typesOf } from './scope.ts'
import { reachOf, stateTime } from './select.ts'

/** Rows of one type beyond which its ids are cut into ranges. */
const PART_ROWS = 100_000

/**
 * The time of an export. Every transaction that could still commit something with a `lastUpdated` up to it
 * has ended: those under way began later, and time is stamped inside them. Chosen once. `heldMs` is how
 * far the oldest of them holds it back. Undefined for a job that has ended, or while as many as may run.
 */
export async function startExport(
  database: Database,
  { id, project }: Pick<ExportJob, 'id' | 'project'>,
): Promise<{ readonly at: Date; readonly heldMs: number } | undefined> {
  return database.transaction(async (connection) => {
    await lockExports(connection, project)
    return startOne(connection, id)
  })
}

async function startOne(connection: Connection, id: string) {
  const [found] = await connection.query<{ at: Date; heldMs: number }>({
    name: 'export-start',
    text: `update export_job set state = 'active', at = coalesce(at,
        date_trunc('milliseconds', least(clock_timestamp(), (select min(xact_start)
          from pg_stat_activity where datname = current_database() and backend_xid is not null)))
        - interval '1 ms')
      where id = $1 and (state = 'active' or (state = 'accepted' and (select count(*)
        from export_job a where a.project = export_job.project and a.state = 'active') < $2))
      returning at, (extract(epoch from clock_timestamp() - at) * 1000)::float8 as "heldMs"`,
    values: [id, MOST_RUNNING],
  })
  return found
}

export interface Plan {
  readonly parts: readonly NewPart[]
  readonly issues: readonly Issue[]
}

export async function planExport(
  store: Store,
  principal: Principal,
  job: PlannedJob,
): Promise<Plan> {
  const { input } = job
  const at = stateTime(job.at, input.until)
  const types = typesOf(principal, input)
  const isListed = reachOf(input) === 'listed'
  const isAbout = types.includes('Provenance') && reachOf(input, 'Provenance') === 'listed'
  const others = isAbout ? types.filter((type) => type !== 'Provenance') : types
  const listed = isAbout ? targetTypes(principal, input) : types
  const issues = isListed ? await listMembers(store, principal, job, listed, at) : []
  const [rows, deleted, mayBeAbout] = await Promise.all([
    rowsOf(store, principal, job, others, at),
    deletedTypes(store, principal, types, input.since, at),
    isAbout && hasProvenance(store.connection, principal, at),
    isListed && !input.until
      ? addChanged(store.connection, principal, job.id, listed, at)
      : undefined,
  ])
  const about = mayBeAbout ? await listProvenance(store, principal, job.id, at) : 0
  const kept = about === 0 ? rows : [...rows, ['Provenance', about] as const]
  const parts: NewPart[] = []
  const add = (part: Omit<NewPart, 'n'>) => parts.push({ n: parts.length + 1, ...part })
  // Those that take longest are begun first; the manifest has an order of its own.
  for (const [type, rows] of kept.toSorted(([, a], [, b]) => b - a)) {
    const cuts = rows > PART_ROWS ? await cutsOf(store.connection, principal, job, type) : []
    for (const [i, high] of [...cuts, undefined].entries()) {
      add({ kind: 'output', type: typeNumber(type), low: cuts[i - 1], high })
    }
  }
  for (const type of deleted) {
    add({ kind: 'deleted', type: typeNumber(type), low: undefined, high: undefined })
  }
  add({ kind: 'close', type: undefined, low: undefined, high: undefined })
  return { parts, issues }
}

/** Those of the types that have anything, with how many rows about. */
async function rowsOf(
  { connection }: Store,
  { project }: Principal,
  { id: job, input }: ExportJob,
  types: readonly string[],
  at: Date,
): Promise<readonly (readonly [string, number])[]> {
  const listed = types.filter((type) => reachOf(input, type) === 'listed').map(typeNumber)
  const others = types.map(typeNumber).filter((type) => !listed.includes(type))
  const [rows, changed] = await Promise.all([
    connection.query<{ type: number; rows: number }>({
      text: `select type, sum(cardinality(ids))::int as rows from export_list
          where job = $1 and type = any($2) group by type
        union all select type, count(*)::int from resource
          where project = $3 and type = any($4) group by type`,
      values: [job, listed, project.number, others],
    }),
    connection.query<{ type: number }>({
      text: `select t.type from unnest($2::smallint[]) t(type) where exists (select 1
        from version n where n.project = $1 and n.type = t.type and n.lu > $3)`,
      values: [project.number, types.map(typeNumber), at],
    }),
  ])
  const byType = new Map(rows.map((row) => [row.type, row.rows]))
  const late = new Set(changed.map(({ type }) => type))
  return types.flatMap((type): (readonly [string, number])[] => {
    const number = typeNumber(type)
    const found = byType.get(number) ?? 0
    const mayHave = found > 0 || late.has(number) || REGISTRY_TYPES.has(type)
    return mayHave ? [[type, found]] : []
  })
}

/** The last row id of each range but the last. */
async function cutsOf(
  connection: Connection,
  { project }: Principal,
  { id: job, input }: ExportJob,
  type: string,
): Promise<readonly string[]> {
  if (reachOf(input, type) === 'listed') {
    const ends = await cutList(connection, job, typeNumber(type), PART_ROWS)
    return ends.slice(0, -1)
  }
  // From one to the next, which an index counts: to number all rows took more than twice as long.
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

/** Those of which something was deleted in the time that is asked for. */
async function deletedTypes(
  { connection }: Store,
  principal: Principal,
  types: readonly string[],
  since: string | undefined,
  at: Date,
): Promise<readonly string[]> {
  if (since === undefined) return []
  const projects = types.map((type) => scopeOf(principal, type).project)
  const rows = await connection.query<{ type: number }>({
    text: `select t.type from unnest($1::int[], $2::smallint[]) t(project, type) where exists (
      select 1 from version v where v.project = t.project and v.type = t.type
        and v.lu > $3 and v.lu <= $4 and v.content is null)`,
    values: [projects, types.map(typeNumber), since, at],
  })
  return rows.map(({ type }) => typeName(type))
}

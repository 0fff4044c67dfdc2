/** Rows of a part at the export's time. One snapshot of current rows and earlier versions hides and repeats none. */

import { decideContents } from '../../access/decisions/decide.ts'
import {
  allSql,
  compileGrant,
  createTypeScope,
  isHidden,
  visibleRows,
} from '../../access/decisions/grant-predicates.ts'
import type { Grant } from '../../access/grant.ts'
import { hidesAny } from '../../access/hidden.ts'
import { grantsFor } from '../../access/policy.ts'
import type { Principal } from '../../access/principal.ts'
import { typeNumber } from '../../fhir/definitions.ts'
import { dialect } from '../../postgres/chosen-dialect.ts'
import { literal } from '../../postgres/copy.ts'
import { type Bind, binder, type Connection } from '../../postgres/statement.ts'
import { compartmentCodes } from '../../search/language/search-request.ts'
import { type SearchScope, scopeSql } from '../../search/predicates/predicate.ts'
import { rowScope, type StoreContext } from '../../store/rows/context.ts'
import { type VersionRow, versionColumns } from '../../store/rows/rows.ts'
import type { ExportInput, PlannedJob, Range } from './jobs.ts'
import { applyTypeFilter, buildTypeFilter, type Filter } from './scope.ts'

export interface Selection {
  readonly job: string
  readonly principal: Principal
  readonly scope: SearchScope
  readonly reach: RowScope
  /** State at this time, if changed after `since`. */
  readonly at: Date
  readonly since: Date | undefined
  /** The first matching grant decides the hidden elements; undefined: all grants hide the same. */
  readonly ruled: readonly Grant[] | undefined
  readonly filter: Filter | undefined
  /** The parameters that select a row; a member without access to them gets none. */
  readonly codes: readonly string[]
}

/** All rows, those in any patient compartment, or those listed by the plan. */
type RowScope = 'all' | 'patients' | 'listed'

export function exportRowScope(
  { level, patients, organizedBy }: Pick<ExportInput, 'level' | 'patients' | 'organizedBy'>,
  type?: string,
): RowScope {
  if (level === 'system') return organizedBy === undefined ? 'all' : 'patients'
  const reach = level === 'patient' && patients === undefined ? 'patients' : 'listed'
  // Provenance is selected by its targets.
  return type === 'Provenance' && reach === 'patients' ? 'all' : reach
}

/** True if the plan lists the rows of the export. */
export function isListed(input: ExportInput): boolean {
  return input.organizedBy !== undefined || exportRowScope(input) === 'listed'
}

/** SQL: inserts the result of `rows`, with columns `patient`, `place`, `ruling` and `id`. */
export function compartmentsSql(job: string, rows: string): string {
  return `insert into export_compartment (job, patient, place, ruling, ids)
    select ${job}, patient, place, ruling, array_agg(distinct id order by id)
    from (${rows}) r group by patient, place, ruling`
}

export function typeAtPlace(table: string): string {
  const patient = typeNumber('Patient')
  return `(case ${table}.place when 0 then ${patient} else ${table}.place end)`
}

export interface ChangedRow {
  readonly id: string
  readonly ver: number
  readonly ruling: number | null
}

const OF_THEMSELVES: ReadonlySet<string> = new Set(['Patient', 'Provenance'])

/** Undefined when the member may not see the type. */
export async function selectType(
  store: StoreContext,
  principal: Principal,
  type: string,
  { id, at, input }: PlannedJob,
): Promise<Selection | undefined> {
  const { number } = principal.project
  // Its presence would reveal the compartment's patient; a Patient is in its own compartment.
  const isOfPatients = !OF_THEMSELVES.has(type) && exportRowScope(input, type) !== 'all'
  const codes = isOfPatients ? compartmentCodes(type, 'Patient/') : []
  if (isHidden(store, principal, type, { interaction: 'search', project: number, codes }))
    return undefined
  const scope = visibleRows(store, principal, type, {
    interaction: 'search',
    project: number,
    units: [],
    codes,
  })
  if (scope === undefined) return undefined
  const grants = grantsFor(principal, type, 'search') ?? []
  const isAlike = grants.every(({ hidden }) => hidden.join() === grants[0]?.hidden.join())
  return {
    job: id,
    principal,
    scope,
    reach: exportRowScope(input, type),
    at: stateTime(at, input.until),
    since: input.since === undefined ? undefined : new Date(input.since),
    ruled: isAlike ? undefined : grants,
    filter: await buildTypeFilter(store, principal, type, input.filters),
    codes,
  }
}

export function stateTime(at: Date, until: string | undefined): Date {
  return until === undefined ? at : new Date(Math.min(at.getTime(), Date.parse(until) - 1))
}

/** Columns: row id, content, platform meta if needed, and the governing grant. Ordered by id. */
export function copySql(
  selection: Selection,
  range: Range,
  changed: readonly ChangedRow[],
  needsMeta: boolean,
): string {
  return `select x.id, v.content, ${needsMeta ? 'v.meta_ext' : "''"} as meta_ext, x.ruling
    from ${versionsSql(selection, range, changed, literal)} order by x.id`
}

/** SQL: rows `x`, current ones and `changed`, with their versions `v`. */
function versionsSql(
  selection: Selection,
  range: Range,
  changed: readonly ChangedRow[],
  bind: Bind,
): string {
  const { scope, reach } = selection
  const [project, type] = [bind(scope.project, 'int'), bind(typeNumber(scope.type), 'smallint')]
  const current = currentSql(selection, range, bind)
  const rows =
    changed.length === 0
      ? current
      : `(${current}) union all
      select e.id, e.ver, e.ruling from ${changesSql(changed, bind)} e(id, ver, ruling)`
  // Many versions are read in the order of their index along with the rows, from the range's own begin.
  const versions = [
    `v.project = ${project} and v.type = ${type} and v.id = x.id and v.ver = x.ver`,
    ...rangeSql('v.id', range, bind),
    ...(reach === 'patients' ? [IN_COMPARTMENT] : []),
  ]
  return `(${rows} order by 1) x join version v on ${versions.join(' and ')}`
}

/** Returns the exported ones among at most a thousand row ids; some may be there twice. */
export async function selectedRows(
  store: StoreContext,
  selection: Selection,
  ids: readonly string[],
): Promise<readonly ChangedRow[]> {
  const range = { low: undefined, high: undefined, ids }
  const found = (changed: readonly ChangedRow[]) => {
    const { values, bind } = binder()
    const text = `select x.id, x.ver, x.ruling from ${versionsSql(selection, range, changed, bind)}`
    return store.connection.query<ChangedRow>({ text, values })
  }
  // The second query sees rows that change after the first.
  const current = await found([])
  const all = [...current]
  for await (const rows of changedPages(store, selection, ids)) all.push(...(await found(rows)))
  return all
}

/** Platform meta holds the compartments of a version, even without a row. */
const IN_COMPARTMENT = `split_part(v.meta_ext, '"compartment":[', 2) like '%"Patient/%'`

function currentSql(selection: Selection, range: Range, bind: Bind): string {
  const { scope, at, since, filter } = selection
  const tests = [
    ...scopeSql(scope.project, [typeNumber(scope.type)], bind, false),
    ...rangeSql('r.id', range, bind),
    `r.lu <= ${bind(at, 'timestamptz')}`,
    ...(since === undefined ? [] : [`r.lu > ${bind(since, 'timestamptz')}`]),
    allSql(filter === undefined ? scope.visible : [...scope.visible, filter.test], bind),
  ]
  return `select r.id, r.ver, ${governingGrantSql(selection, bind)} as ruling
    from resource r where ${tests.join(' and ')}`
}

/** SQL of changed rows: `id`, `ver`, `ruling`, and further lists. */
export function changesSql(
  changed: readonly ChangedRow[],
  bind: Bind,
  more: readonly string[] = [],
): string {
  const column = (of: (row: ChangedRow) => unknown, type: string) =>
    bind(changed.map(of), `${type}[]`)
  const ids = column(({ id }) => id, 'uuid')
  const versions = column(({ ver }) => ver, 'int')
  const rulings = column(({ ruling }) => ruling, 'int')
  return dialect.unnest(ids, versions, rulings, ...more)
}

/** SQL: the governing grant and the export decision for rows `r` of several types. */
export function rowTestsSql(
  selections: readonly Selection[],
  bind: Bind,
): readonly [ruling: string, tests: string] {
  const rulings: string[] = []
  const tests: string[] = []
  for (const selection of selections) {
    const { scope, filter, ruled } = selection
    const when = `when ${typeNumber(scope.type)} then`
    if (ruled !== undefined) rulings.push(`${when} ${governingGrantSql(selection, bind)}`)
    const own = filter === undefined ? scope.visible : [...scope.visible, filter.test]
    if (own.length > 0) tests.push(`${when} ${allSql(own, bind)}`)
  }
  return [
    rulings.length === 0 ? 'null::int' : `(case r.type ${rulings.join(' ')} end)`,
    tests.length === 0 ? 'true' : `(case r.type ${tests.join(' ')} else true end)`,
  ]
}

/** SQL: position of the grant that governs row `r`, where grants hide different elements. */
function governingGrantSql({ ruled, scope, principal }: Selection, bind: Bind): string {
  if (ruled === undefined) return 'null::int'
  const place = createTypeScope(scope.keys, principal, scope.type, scope.project)
  const cases = ruled.map(
    (grant, i) => `when ${allSql(compileGrant(place, grant).tests, bind)} then ${i}`,
  )
  return `case ${cases.join(' ')} end`
}

const CHANGED = 5000
const RULED = 200

/** Returns changed rows of the range up to the returned `high`, which is the range's own when done. */
export async function changedRows(
  store: StoreContext,
  connection: Connection,
  selection: Selection,
  range: Range,
): Promise<{ readonly rows: readonly ChangedRow[]; readonly high: string | undefined }> {
  const { principal, scope, at, since, ruled, filter, codes } = selection
  const isRuled = scope.visible.length > 0 || ruled !== undefined || filter !== undefined
  const most = isRuled ? RULED : CHANGED
  const former = {
    ...selection,
    type: scope.type,
    columns: isRuled ? undefined : 'v.id, v.ver',
    members: 'm.key <> 0',
    most: most + 1,
  }
  const found = await formerVersions(connection, former, range, (bind) => {
    const time = bind(at, 'timestamptz')
    const after = since === undefined ? '' : `and v.lu > ${bind(since, 'timestamptz')}`
    return `n.lu > ${time} and n.ver > 1 and v.lu <= ${time} ${after}`
  })
  const rows = found.slice(0, most)
  const high = found.length > most ? rows.at(-1)?.id : range.high
  if (!isRuled) return { rows: rows.map(({ id, ver }) => ({ id, ver, ruling: null })), high }
  const asking = { ...store, connection }
  const wanted = filter === undefined ? rows : await applyTypeFilter(asking, filter, rows)
  const decisions = await decideContents(asking, principal, ['search'], wanted)
  const changed = wanted.flatMap(({ id, ver }, i): ChangedRow[] => {
    const decision = decisions[i]?.search
    if (decision === undefined) return []
    if (decision !== 'all' && hidesAny(decision, scope.type, codes, scope.own)) return []
    const place = decision === 'all' ? -1 : (ruled?.indexOf(decision) ?? -1)
    return [{ id, ver, ruling: place === -1 ? null : place }]
  })
  return { rows: changed, high }
}

/** Yields the changed rows, among `ids` if given. */
export async function* changedPages(
  store: StoreContext,
  selection: Selection,
  ids?: readonly string[],
): AsyncGenerator<readonly ChangedRow[]> {
  let low: string | undefined
  do {
    const range = { low, high: undefined, ids }
    const { rows, high } = await changedRows(store, store.connection, selection, range)
    if (rows.length > 0) yield rows
    low = high
  } while (low !== undefined)
}

interface FormerRows extends Pick<Selection, 'job' | 'principal' | 'reach'> {
  readonly type: string
  /** Condition on the members `m` of which one must have the row in its compartment, if the plan lists the rows. */
  readonly members: string
  readonly most: number
  /** Default: those of a `VersionRow`. */
  readonly columns?: string | undefined
}

/**
 * Reads versions `v` of a type that were replaced by a version `n`, in the order of ids, where `testsSql` holds. Citus
 * needs `project` in its subqueries, too.
 */
export async function formerVersions(
  connection: Connection,
  { job, principal, reach, type, members, most, columns = versionColumns('v') }: FormerRows,
  range: Range,
  testsSql: (bind: Bind, project: string) => string,
): Promise<readonly VersionRow[]> {
  const { project, metaPrefix } = rowScope(principal, type)
  const { values, bind } = binder()
  const own = bind(project, 'int')
  const tests = [
    `n.project = ${own} and n.type = ${bind(typeNumber(type), 'smallint')}`,
    `v.content is not null and ${testsSql(bind, own)}`,
    ...rangeSql('n.id', range, bind),
    ...(reach === 'patients' ? [IN_COMPARTMENT] : []),
    ...(reach === 'listed' ? [memberSql(bind(job, 'uuid'), members)] : []),
    // The registry has rows of all Projects.
    ...(metaPrefix === '' ? [] : [`starts_with(v.meta_ext, ${bind(metaPrefix, 'text')})`]),
  ]
  return connection.query<VersionRow>({
    // Reads earlier states of newer rows only: a decision on every version would be slow.
    text: `select ${columns} from version n cross join lateral (select v.* from version v
        where v.project = ${own} and v.type = n.type and v.id = n.id and v.ver = n.ver - 1
        offset 0) v
      where ${tests.join(' and ')} order by n.id limit ${bind(most, 'int')}`,
    values,
  })
}

/** Condition on a version `v`: it was in the compartment of a member of job `id`. */
function memberSql(id: string, members: string): string {
  return `exists (select 1
      from jsonb_array_elements(('{' || v.meta_ext || '}')::jsonb -> 'compartment') c
      where c ->> 'reference' in (
        select m.reference from export_member m where m.job = ${id} and ${members}))`
}

export function rangeSql(column: string, { low, high, ids }: Range, bind: Bind): string[] {
  return [
    ...(low === undefined ? [] : [`${column} > ${bind(low, 'uuid')}`]),
    ...(high === undefined ? [] : [`${column} <= ${bind(high, 'uuid')}`]),
    ...(ids === undefined ? [] : [`${column} = any(${bind(ids, 'uuid[]')})`]),
  ]
}

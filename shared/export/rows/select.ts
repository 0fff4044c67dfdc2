/** Rows of a part at the export's time. One snapshot of current rows and earlier versions hides and repeats none. */

import { decideContents } from '../../access/decisions/decide.ts'
import {
  allSql,
  compileGrant,
  createTypeScope,
  hidesAny,
  isHidden,
  visibleRows,
} from '../../access/decisions/grant-predicates.ts'
import type { Grant } from '../../access/grant.ts'
import { grantsFor } from '../../access/policy.ts'
import type { Principal } from '../../access/principal.ts'
import { typeNumber } from '../../fhir/definitions.ts'
import { literal } from '../../postgres/copy.ts'
import type { Connection } from '../../postgres/statement.ts'
import { compartmentCodes } from '../../search/language/search-request.ts'
import type { SearchScope } from '../../search/predicates/predicate.ts'
import { scopeSql } from '../../search/predicates/predicate.ts'
import { rowScope, type StoreContext } from '../../store/rows/context.ts'
import { type VersionRow, versionColumns } from '../../store/rows/rows.ts'
import { type Bind, binder } from '../../store/rows/side-rows.ts'
import type { ExportInput, PlannedJob, Range } from './jobs.ts'
import { listedIdsSql } from './list.ts'
import { applyTypeFilter, buildTypeFilter, type Filter } from './scope.ts'

export interface Selection {
  readonly job: string
  readonly principal: Principal
  readonly scene: SearchScope
  readonly reach: RowScope
  /** State at this time, if changed after `since`. */
  readonly at: Date
  readonly since: Date | undefined
  /** True for a requested past time, after which much may have changed. */
  readonly isPast: boolean
  /** The first matching grant decides the hidden elements; undefined: all grants hide the same. */
  readonly ruled: readonly Grant[] | undefined
  readonly filter: Filter | undefined
  /** The parameters that select a row; a member without access to them gets none. */
  readonly codes: readonly string[]
}

/** All rows, those in any patient compartment, or those listed by the plan. */
type RowScope = 'all' | 'patients' | 'listed'

export function exportRowScope(
  { level, patients, until, organizedBy }: Reaching,
  type?: string,
): RowScope {
  if (level === 'system') return organizedBy === undefined ? 'all' : 'patients'
  const reach = level === 'patient' && patients === undefined ? 'patients' : 'listed'
  // Provenance is selected by its targets, and there is no index of past targets.
  const isFound = reach === 'listed' && until === undefined
  return type === 'Provenance' && !isFound ? 'all' : reach
}

type Reaching = Pick<ExportInput, 'level' | 'patients' | 'until' | 'organizedBy'>

export interface ChangedRow {
  readonly id: string
  readonly ver: number
  readonly ruling: number | undefined
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
    scene: scope,
    reach: exportRowScope(input, type),
    at: stateTime(at, input.until),
    since: input.since === undefined ? undefined : new Date(input.since),
    isPast: input.until !== undefined,
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

/** SQL: rows `x` with their versions `v`, looked up one by one. */
function versionsSql(
  selection: Selection,
  range: Range,
  changed: readonly ChangedRow[],
  bind: Bind,
): string {
  const { scene: scope, reach } = selection
  const [project, type] = [bind(scope.project, 'int'), bind(scopeTypeNumber(scope), 'smallint')]
  const rows = rowsSql(selection, range, changed, bind)
  const ofPatients = reach === 'patients' ? `where ${IN_COMPARTMENT}` : ''
  // PostgreSQL plans a plain join from all versions to all rows, which is far slower.
  return `(${rows} order by 1) x
    cross join lateral (select v.* from version v where v.project = ${project}
      and v.type = ${type} and v.id = x.id and v.ver = x.ver offset 0) v
    ${ofPatients}`
}

function rowsSql(
  selection: Selection,
  range: Range,
  changed: readonly ChangedRow[],
  bind: Bind,
): string {
  const current = currentSql(selection, range, bind)
  return changed.length === 0
    ? current
    : `(${current}) union all select * from ${changesSql(changed, bind)}`
}

/** Returns the exported ones among at most a thousand row ids. */
export async function selectedIds(
  store: StoreContext,
  selection: Selection,
  ids: readonly string[],
): Promise<ReadonlySet<string>> {
  const range = { low: undefined, high: undefined, ids }
  const found = async (changed: readonly ChangedRow[]) => {
    const { values, bind } = binder()
    const text = `select x.id from ${versionsSql(selection, range, changed, bind)}`
    const rows = await store.connection.query<{ id: string }>({ text, values })
    return rows.map(({ id }) => id)
  }
  // The second query sees rows that change after the first.
  const current = await found([])
  const { rows } = await changedRows(store, store.connection, selection, range)
  return new Set(rows.length === 0 ? current : [...current, ...(await found(rows))])
}

/** Platform meta holds the compartments of a version, even without a row. */
export const IN_COMPARTMENT = `split_part(v.meta_ext, '"compartment":[', 2) like '%"Patient/%'`

function currentSql(selection: Selection, range: Range, bind: Bind): string {
  const { scene: scope, reach, at, since, job, filter } = selection
  const tests = [
    ...scopeSql(scope.project, [scopeTypeNumber(scope)], bind, false),
    ...(reach === 'listed' ? ['r.id = e.id'] : rangeSql('r.id', range, bind)),
    `r.lu <= ${bind(at, 'timestamptz')}`,
    ...(since === undefined ? [] : [`r.lu > ${bind(since, 'timestamptz')}`]),
    allSql(filter === undefined ? scope.visible : [...scope.visible, filter.test], bind),
  ]
  const where = tests.join(' and ')
  const select = `select r.id, r.ver, ${rulingSql(selection, bind)} as ruling`
  if (reach !== 'listed') return `${select} from resource r where ${where}`
  // Without statistics of the new list, PostgreSQL would read it in full for each row of the type.
  return `${select} from (${listedIdsSql(job, scopeTypeNumber(scope), range, bind)} offset 0) e
    cross join lateral (select r.* from resource r where ${where} offset 0) r`
}

/** SQL of changed rows: `id`, `ver`, `ruling`, and further lists. */
export function changesSql(
  changed: readonly ChangedRow[],
  bind: Bind,
  more: readonly string[] = [],
): string {
  const column = (of: (row: ChangedRow) => unknown, type: string) =>
    bind(
      changed.map((row) => of(row) ?? null),
      `${type}[]`,
    )
  const ids = column(({ id }) => id, 'uuid')
  const versions = column(({ ver }) => ver, 'int')
  const rulings = column(({ ruling }) => ruling, 'int')
  return `unnest(${[ids, versions, rulings, ...more].join(', ')})`
}

/** SQL: the governing grant and the export decision for rows `r` of several types. */
export function rowTestsSql(
  selections: readonly Selection[],
  bind: Bind,
): readonly [ruling: string, tests: string] {
  const rulings: string[] = []
  const tests: string[] = []
  for (const selection of selections) {
    const { scene: scope, filter, ruled } = selection
    const when = `when ${scopeTypeNumber(scope)} then`
    if (ruled !== undefined) rulings.push(`${when} ${rulingSql(selection, bind)}`)
    const own = filter === undefined ? scope.visible : [...scope.visible, filter.test]
    if (own.length > 0) tests.push(`${when} ${allSql(own, bind)}`)
  }
  return [
    rulings.length === 0 ? 'null::int' : `(case r.type ${rulings.join(' ')} end)`,
    tests.length === 0 ? 'true' : `(case r.type ${tests.join(' ')} else true end)`,
  ]
}

/** SQL: position of the grant that governs row `r`, where grants hide different elements. */
function rulingSql({ ruled, scene: scope, principal }: Selection, bind: Bind): string {
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
  const { principal, scene: scope, ruled, filter, codes } = selection
  const isRuled = scope.visible.length > 0 || ruled !== undefined || filter !== undefined
  const most = isRuled ? RULED : CHANGED
  const { values, bind } = binder()
  const columns = isRuled ? versionColumns('v') : 'v.id, v.ver'
  const found = await connection.query<VersionRow>({
    // Reads earlier states of newer rows only: a decision on every version would be slow.
    text: `select ${columns} from version n cross join lateral (select v.* from version v
        where v.project = ${bind(scope.project, 'int')} and v.type = n.type and v.id = n.id and v.ver = n.ver - 1
        offset 0) v
      where ${changedTests(selection, range, bind).join(' and ')}
      order by n.id limit ${bind(most + 1, 'int')}`,
    values,
  })
  const rows = found.slice(0, most)
  const high = found.length > most ? rows.at(-1)?.id : range.high
  if (!isRuled) return { rows: rows.map(({ id, ver }) => ({ id, ver, ruling: undefined })), high }
  const asking = { ...store, connection }
  const wanted = filter === undefined ? rows : await applyTypeFilter(asking, filter, rows)
  const rulings = await decideContents(asking, principal, ['search'], wanted)
  const changed = wanted.flatMap(({ id, ver }, i): ChangedRow[] => {
    const ruling = rulings[i]?.search
    if (ruling === undefined) return []
    if (ruling !== 'all' && hidesAny(ruling, scope.type, codes, scope.own)) return []
    const place = ruling === 'all' ? -1 : (ruled?.indexOf(ruling) ?? -1)
    return [{ id, ver, ruling: place === -1 ? undefined : place }]
  })
  return { rows: changed, high }
}

export async function* changedPages(
  store: StoreContext,
  selection: Selection,
): AsyncGenerator<readonly ChangedRow[]> {
  let low: string | undefined
  do {
    const range = { low, high: undefined }
    const { rows, high } = await changedRows(store, store.connection, selection, range)
    if (rows.length > 0) yield rows
    low = high
  } while (low !== undefined)
}

function changedTests(selection: Selection, range: Range, bind: Bind): string[] {
  const { scene: scope, principal, at, since, reach, job } = selection
  const { metaPrefix } = rowScope(principal, scope.type)
  const time = bind(at, 'timestamptz')
  return [
    `n.project = ${bind(scope.project, 'int')}`,
    `n.type = ${bind(scopeTypeNumber(scope), 'smallint')}`,
    `n.lu > ${time} and n.ver > 1 and v.lu <= ${time} and v.content is not null`,
    ...(since === undefined ? [] : [`v.lu > ${bind(since, 'timestamptz')}`]),
    ...rangeSql('n.id', range, bind),
    ...(reach === 'listed' ? [listedSql(job, scope.type, bind, 'm.key <> 0')] : []),
    ...ownSql(metaPrefix, bind),
  ]
}

/** Condition on a version `v`: the registry has rows of all Projects. */
export function ownSql(metaPrefix: string, bind: Bind): string[] {
  return metaPrefix === '' ? [] : [`starts_with(v.meta_ext, ${bind(metaPrefix, 'text')})`]
}

/** Condition on a version `v`: it was listed by the plan, or in one of the compartments. */
export function listedSql(job: string, type: string, bind: Bind, members = 'true'): string {
  const id = bind(job, 'uuid')
  return `(v.id in (select unnest(l.ids) from export_list l where l.job = ${id}
      and l.type = ${bind(typeNumber(type), 'smallint')})
    or ${memberSql(id, members)})`
}

/** Condition on a version `v`: it was in the compartment of a member of job `id`. */
export function memberSql(id: string, members: string): string {
  return `exists (select 1
      from jsonb_array_elements(('{' || v.meta_ext || '}')::jsonb -> 'compartment') c
      join export_member m on m.job = ${id} and m.reference = c ->> 'reference' and ${members})`
}

export function rangeSql(column: string, { low, high, ids }: Range, bind: Bind): string[] {
  return [
    ...(low === undefined ? [] : [`${column} > ${bind(low, 'uuid')}`]),
    ...(high === undefined ? [] : [`${column} <= ${bind(high, 'uuid')}`]),
    ...(ids === undefined ? [] : [`${column} = any(${bind(ids, 'uuid[]')})`]),
  ]
}

function scopeTypeNumber({ type }: SearchScope): number {
  return typeNumber(type)
}

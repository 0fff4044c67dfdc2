/** Stages of a statement: a walk along the order, and a fallback when it does not fill the page. */

import { timestamp } from '../../fhir/values.ts'
import { dialect } from '../../postgres/chosen-dialect.ts'
import type { Bind } from '../../postgres/statement.ts'
import { afterSql, FIRST_ID, orderAfterSql, orderColumns, orderSql } from './order.ts'
import {
  foundBySql,
  type IdsPredicate,
  oneRowSql,
  type Predicate,
  predicateReadScope,
  predicateSql,
  probeSql,
  scopeSql,
} from './predicate.ts'
import type { Order, PlannerStats, Position, Query } from './query.ts'

/** A walk of at most `cap` rows, run if `when` holds. */
export interface Walk {
  readonly when?: string
  readonly cap: number
  readonly tested: readonly string[]
  /** A join that passes rows, once per matching target. */
  readonly targets?: string | undefined
}

interface Stages {
  readonly with: readonly string[]
  readonly walk: Walk | undefined
  readonly rest: string
}

/** Selects the walked rows if they fill the page, otherwise the fallback. An `order by` would force a full walk. */
export function walkThenFallbackSql(
  query: Query,
  most: string,
  bind: Bind,
  { with: first, walk, rest }: Stages,
): string {
  if (walk === undefined) return `with ${first.join(', ')} ${rest}`
  const rows = `from (${walkSql(query, bind(walk.cap, 'int'), bind)}) r`
  const where = [...(walk.when === undefined ? [] : [walk.when]), ...walk.tested].join(' and ')
  const selected = `${rows} ${walk.targets ?? ''} where ${where || 'true'}`
  const walked =
    walk.targets === undefined
      ? `select ${KEY_COLUMNS} ${selected} limit ${most}`
      : `select distinct on (${walkOrderSql(query, '')}) ${KEY_COLUMNS} ${selected}
        order by ${walkOrderSql(query, query.order.descending ? ' desc' : '')} limit ${most}`
  const isFilled = `(select count(*) from w) >= ${most}`
  return `with ${[...first, `w as materialized (${walked})`].join(', ')}
    select * from (
      select * from w where ${isFilled}
      union all
      select * from (${rest}) k where not (${isFilled})
    ) r order by ${orderSql(query.order, 'r')}`
}

/** Index columns of the walk, which save PostgreSQL a sort. */
function walkOrderSql({ order: { column, byType } }: Query, direction: string): string {
  const names = new Set(['project', 'type', ...orderColumns(column, byType)])
  return [...names].map((name) => `r.${name}${direction}`).join(', ')
}

/** Walks to the end of the order, or until the page is full. */
export function walkedOn(
  query: Query,
  tested: readonly string[],
  most: string | undefined,
  bind: Bind,
): string {
  const where = tested.length === 0 ? '' : ` where ${tested.join(' and ')}`
  const end = most === undefined ? '' : ` limit ${most}`
  return `select ${KEY_COLUMNS} from (${walkSql(query, undefined, bind)}) r${where}${end}`
}

/** Tests a walked row without looking up related rows for each. */
export function testedSql(predicate: Predicate, bind: Bind): string {
  if (predicate.kind === 'ids') return probeSql(predicate, bind)
  const look = predicate.kind === 'join' ? predicate.walk?.test?.(bind) : undefined
  return look ?? predicateSql(predicate, bind, true)
}

/** Returns the predicates of a walk; a join with an index on its targets becomes a join if the order is known. */
export function splitIndexJoin(
  predicates: readonly Predicate[],
  { order }: Query,
  bind: Bind,
): Pick<Walk, 'tested' | 'targets'> {
  const first = predicates.find(
    (predicate) => predicate.kind === 'join' && predicate.walk?.targets !== undefined,
  )
  // A date order is two runs, which PostgreSQL does not know to be ordered.
  const isLed = first?.kind === 'join' && order.column !== 'd_lo'
  const others = isLed ? predicates.filter((predicate) => predicate !== first) : predicates
  const targets = isLed ? first.walk?.targets?.(bind) : undefined
  return { targets, tested: others.map((predicate) => testedSql(predicate, bind)) }
}

/** The index that finds rows `r`, and the remaining predicates. */
export interface IndexScan {
  readonly from: string
  readonly conditions: readonly string[]
  readonly others: readonly Predicate[]
}

/** Uses `_id`, otherwise keys, otherwise all rows of the type. */
export function indexScan({ project, typeNumbers, predicates }: Query, bind: Bind): IndexScan {
  const kind = ['narrow', 'keys'].find((one) =>
    predicates.some((predicate) => predicate.kind === one),
  )
  const leading = predicates.filter((predicate) => predicate.kind === kind)
  const scope = scopeSql(project, typeNumbers, bind, kind === 'keys')
  return {
    from: 'resource r',
    conditions: [...scope, ...foundBySql(leading, bind)],
    others: predicates.filter((predicate) => !leading.includes(predicate)),
  }
}

/** Uses the ids selected by `ids`; without statistics PostgreSQL would read all rows of a type. */
export function byIds(
  { project, typeNumbers, predicates: others }: Query,
  { statistics }: Pick<PlannerStats, 'statistics'>,
  ids: string,
  bind: Bind,
): IndexScan {
  const scope = scopeSql(project, typeNumbers, bind, false)
  if (statistics.rows > 0) {
    const conditions = [...scope, `r.id = any(array(${ids}))`]
    return { from: 'resource r', conditions, others }
  }
  const row = `select * from resource r where ${[...scope, 'r.id = f.id'].join(' and ')} offset 0`
  const from = `unnest(array(select distinct id from (${ids}) f(id))) f(id) cross join lateral (${row}) r`
  return { from, conditions: [], others }
}

/** Intersects the ids of all predicates: PostgreSQL knows which is rarest. */
export function idsSql(ids: readonly IdsPredicate[], bind: Bind): string {
  const [first = '', ...others] = ids.map((predicate) => predicate.ids(bind))
  if (others.length === 0) return first
  const among = others.map((sql) => `x.id in (${sql})`).join(' and ')
  return `select x.id from (${first}) x(id) where ${among}`
}

export function indexScanSql(
  { order, after }: Query,
  { from, conditions, others }: IndexScan,
  most: string,
  bind: Bind,
): string {
  const near = others.filter((predicate) => predicateReadScope(predicate) === 'row')
  const far = others.filter((predicate) => !near.includes(predicate))
  const tested = near.map((predicate) => oneRowSql(predicate, bind))
  if (after !== undefined) tested.push(afterSql(order, after, bind))
  const where = [...conditions, ...tested.map((sql) => `(${sql}) is true`)]
  const columns = far.length === 0 ? KEY_COLUMNS : WALKED
  const rows = `select ${columns} from ${from} where ${where.join(' and ') || 'true'}
    order by ${orderAfterSql(order, 'r')}`
  if (far.length === 0) return `${rows} limit ${most}`
  // Tested in order until the page is full.
  const seen = far.map((predicate) => `(${oneRowSql(predicate, bind)}) is true`).join(' and ')
  return `select ${KEY_COLUMNS} from (${rows} offset 0) r where ${seen} limit ${most}`
}

// Rows along a B-tree of `resource` between two positions. Both bounds are row values that start with Project and
// type: only the index of that order serves them, so PostgreSQL walks it regardless of statistics.

export const KEY_COLUMNS = 'r.project, r.type, r.id, r.ver, r.lu, r.d_lo'

/** Columns of a row that its conditions and its order read. */
export const WALKED = `${KEY_COLUMNS}, r.d_hi, r.nref, r.keys`

const LAST_ID = 'ffffffff-ffff-ffff-ffff-ffffffffffff'

/** Puts values behind a select, which hides them from the planner, so that the cached plan fits any value. */
export function hideFromPlanner(bind: Bind): Bind {
  // The cast makes it a scalar where a select would be a row set: `= any(…)`.
  return (value, type) => {
    const bound = bind(value, type)
    return bound.startsWith('(') ? bound : `${dialect.value(bound)}::${type}`
  }
}

type Walked = Pick<Query, 'project' | 'typeNumbers' | 'predicates' | 'after'> & {
  readonly order: Pick<Order, 'column' | 'descending'>
}

interface ColumnRange {
  readonly from: number
  readonly to: number
  readonly isBounded: boolean
}

export function intersectRanges(
  predicates: readonly Predicate[],
  column: Order['column'],
): ColumnRange {
  const spans = predicates.flatMap((predicate) =>
    'within' in predicate && predicate.within?.column === column ? [predicate.within] : [],
  )
  const from = Math.max(...spans.map((span) => Math.floor(span.from)), -Infinity)
  const to = Math.min(...spans.map((span) => Math.floor(span.to)), Infinity)
  return { from, to, isBounded: spans.length > 0 }
}

/**
 * Selects the rows of a type in order, tested only by bounds of the order's column. Rows without a main date have a
 * separate index, so a date order is two runs, the second read once the first is exhausted. Without `most`, rows are
 * read on demand; a fence keeps outer predicates from using other indexes.
 */
export function walkSql(walked: Walked, most: string | undefined, bind: Bind): string {
  const { predicates, order, after } = walked
  const { column, descending } = order
  const span = intersectRanges(predicates, column)
  const end = most === undefined ? 'offset 0' : `limit ${most}`
  if (column === 'id') return runSql(walked, { where: '', column: undefined, after }, end, bind)
  if (column === 'lu') return runSql(walked, { where: '', column, span, after }, end, bind)
  const isAmongDateless = after !== undefined && after.value === null
  const wantsDateless =
    !predicates.some((predicate) => predicate.kind === 'date') &&
    (after === undefined || isAmongDateless || !descending)
  const wantsDated = descending || !isAmongDateless
  const from = isAmongDateless ? undefined : after
  const dated = { where: ' and r.d_lo is not null', column, span, after: from }
  const rest = isAmongDateless ? after : undefined
  const dateless = { where: ' and r.d_lo is null', column: undefined, after: rest }
  const runs = [...(wantsDated ? [dated] : []), ...(wantsDateless ? [dateless] : [])]
  if (descending) runs.reverse()
  const [only, other] = runs
  // No dated row comes after one without a date.
  if (only === undefined) return `select ${WALKED} from resource r where false`
  if (other === undefined) return runSql(walked, only, end, bind)
  const rows = runs.map((run) => `(${runSql(walked, run, end, bind)})`).join(' union all ')
  return `select * from (${rows}) r ${end}`
}

interface Run {
  /** Absent: ordered by id alone. */
  readonly column: 'lu' | 'd_lo' | undefined
  readonly span?: Pick<ColumnRange, 'from' | 'to'>
  readonly after: Position | undefined
  readonly where: string
}

function runSql({ project, typeNumbers, order }: Walked, run: Run, end: string, bind: Bind) {
  const { descending } = order
  const { column, span, after, where } = run
  const names = ['project', 'type', ...(column === undefined ? [] : [column]), 'id']
  const columns = names.map((name) => `r.${name}`)
  const at = (time: string | null, id: string) => {
    const place = [bind(project, 'int'), bind(typeNumbers[0], 'smallint')]
    if (column !== undefined) place.push(bind(time, 'timestamptz'))
    return [...place, bind(id, 'uuid')]
  }
  const behind = after === undefined ? undefined : at(after.value, after.id)
  const low =
    behind !== undefined && !descending
      ? dialect.walkFrom(columns, '>', behind)
      : dialect.walkFrom(columns, '>=', at(timestamp(span?.from ?? -Infinity), FIRST_ID))
  const high =
    behind !== undefined && descending
      ? `< (${behind.join(', ')})`
      : `<= (${at(timestamp(span?.to ?? Infinity), LAST_ID).join(', ')})`
  const by = names.map((name) => `r.${name}${descending ? ' desc' : ''}`).join(', ')
  return `select ${WALKED} from resource r where ${low} and (${columns.join(', ')}) ${high}${where} order by ${by} ${end}`
}

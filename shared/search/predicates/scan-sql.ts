/** Stages of a statement: a walk along the order, and a fallback when it does not fill the page. */

import { dialect } from '../../postgres/chosen-dialect.ts'
import type { Bind } from '../../postgres/statement.ts'
import { afterSql, orderAfterSql, orderColumns, orderSql } from './order.ts'
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
import type { PlannerStats, Query } from './query.ts'
import { KEY_COLUMNS, WALKED, walkSql } from './walk-sql.ts'

/** A walk of at most `cap` rows, run if `when` holds. */
export interface Walk {
  readonly when?: string | undefined
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
export function walkToEndSql(
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
  const isSplit = first?.kind === 'join' && order.column !== 'd_lo'
  const others = isSplit ? predicates.filter((predicate) => predicate !== first) : predicates
  const targets = isSplit ? first.walk?.targets?.(bind) : undefined
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

/** Puts values behind a select, which hides them from the planner, so that the cached plan fits any value. */
export function hideFromPlanner(bind: Bind): Bind {
  // The cast makes it a scalar where a select would be a row set: `= any(…)`.
  return (value, type) => {
    const bound = bind(value, type)
    return bound.startsWith('(') ? bound : `${dialect.value(bound)}::${type}`
  }
}

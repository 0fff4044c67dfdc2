/** The stages of a statement: a walk along the order, and the rest where that has not filled the page. */
import type { Bind } from '../../rows/side-rows.ts'
import { afterSql, columnsOf, orderAfterSql, orderSql } from '../order/order.ts'
import { foundBySql, oneRowSql, probeSql, scopeSql, sqlOf } from '../tests/row-test.ts'
import type { IdsTest, Test } from '../tests/test.ts'
import { reachOf } from '../tests/test-scope.ts'
import type { Facts, Query } from './query.ts'
import { COLUMNS, WALKED, walkSql } from './walk.ts'

/** A walk of at most `cap` rows, where `when` holds. */
export interface Walk {
  readonly when?: string
  readonly cap: number
  readonly tested: readonly string[]
  /** A join that lets rows through, once for each target. */
  readonly targets?: string | undefined
}

interface Stages {
  readonly with: readonly string[]
  readonly walk: Walk | undefined
  readonly rest: string
}

/**
 * Selects what the walk finds if it fills the page, else the rest. The walk is in order already; to ask for that order
 * again would make PostgreSQL walk to the cap before it sorts.
 */
export function staged(
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
      ? `select ${COLUMNS} ${selected} limit ${most}`
      : `select distinct on (${placeOf(query, '')}) ${COLUMNS} ${selected}
        order by ${placeOf(query, query.order.descending ? ' desc' : '')} limit ${most}`
  const isFilled = `(select count(*) from w) >= ${most}`
  return `with ${[...first, `w as materialized (${walked})`].join(', ')}
    select * from (
      select * from w where ${isFilled}
      union all
      select * from (${rest}) k where not (${isFilled})
    ) r order by ${orderSql(query.order, 'r')}`
}

/** The columns of the walk's index, whose order PostgreSQL then need not make again. */
function placeOf({ order: { column, byType } }: Query, direction: string): string {
  const names = new Set(['project', 'type', ...columnsOf(column, byType)])
  return [...names].map((name) => `r.${name}${direction}`).join(', ')
}

/** To the end of the order, or until the page is full. */
export function walkedOn(
  query: Query,
  tested: readonly string[],
  most: string | undefined,
  bind: Bind,
): string {
  const where = tested.length === 0 ? '' : ` where ${tested.join(' and ')}`
  const end = most === undefined ? '' : ` limit ${most}`
  return `select ${COLUMNS} from (${walkSql(query, undefined, bind)}) r${where}${end}`
}

/** A test of a row that is walked past: many are, so what it leads to is not looked up for each. */
export function testedSql(test: Test, bind: Bind): string {
  if (test.kind === 'ids') return probeSql(test, bind)
  const look = test.kind === 'join' ? test.walk?.test?.(bind) : undefined
  return look ?? sqlOf(test, bind, true)
}

/** The tests of a walk; a join that leads to its targets by their own index is joined, where the order is known. */
export function led(
  tests: readonly Test[],
  { order }: Query,
  bind: Bind,
): Pick<Walk, 'tested' | 'targets'> {
  const first = tests.find((test) => test.kind === 'join' && test.walk?.targets !== undefined)
  // An order by date is two runs, of which PostgreSQL does not know that they are in order.
  const isLed = first?.kind === 'join' && order.column !== 'd_lo'
  const others = isLed ? tests.filter((test) => test !== first) : tests
  const targets = isLed ? first.walk?.targets?.(bind) : undefined
  return { targets, tested: others.map((test) => testedSql(test, bind)) }
}

// Rows that an index finds by some of the tests; the other tests are looked at on each row, then comes the order.

/** The index that finds rows `r`, and the tests that are left. */
export interface Finding {
  readonly from: string
  readonly conditions: readonly string[]
  readonly others: readonly Test[]
}

/** By `_id`, else by keys, else by nothing: all rows of the type. */
export function byIndex({ project, typeNumbers, tests }: Query, bind: Bind): Finding {
  const kind = ['narrow', 'keys'].find((one) => tests.some((test) => test.kind === one))
  const leading = tests.filter((test) => test.kind === kind)
  const scope = scopeSql(project, typeNumbers, bind, kind === 'keys')
  return {
    from: 'resource r',
    conditions: [...scope, ...foundBySql(leading, bind)],
    others: tests.filter((test) => !leading.includes(test)),
  }
}

/** By ids, which `ids` selects; without statistics PostgreSQL would read all rows of a type to find some. */
export function byIds(
  { project, typeNumbers, tests: others }: Query,
  { statistics }: Pick<Facts, 'statistics'>,
  ids: string,
  bind: Bind,
): Finding {
  const scope = scopeSql(project, typeNumbers, bind, false)
  if (statistics.rows > 0) {
    const conditions = [...scope, `r.id = any(array(${ids}))`]
    return { from: 'resource r', conditions, others }
  }
  const row = `select * from resource r where ${[...scope, 'r.id = f.id'].join(' and ')} offset 0`
  const from = `unnest(array(select distinct id from (${ids}) f(id))) f(id) cross join lateral (${row}) r`
  return { from, conditions: [], others }
}

/** The ids of all tests together: PostgreSQL knows which of them is rare. */
export function idsSql(ids: readonly IdsTest[], bind: Bind): string {
  const [first = '', ...others] = ids.map((test) => test.ids(bind))
  if (others.length === 0) return first
  const among = others.map((sql) => `x.id in (${sql})`).join(' and ')
  return `select x.id from (${first}) x(id) where ${among}`
}

/** Rows in order, at most `most` of them. */
export function foundSql(
  { order, after }: Query,
  { from, conditions, others }: Finding,
  most: string,
  bind: Bind,
): string {
  const near = others.filter((test) => reachOf(test) === 'row')
  const far = others.filter((test) => !near.includes(test))
  const tested = near.map((test) => oneRowSql(test, bind))
  if (after !== undefined) tested.push(afterSql(order, after, bind))
  const where = [...conditions, ...tested.map((sql) => `(${sql}) is true`)]
  const columns = far.length === 0 ? COLUMNS : WALKED
  const rows = `select ${columns} from ${from} where ${where.join(' and ') || 'true'}
    order by ${orderAfterSql(order, 'r')}`
  if (far.length === 0) return `${rows} limit ${most}`
  // Looked for in that order, until the page is full.
  const seen = far.map((test) => `(${oneRowSql(test, bind)}) is true`).join(' and ')
  return `select ${COLUMNS} from (${rows} offset 0) r where ${seen} limit ${most}`
}

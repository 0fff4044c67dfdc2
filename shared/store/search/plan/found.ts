/** Rows that an index finds by some of the tests; the other tests are looked at on each row, then comes the order. */
import type { Bind } from '../../rows/side-rows.ts'
import { afterSql, orderAfterSql } from '../order/order.ts'
import { foundBySql, oneRowSql, scopeSql } from '../tests/row-test.ts'
import type { IdsTest, Test } from '../tests/test.ts'
import { reachOf } from '../tests/test-scope.ts'
import type { Facts, Query } from './query.ts'
import { COLUMNS, WALKED } from './walk.ts'

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

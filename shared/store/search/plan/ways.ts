/** The two ways to the rows of a search that all others are made of: by keys or ids, and in order. */
import type { Bind } from '../../rows/side-rows.ts'
import { afterSql, orderAfterSql, orderSql } from '../order/order.ts'
import { fewSql, isByKeys, probeSql, scopeSql, sqlOf } from '../tests/row-test.ts'
import type { Test } from '../tests/test.ts'
import type { Query } from './query.ts'

export const COLUMNS = 'r.project, r.type, r.id, r.ver, r.lu, r.d_lo'

/** Columns that a test may look at. */
export const WALKED = `${COLUMNS}, r.d_hi, r.nref, r.keys`

export type TestSql = (test: Test, bind: Bind) => string

export const forced: TestSql = (test, bind) => sqlOf(test, bind, true)

/** Values at which PostgreSQL does not look when it plans. */
export function behindSelect(bind: Bind): Bind {
  // The cast makes it a value, also where a select would be one of rows: `= any(…)`.
  return (value, type) => {
    const bound = bind(value, type)
    return bound.startsWith('(') ? bound : `(select ${bound})::${type}`
  }
}

/** `isHeld`: the rows are found by keys. */
export function where(
  { project, typeNumbers }: Query,
  tests: readonly Test[],
  bind: Bind,
  testSql: TestSql,
  isHeld = isByKeys(tests),
): string {
  return [
    ...scopeSql(project, typeNumbers, bind, isHeld),
    ...tests.map((test) => testSql(test, bind)),
  ].join(' and ')
}

/** `ids`: a subselect in place of the first test on a side table, if it narrows most. */
export function keysFirst(query: Query, ids: string | undefined, most: string, bind: Bind): string {
  const { order, tests } = query
  const first = ids === undefined ? undefined : tests.find(({ kind }) => kind === 'ids')
  const others = tests.filter((test) => test !== first)
  // An array of ids, unlike `in`, is made before anything else is looked at: PostgreSQL cannot guess
  // how few they are and would rather sort every row of the type first.
  const found = ids === undefined ? '' : ` and r.id = any(array(${ids}))`
  const isHeld = ids === undefined && isByKeys(others)
  const after = query.after ? ` and ${afterSql(order, query.after, bind)}` : ''
  const costly = others.filter(
    (test) =>
      (test.kind === 'filter' && test.isCostly) ||
      (test.kind === 'join' && test.probe !== undefined),
  )
  const cheap = others.filter((test) => !costly.includes(test))
  const testSql = ids === undefined ? probed : foundBefore
  const rows = (columns: string, end: string) => `select ${columns} from resource r
    where ${where(query, cheap, bind, testSql, isHeld)}${found}${after}
    order by ${orderAfterSql(order, 'r')} ${end}`
  if (costly.length === 0) return rows(COLUMNS, `limit ${most}`)
  // In order already, and read until the page is full.
  const tested = costly.map((test) => probed(test, bind)).join(' and ')
  return `select ${COLUMNS} from (${rows(WALKED, 'offset 0')}) r where ${tested} limit ${most}`
}

/** For few rows: a side table is probed for each of them, not read for all. */
const probed: TestSql = (test, bind) =>
  test.kind === 'ids' ? probeSql(test, bind) : fewSql(test, bind)

/** For rows that are found by their ids: their keys are common, or they would have been found by those. */
const foundBefore: TestSql = (test, bind) =>
  test.kind === 'keys' ? forced(test, bind) : probed(test, bind)

/**
 * Rows in the order of a B-tree, at most `most` of them if given, else as many as are read of it. Those without a main date are in an index
 * of their own, so an order by date is two runs, the second read only when the first is used up.
 */
export function ordered(
  query: Query,
  tests: readonly Test[],
  columns: string,
  most: string | undefined,
  plainBind: Bind,
) {
  const { order, after } = query
  // PostgreSQL expects one row of a Project or type that it has never seen, and would rather sort it than walk.
  const bind = behindSelect(plainBind)
  // Without a fence the tests of who reads it may find the rows by an index of their own.
  const end = most === undefined ? 'offset 0' : `limit ${most}`
  const run = (condition: string, by: string) => `select ${columns} from resource r
    where ${where(query, tests, bind, forced, false)}${condition} order by ${by} ${end}`
  if (order.column !== 'd_lo') {
    const rest = after ? ` and ${afterSql(order, after, bind)}` : ''
    return run(rest, orderSql(order, 'r'))
  }
  const beyond = order.descending ? '<' : '>'
  const dated = () => {
    const rest = after?.value
      ? ` and (r.d_lo, r.id) ${beyond} (${bind(after.value, 'timestamptz')}, ${bind(after.id, 'uuid')})`
      : ''
    return run(` and r.d_lo is not null${rest}`, orderSql(order, 'r'))
  }
  const dateless = () => {
    const rest = after?.value === null ? ` and r.id ${beyond} ${bind(after.id, 'uuid')}` : ''
    return run(` and r.d_lo is null${rest}`, `r.id${order.descending ? ' desc' : ''}`)
  }
  const isAmongDateless = after?.value === null
  const wantsDateless =
    !tests.some((test) => test.kind === 'date') &&
    (after === undefined || isAmongDateless || !order.descending)
  const wantsDated = order.descending || !isAmongDateless
  const runs: string[] = []
  if (wantsDateless && order.descending) runs.push(dateless())
  if (wantsDated) runs.push(dated())
  if (wantsDateless && !order.descending) runs.push(dateless())
  return `select * from (${runs.map((sql) => `(${sql})`).join(' union all ')}) r ${end}`
}

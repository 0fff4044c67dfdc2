/**
 * A search → one statement. Narrow rows of `resource` are found, ordered and cut to a page first;
 * only the page's contents are fetched from `version`. Never a named statement: a generic plan is up
 * to a hundred times slower than one made for its values.
 */
import type { Statement } from '../../database.ts'
import { tooCostly } from '../../errors.ts'
import { versionColumns } from '../rows.ts'
import type { Bind } from '../side-rows.ts'
import type { Driver } from './driver.ts'
import { afterSql, type Order, orderAfterSql, orderSql, type Position } from './order.ts'
import {
  fewSql,
  heldRows,
  type IdsTest,
  isByKeys,
  probeSql,
  scopeSql,
  sqlOf,
  type Test,
} from './row-test.ts'
import { sortedRows } from './sort-rows.ts'

export interface Query {
  readonly project: number
  /** More than one: tests and order are the same for all of them, and keys are found first. */
  readonly typeNumbers: readonly number[]
  readonly tests: readonly Test[]
  readonly order: Order
  /** Of a row of the page, where words are searched. */
  readonly score?: ((bind: Bind) => string) | undefined
  readonly after: Position | undefined
  readonly limit: number
  readonly offset: number
}

const MAX_BINDINGS = 65_535
const COLUMNS = 'r.project, r.type, r.id, r.ver, r.lu, r.d_lo'

/** A type of a search, and how its rows are found. */
export interface Part {
  readonly query: Query
  readonly driver: Driver
}

/** Rows are SortedRow, in order. Parts differ in type and tests only: several are several types. */
export function pageStatement(parts: readonly Part[]): Statement {
  const { bind, statement } = statementBuilder()
  return statement(pageSql(parts, bind))
}

/** The same of several searches at once: `n` says whose row it is. */
export function pagesStatement(pages: readonly (Part & { readonly n: number })[]): Statement {
  const { bind, statement } = statementBuilder()
  const rows = pages.map((part) => {
    return `(select ${bind(part.n, 'int')} as n, p.* from (${pageSql([part], bind)}) p)`
  })
  return statement(rows.join(' union all '))
}

function pageSql(parts: readonly Part[], bind: Bind): string {
  const [first] = parts
  if (first === undefined) throw new Error('A search has at least one type')
  const { order, limit, offset, score } = first.query
  const most = bind(offset + limit, 'int')
  const rows = parts.map((part) => rowsSql(part, most, bind))
  const found =
    rows.length === 1
      ? `(${rows[0]}) r`
      : `(${rows.map((sql) => `(${sql})`).join(' union all ')}) r order by ${orderSql(order, 'r')}`
  const page = `select * from ${found} limit ${most} offset ${bind(offset, 'int')}`
  const sorted = ['d_lo', ...order.terms.map((_, i) => `s${i}`)].map((name) => `r.${name}`)
  if (score !== undefined) sorted.push(`${score(bind)} as score`)
  return `select ${sorted.join(', ')}, ${versionColumns('v')} from (${page}) r
    join version v using (project, type, id, ver) order by ${orderSql(order, 'r')}`
}

function rowsSql({ query, driver }: Part, most: string, bind: Bind): string {
  if (query.order.terms.length > 0) {
    const testSql = driver.kind === 'keys' ? fewSql : sqlOf
    const isJoined = query.tests.some(({ kind }) => kind === 'join')
    const sorting = {
      ...query,
      columns: COLUMNS,
      isNarrow: isJoined || (driver.kind !== 'order' && driver.kind !== 'walk'),
      tests: (isForced: boolean) =>
        isForced
          ? where(query, query.tests, bind, forced, false)
          : where(query, query.tests, bind, (test, b) => testSql(test, b)),
    }
    return sortedRows(sorting, most, bind)
  }
  if (driver.kind === 'keys') return keysFirst(query, undefined, most, bind)
  if (driver.kind === 'ids') return byIds(query, driver, most, bind)
  if (driver.kind === 'join') return joined(query, most, bind)
  if (driver.kind === 'order') return ordered(query, query.tests, COLUMNS, most, bind)
  return walked(query, driver, most, bind)
}

/** `count` rows, counted up to `max` when given. */
export function countStatement(queries: readonly Query[], max: number | undefined): Statement {
  const { bind, statement } = statementBuilder()
  const rows = queries
    .map((query) => {
      const narrows = query.tests.some(({ kind }) => kind !== 'join' && kind !== 'filter')
      // Otherwise every row is looked at.
      const testSql = narrows ? fewSql : sqlOf
      return `select 1 from resource r where ${where(query, query.tests, bind, testSql)}`
    })
    .join(' union all ')
  const capped = max === undefined ? rows : `${rows} limit ${bind(max, 'int')}`
  return statement(`select count(*)::int as count from (${capped}) r`)
}

function statementBuilder() {
  const values: unknown[] = []
  const bind: Bind = (value, type) => {
    values.push(value)
    return `$${values.length}::${type}`
  }
  const statement = (text: string): Statement => {
    // The protocol counts them in 16 bits.
    if (values.length > MAX_BINDINGS) throw tooCostly('The search has too many values')
    return { text, values }
  }
  return { bind, statement }
}

type TestSql = (test: Test, bind: Bind) => string

const forced: TestSql = (test, bind) => sqlOf(test, bind, true)

/** `isHeld`: the rows are found by keys. */
function where(
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

/** `ids` are those of the first test on a side table, if it narrows most. */
function keysFirst(query: Query, ids: string | undefined, most: string, bind: Bind): string {
  const { order, tests } = query
  const first = ids === undefined ? undefined : idsTest(query)
  const others = tests.filter((test) => test !== first)
  // An array of ids, unlike `in`, is made before anything else is looked at: PostgreSQL cannot guess
  // how few they are and would rather sort every row of the type first.
  const found = ids === undefined ? '' : ` and r.id = any(array(${ids}))`
  const isHeld = ids === undefined && isByKeys(others)
  const after = query.after ? ` and ${afterSql(order, query.after, bind)}` : ''
  const costly = others.filter((test) => test.kind === 'filter' && test.isCostly)
  const cheap = others.filter((test) => !costly.includes(test))
  const rows = (columns: string, end: string) => `select ${columns} from resource r
    where ${where(query, cheap, bind, probed, isHeld)}${found}${after}
    order by ${orderAfterSql(order, 'r')} ${end}`
  if (costly.length === 0) return rows(COLUMNS, `limit ${most}`)
  // In order already, and read until the page is full.
  const tested = costly.map((test) => probed(test, bind)).join(' and ')
  return `select ${COLUMNS} from (${rows(WALKED, 'offset 0')}) r where ${tested} limit ${most}`
}

function idsTest({ tests }: Query): IdsTest {
  const found = tests.find((test) => test.kind === 'ids')
  if (found === undefined) throw new Error('There is no test on a side table')
  return found
}

/** Of few rows: a side table is asked for each of them, not read for all. */
const probed: TestSql = (test, bind) =>
  test.kind === 'ids' ? probeSql(test, bind) : fewSql(test, bind)

/**
 * How many rows of a side table match is only known when they are read, so the statement holds every
 * way: few ids, or a capped walk in order, or all the ids where the walk does not fill the page.
 */
function byIds(
  query: Query,
  { few, cap }: Extract<Driver, { kind: 'ids' }>,
  most: string,
  bind: Bind,
): string {
  const first = idsTest(query)
  if (few === undefined) return keysFirst(query, first.ids(bind), most, bind)
  const isBound = (test: Test) => test.kind === 'date' && query.order.column === 'd_lo'
  const walk = ordered(query, query.tests.filter(isBound), WALKED, bind(cap, 'int'), bind)
  const tested = query.tests.filter((test) => !isBound(test)).map((test) => walkedSql(test, bind))
  const isFew = `(select count(*) from f) <= ${bind(few, 'int')}`
  return `with f as materialized (
      select x.id from (${first.ids(bind)}) x(id) limit ${bind(few + 1, 'int')}),
    w as materialized (
      select ${COLUMNS} from (${walk}) r
      where not (${isFew}) and ${tested.join(' and ')} limit ${most})
    select * from (
      select * from (${keysFirst(query, 'select id from f', most, bind)}) a where ${isFew}
      union all
      select * from w where (select count(*) from w) >= ${most}
      union all
      select * from (${keysFirst(query, first.ids(bind), most, bind)}) k
      where not (${isFew}) and (select count(*) from w) < ${most}
    ) r order by ${orderSql(query.order, 'r')}`
}

/** Columns that a test may look at. */
const WALKED = `${COLUMNS}, r.d_hi, r.nref, r.keys`

const walkedSql: TestSql = (test, bind) =>
  test.kind === 'ids' ? probeSql(test, bind) : forced(test, bind)

const visitedSql: TestSql = (test, bind) =>
  (test.kind === 'join' ? test.walk?.test?.(bind) : undefined) ?? forced(test, bind)

/**
 * Rows in the order of a B-tree, at most `most` of them. Those without a main date are in an index
 * of their own, so an order by date is two runs, the second read only when the first is used up.
 */
function ordered(query: Query, tests: readonly Test[], columns: string, most: string, bind: Bind) {
  const { order, after } = query
  const run = (condition: string, by: string) => `select ${columns} from resource r
    where ${where(query, tests, bind, forced, false)}${condition} order by ${by} limit ${most}`
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
  return `select * from (${runs.map((sql) => `(${sql})`).join(' union all ')}) r limit ${most}`
}

/** By the keys of a join when they are few, else looked up in order. A row may hold several of them. */
function joined(query: Query, most: string, bind: Bind): string {
  const join = query.tests.find((test) => test.kind === 'join')
  if (join === undefined) throw new Error('There is nothing to join')
  const others = query.tests.filter((test) => test !== join)
  const keys = '(select k from j)'
  const looked: Test = { kind: 'filter', sql: () => join.check(keys) }
  const after = query.after ? ` and ${afterSql(query.order, query.after, bind)}` : ''
  const found = (overlap: string) => `select ${COLUMNS} from resource r
    where ${where(query, others, bind, fewSql, true)} and ${overlap}${after}`
  const walk = ordered(query, [...others, looked], COLUMNS, most, bind)
  const { few, many } = heldRows(keys, found, walk)
  return `with j as materialized (select ${join.keys(bind)} as k)
    select * from (select distinct * from (${few}) a union all ${many}) r
    order by ${orderSql(query.order, 'r')} limit ${most}`
}

/**
 * The rows that a capped walk finds if they fill the page, else those of key-first or of a join. The walk is in
 * order already; to ask for that order again would make PostgreSQL walk to the cap before it sorts.
 */
function walked(
  query: Query,
  { cap, isSure }: Extract<Driver, { kind: 'walk' }>,
  most: string,
  bind: Bind,
): string {
  // Bounds on the order's own column belong inside: they end the walk, not only filter it.
  const isBound = (test: Test) => test.kind === 'date' && query.order.column === 'd_lo'
  const inside = query.tests.filter(isBound)
  const outside = query.tests.filter((test) => !isBound(test))
  const walk = ordered(query, inside, WALKED, bind(cap, 'int'), bind)
  const tested = outside.map((test) => visitedSql(test, bind)).join(' and ')
  const found = `select ${COLUMNS} from (${walk}) r where ${tested} limit ${most}`
  if (isSure) return found
  const isJoined = outside.some((test) => test.kind === 'join')
  const rest = isJoined ? joined(query, most, bind) : keysFirst(query, undefined, most, bind)
  return `with w as materialized (${found})
    select * from (
      select * from w where (select count(*) from w) >= ${most}
      union all
      select * from (${rest}) k where (select count(*) from w) < ${most}
    ) r order by ${orderSql(query.order, 'r')}`
}

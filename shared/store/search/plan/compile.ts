/**
 * A search → one statement. Narrow rows of `resource` are found, ordered and cut to a page first;
 * only the page's contents are fetched from `version`. Planned for its values, where a plan for all is
 * up to a hundred times slower, unless there is one way to its rows (settled.ts, kept.ts).
 */

import { tooCostly } from '../../../errors.ts'
import type { Statement } from '../../../platform/postgres/statement.ts'
import { versionColumns, WITH_VERSIONS } from '../../rows/rows.ts'
import type { Bind } from '../../rows/side-rows.ts'
import { afterSql, columnsOf, orderSql } from '../order/order.ts'
import { sortedRows } from '../order/sort-rows.ts'
import { fewSql, heldRows, sqlOf } from '../tests/row-test.ts'
import type { Test } from '../tests/test.ts'
import { byDates } from './by-dates.ts'
import { byIds } from './by-ids.ts'
import type { Part, Query } from './query.ts'
import { countedSql, isCountedOneWay, isSettled, settledSql } from './single-way.ts'
import type { KeyStatistics } from './statistics.ts'
import {
  behindSelect,
  COLUMNS,
  forced,
  keysFirst,
  ordered,
  type TestSql,
  WALKED,
  where,
} from './ways.ts'

const MAX_BINDINGS = 65_535

/** Rows are SortedRow, in order. Parts differ in type and tests only: several are several types. */
export function pageStatement(parts: readonly Part[]): Statement {
  const { bind, statement } = statementBuilder()
  return { ...statement(pageSql(parts, bind)), isKept: isSettled(parts) }
}

/** The same of several searches at once: `n` says whose row it is. */
export function pagesStatement(pages: readonly (Part & { readonly n: number })[]): Statement {
  const { bind, statement } = statementBuilder()
  const rows = pages.map((part) => {
    return `(select ${bind(part.n, 'int')} as n, p.* from (${pageSql([part], bind)}) p)`
  })
  return statement(rows.join(' union all '))
}

function pageSql(parts: readonly Part[], plainBind: Bind): string {
  const [first] = parts
  if (first === undefined) throw new Error('A search has at least one type')
  const bind = isSettled(parts) ? behindSelect(plainBind) : plainBind
  const { order, limit, offset, score } = first.query
  const most = bind(offset + limit, 'int')
  const rows = parts.map((part) => rowsSql(part, most, bind))
  const [only = '', other] = rows
  const found =
    other === undefined
      ? `(${only}) r`
      : `(${rows.map((sql) => `(${sql})`).join(' union all ')}) r order by ${orderSql(order, 'r')}`
  // Each level of a statement takes planning.
  const isPage = other === undefined && offset === 0
  const page = isPage ? only : `select * from ${found} limit ${most} offset ${bind(offset, 'int')}`
  const sorted = ['d_lo', ...order.terms.map((_, i) => `s${i}`)].map((name) => `r.${name}`)
  if (score !== undefined) sorted.push(`${score(bind)} as score`)
  return `select ${sorted.join(', ')}, ${versionColumns('v')} from (${page}) r
    ${WITH_VERSIONS} order by ${orderSql(order, 'r')}`
}

function rowsSql({ query, driver }: Part, most: string, bind: Bind): string {
  if (driver.kind === 'settled') {
    const rows = () => settledSql(query, most, bind)
    if (driver.cap === undefined) return rows()
    if (driver.isEndless) return walked(query, undefined, undefined, most, bind)
    return walked(query, driver.cap, driver.isSure ? undefined : rows(), most, bind)
  }
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
  if (driver.kind === 'dates') return byDates(query, driver, most, bind)
  if (driver.kind === 'join') return joined(query, most, bind)
  if (driver.kind === 'order') return ordered(query, query.tests, COLUMNS, most, bind)
  if (driver.isEndless) return walked(query, undefined, undefined, most, bind)
  const isJoined = query.tests.some(({ kind }) => kind === 'join')
  const rest = () =>
    isJoined ? joined(query, most, bind) : keysFirst(query, undefined, most, bind)
  return walked(query, driver.cap, driver.isSure ? undefined : rest(), most, bind)
}

/** `count` rows, counted up to `max` when given. */
export function countStatement(
  statistics: KeyStatistics,
  queries: readonly Query[],
  max: number | undefined,
): Statement {
  const { bind, statement } = statementBuilder()
  const hidden = behindSelect(bind)
  const isKept = queries.every((query) => isCountedOneWay(statistics, query))
  const rows = queries
    .map((query) => (isKept ? countedSql(query, hidden) : matchesSql(query, bind)))
    .join(' union all ')
  const capped = max === undefined ? rows : `${rows} limit ${bind(max, 'int')}`
  return { ...statement(`select count(*)::int as count from (${capped}) r`), isKept }
}

function matchesSql(query: Query, bind: Bind): string {
  const narrows = query.tests.some(({ kind }) => kind !== 'join' && kind !== 'filter')
  // Otherwise every row is looked at.
  const testSql = narrows ? fewSql : sqlOf
  return `select 1 from resource r where ${where(query, query.tests, bind, testSql)}`
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

const visitedSql: TestSql = (test, bind) =>
  (test.kind === 'join' ? test.walk?.test?.(bind) : undefined) ?? forced(test, bind)

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
 * The rows that a capped walk finds if they fill the page, else the rest: those of key-first or of a join. The walk is in
 * order already; to ask for that order again would make PostgreSQL walk to the cap before it sorts.
 */
function walked(
  query: Query,
  cap: number | undefined,
  rest: string | undefined,
  most: string,
  bind: Bind,
): string {
  // Bounds on the order's own column belong inside: they end the walk, not only filter it.
  const isBound = (test: Test) => test.kind === 'date' && query.order.column === 'd_lo'
  const inside = query.tests.filter(isBound)
  const outside = query.tests.filter((test) => !isBound(test))
  // A number that PostgreSQL knows: from it follows that the order's own index is the way.
  const walk = ordered(query, inside, WALKED, cap === undefined ? undefined : String(cap), bind)
  if (rest === undefined) return surelyWalked(query, walk, outside, most, bind)
  const tested = outside.map((test) => visitedSql(test, bind)).join(' and ')
  const found = `select ${COLUMNS} from (${walk}) r where ${tested} limit ${most}`
  return `with w as materialized (${found})
    select * from (
      select * from w where (select count(*) from w) >= ${most}
      union all
      select * from (${rest}) k where (select count(*) from w) < ${most}
    ) r order by ${orderSql(query.order, 'r')}`
}

/** A walk that very probably fills the page: joined with what one join leads to, where its order is known. */
function surelyWalked(
  { order }: Query,
  walk: string,
  tests: readonly Test[],
  most: string,
  bind: Bind,
): string {
  const led = tests.find((test) => test.kind === 'join' && test.walk?.targets !== undefined)
  const targets = led?.kind === 'join' ? led.walk?.targets : undefined
  // An order by date is two runs, of which PostgreSQL does not know that they are in order.
  const isLed = targets !== undefined && order.column !== 'd_lo'
  const others = isLed ? tests.filter((test) => test !== led) : tests
  const tested = others.map((test) => visitedSql(test, bind)).join(' and ') || 'true'
  if (!isLed) return `select ${COLUMNS} from (${walk}) r where ${tested} limit ${most}`
  const columns = columnsOf(order.column, order.byType).map((name) => `r.${name}`)
  return `select distinct on (${columns.join(', ')}) ${COLUMNS} from (${walk}) r ${targets(bind)}
    where ${tested} order by ${orderSql(order, 'r')} limit ${most}`
}

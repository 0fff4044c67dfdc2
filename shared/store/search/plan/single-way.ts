/**
 * Searches with one way to their rows, whatever is looked for: PostgreSQL caches their plan. To plan them anew took
 * four times as long as to run them. All values stand behind a select, where PostgreSQL does not look, so that the
 * plan it makes for one search is the one for all; and tests that must not find rows are in words that no index
 * serves. A walk along an order is one way, too, as its cap is a value, and so is the search after a walk that fills
 * no page.
 */
import type { Bind } from '../../rows/side-rows.ts'
import { afterSql, orderAfterSql } from '../order/order.ts'
import { foundBySql, oneRowSql, scopeSql } from '../tests/row-test.ts'
import type { IdsTest, Test } from '../tests/test.ts'
import { farthest, reachOf } from '../tests/test-scope.ts'
import { idsSql } from './by-ids.ts'
import { keptBy } from './cached.ts'
import type { Driver } from './driver.ts'
import type { Part, Query } from './query.ts'
import type { KeyStatistics } from './statistics.ts'
import { COLUMNS, WALKED } from './ways.ts'

/** Below this row count the planner picks a sequential scan, and a cached plan would keep it after the table has grown. */
const FEWEST_ROWS = 10_000
/** Ids that are looked up one by one. */
const MOST_IDS = 100
const CAPS = [500, 2000, 4000, 8000, 16_000, 20_000]

/** The driver with its one way, where there is no other to choose, or as one whose plan is kept all the same. */
export function settledBy(statistics: Known, part: Part): Driver {
  const driver = oneWay(statistics, part)
  if (driver.kind === 'settled' || statistics.rows < FEWEST_ROWS) return driver
  return keptBy(statistics, part)
}

type Known = Pick<KeyStatistics, 'rows' | 'rowsOf' | 'matches' | 'startingWith'>

function oneWay(statistics: Known, { query, driver }: Part): Driver {
  const { tests, order } = query
  if (!isPlannedOnce(statistics, query)) return driver
  const reach = farthest(tests)
  const isFound = tests.some(({ kind }) => kind === 'keys' || kind === 'narrow')
  if (driver.kind === 'keys') return isFound && reach ? { kind: 'settled' } : driver
  if (driver.kind === 'walk') {
    if (driver.isEndless && order.column !== 'id') return { ...driver, kind: 'settled' }
    const isBound = order.column === 'id' || tests.some(({ kind }) => kind === 'date')
    const isWalked = !isBound && (reach === 'row' || (reach !== undefined && driver.isSure))
    return isWalked ? { ...driver, kind: 'settled', cap: roundedCap(driver.cap) } : driver
  }
  const isById =
    driver.kind === 'ids' &&
    driver.few === undefined &&
    reach !== undefined &&
    tests.every((test) => {
      if (test.kind !== 'ids') return test.kind === 'filter'
      return test.expected !== undefined && test.expected(statistics) <= MOST_IDS
    })
  return isById ? { kind: 'settled' } : driver
}

/** True where a plan for its rows, once they are found, is one for the rows of others. */
export function isPlannedOnce(
  { rows }: Pick<KeyStatistics, 'rows'>,
  { order, score }: Pick<Query, 'order' | 'score'>,
): boolean {
  return rows >= FEWEST_ROWS && order.terms.length === 0 && score === undefined
}

/** One of few: each is a statement of its own. */
function roundedCap(cap: number): number {
  return CAPS.find((one) => one >= cap) ?? cap
}

export function isSettled(parts: readonly Part[]): boolean {
  return parts.every(({ driver }) => driver.kind === 'settled' || driver.isKept === true)
}

/** Rows in order, at most `most` of them. */
export function settledSql(query: Query, most: string, bind: Bind): string {
  const { tests, order, after } = query
  const leading = leadingTests(tests)
  const others = tests.filter((test) => !leading.includes(test))
  const near = others.filter((test) => reachOf(test) === 'row')
  const far = others.filter((test) => !near.includes(test))
  const tested = near.map((test) => oneRowSql(test, bind))
  if (after !== undefined) tested.push(afterSql(order, after, bind))
  const forced = tested.map((sql) => `(${sql}) is true`)
  const found = foundSql(query, leading, forced, far.length === 0 ? COLUMNS : WALKED, bind)
  const rows = `${found} order by ${orderAfterSql(order, 'r')}`
  if (far.length === 0) return `${rows} limit ${most}`
  // Looked for in that order, until the page is full.
  const seen = far.map((test) => `(${oneRowSql(test, bind)}) is true`).join(' and ')
  return `select ${COLUMNS} from (${rows} offset 0) r where ${seen} limit ${most}`
}

/** True where one way leads to the rows that are to be counted. */
export function isCountedOneWay(statistics: Known, query: Query): boolean {
  const isFound = query.tests.some(({ kind }) => kind === 'keys' || kind === 'narrow')
  return isFound && isPlannedOnce(statistics, query) && farthest(query.tests) !== undefined
}

/** Its rows, to be counted. */
export function countedSql(query: Query, bind: Bind): string {
  const leading = leadingTests(query.tests)
  const others = query.tests.filter((test) => !leading.includes(test))
  const tested = others.map((test) => `(${oneRowSql(test, bind)}) is true`)
  return foundSql(query, leading, tested, '1', bind)
}

/** The tests that find rows; the others filter what is found. */
function leadingTests(tests: readonly Test[]): readonly Test[] {
  const kind = ['narrow', 'keys', 'ids'].find((one) => tests.some((test) => test.kind === one))
  return tests.filter((test) => test.kind === kind)
}

function foundSql(
  { project, typeNumbers }: Query,
  leading: readonly Test[],
  tested: readonly string[],
  columns: string,
  bind: Bind,
): string {
  const isByKeys = leading.every(({ kind }) => kind === 'keys')
  const ids = leading.filter((test): test is IdsTest => test.kind === 'ids')
  const found = ids.length === 0 ? foundBySql(leading, bind) : ['r.id = f.id']
  const conditions = [...scopeSql(project, typeNumbers, bind, isByKeys), ...found, ...tested]
  const rows = `select ${columns} from resource r where ${conditions.join(' and ')}`
  if (ids.length === 0) return rows
  return `select r.* from unnest(array(select distinct id from (${idsSql(ids, bind)}) f(id))) f(id)
    cross join lateral (${rows} offset 0) r`
}

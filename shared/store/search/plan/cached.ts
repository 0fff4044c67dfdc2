/**
 * Searches with more than one way to their rows, of which their statement takes one when it runs. Each of the ways
 * goes by the same indexes whatever is looked for, so one plan serves all values and PostgreSQL keeps it.
 */

import { isSteady } from '../tests/row-test.ts'
import type { Test } from '../tests/test.ts'
import { reachOf } from '../tests/test-scope.ts'
import { type Driver, datesDriver, matchesOf } from './driver.ts'
import type { Part, Query } from './query.ts'
import type { KeyStatistics } from './statistics.ts'

type Known = Pick<KeyStatistics, 'rowsOf' | 'matches' | 'startingWith'>

/** The driver with its numbers in steps, as each of them is a statement of its own; unchanged where plans differ. */
export function keptBy(statistics: Known, { query, driver }: Part): Driver {
  const { tests, order, typeNumbers, score } = query
  if (score !== undefined || typeNumbers.length > 1) return driver
  if (isDated(statistics, query) && (driver.kind === 'order' || driver.kind === 'walk')) {
    return { ...byDates(statistics, query), isKept: true }
  }
  if (!tests.every(isSteady)) return driver
  const has = (kind: Test['kind']) => tests.some((test) => test.kind === kind)
  const isByKeys = tests.every(({ kind }) => kind === 'keys')
  if (order.terms.length > 0) {
    const isSorted = driver.kind === 'keys' || driver.kind === 'walk' || driver.kind === 'order'
    return isByKeys && isSorted ? { ...driver, isKept: true } : driver
  }
  switch (driver.kind) {
    case 'ids':
      return has('date') && !isBesideDates(query) ? driver : { ...inSteps(driver), isKept: true }
    case 'join':
      return { ...driver, isKept: true }
    case 'walk':
      return has('join') && !has('date') ? { ...inSteps(driver), isKept: true } : driver
    case 'order':
      if (order.column === 'id') return driver
      return tests.length === 0 || order.column === 'd_lo' ? { ...driver, isKept: true } : driver
    default:
      return driver
  }
}

/**
 * True for dates with a lower bound, and beside them only tests on the row alone. Keys that are not those of
 * most rows may find fewer than the dates do.
 */
function isDated(statistics: Known, query: Query): boolean {
  const { tests, order } = query
  if (order.terms.length > 0 || order.column !== 'lu') return false
  const most = rowsOf(statistics, query) / 2
  const isApt = (test: Test) => {
    if (test.kind === 'date') return test.beginning !== undefined
    if (test.kind === 'keys') return matchesOf(statistics, test) >= most
    return reachOf(test) === 'row'
  }
  return tests.some(({ kind }) => kind === 'date') && tests.every(isApt)
}

/** A range of dates may be shorter than the ids are few; one of years is not, and is tested on each row. */
const LONG_MS = 2 * 365 * 86_400_000

/** Dates that find no rows beside ids. */
function isBesideDates({ tests, order }: Query): boolean {
  const spans = tests.flatMap((test) => (test.kind === 'date' ? [test.span] : []))
  const from = Math.max(...spans.map((span) => span?.[0] ?? -Infinity))
  const to = Math.min(...spans.map((span) => span?.[1] ?? Infinity))
  return order.column !== 'd_lo' && to - from >= LONG_MS
}

function byDates(statistics: Known, query: Query): Driver {
  return inSteps(datesDriver(rowsOf(statistics, query), query.limit + query.offset))
}

function rowsOf(statistics: Known, { project, typeNumbers }: Query): number {
  return typeNumbers.reduce((sum, number) => sum + statistics.rowsOf(project, number), 0)
}

function inSteps(driver: Driver): Driver {
  if (driver.kind === 'walk') return { ...driver, cap: step(driver.cap) }
  if (driver.kind === 'dates') return { ...driver, few: step(driver.few), cap: step(driver.cap) }
  if (driver.kind !== 'ids' || driver.few === undefined) return driver
  const [few, read, cap] = [driver.few, driver.read, driver.cap].map((one) => one && step(one))
  return { ...driver, few, read, cap }
}

/** The nearest power of two: what the numbers stand for has a flat optimum. */
function step(number: number): number {
  return 2 ** Math.round(Math.log2(Math.max(number, 1)))
}

/**
 * Key-first or order-first. Key-first fetches every row that holds the rarest key and sorts: 1.75 µs
 * a match. Order-first walks the B-tree of the order and tests each row: 0.42 µs a row. With N rows
 * of the type and a page of L, walking wins from about sqrt(0.25 · L · N) matches on; the wrong
 * choice costs a hundredfold. The statistics know nothing of correlation (a code that was not used
 * for years, sorted by date), so a walk goes as far as its other way would cost and falls back to that in the same
 * statement; where most rows match there is none that is quicker. docs/data-model.md lists what each way reads at most.
 */

import type { IdsTest, KeysTest, Matches, Test } from '../tests/test.ts'
import { reachOf } from '../tests/test-scope.ts'
import type { KeyStatistics } from './statistics.ts'

/** `isKept`: the plan of its statement is kept, as cached.ts explains. */
export type Driver = Way & { readonly isKept?: true }

type Way =
  /** Keys and other narrow tests first, then sort. */
  | { readonly kind: 'keys' }
  /**
   * Begin with the ids of a side table, at most `read` of them if given; where they are more than `few`, if
   * given, walk the order at most `cap` rows far.
   */
  | {
      readonly kind: 'ids'
      readonly few: number | undefined
      readonly read: number | undefined
      readonly cap: number | undefined
    }
  /** A reference narrows: its keys first when they are few, else the order's own index. */
  | { readonly kind: 'join' }
  /** Nothing narrows: the order's own index. */
  | { readonly kind: 'order' }
  /** By dates; where more than `few` rows are of them, walk the order at most `cap` rows far. */
  | { readonly kind: 'dates'; readonly few: number; readonly cap: number }
  /**
   * Walk the order at most `cap` rows far, testing keys, and joins where they are worth a walk. `isSure`: by the
   * statistics that fills the page with rows to spare, so the statement holds no other way. `isEndless`: no other way
   * is quicker than to walk on to the end.
   */
  | {
      readonly kind: 'walk'
      readonly cap: number
      readonly isSure?: true
      readonly isEndless?: boolean
    }
  /** There is one way only, after a walk of `cap` rows if given, or that walk alone, as single-way.ts explains. */
  | {
      readonly kind: 'settled'
      readonly cap?: number
      readonly isSure?: true
      readonly isEndless?: boolean
    }

const MIN_WALK = 2000
const MAX_WALK = 20_000
const MAX_IDS = 5000
/** To fetch and sort so many rows costs little more than to plan another way. */
const FEW_ROWS = 1000
/** Ids that are read for each that is few. Measured: 0.5 µs each; to look a row up in the side table takes 13 µs. */
const READ = 5
/** Rows walked in the time that it takes to fetch and sort one. */
const FETCH_COST = 4
/** Rows walked beyond what an even spread needs. */
const PATIENCE = 4
/** Rows walked for each that is wanted where nothing is known: a page of a key that one row in 20 holds. */
const UNKNOWN_PATIENCE = 20

/** `rows`: live rows of the type; `limit`: rows wanted, offset included. */
export function chooseDriver(
  statistics: Matches,
  tests: readonly Test[],
  rows: number,
  limit: number,
): Driver {
  const counts = tests.flatMap((test) => (test.kind === 'keys' ? matchesOf(statistics, test) : []))
  const fewest = Math.min(...counts)
  const isRare = fewest <= rareBelow(rows, limit)
  if (isRare || tests.some((test) => test.kind === 'narrow')) return { kind: 'keys' }
  const ids = tests.filter((test) => test.kind === 'ids')
  if (ids.length > 0) return idsDriver(statistics, ids, rows, limit)
  const joins = tests.filter((test) => test.kind === 'join')
  if (joins.length > 0) {
    const cap = Math.min(...joins.map(({ walk }) => walk?.rows(statistics) ?? 0))
    return cap === 0 ? { kind: 'join' } : { kind: 'walk', cap }
  }
  if (counts.length === 0) return { kind: 'order' }
  const isLight = tests.every((test) => reachOf(test) === 'row')
  return { kind: 'walk', ...walkOf(counts, rows, limit, isLight) }
}

/**
 * The walk for keys that are spread evenly. To walk all rows costs as much as to fetch and sort a quarter of them, so
 * it goes on to the end where more match, and else as far as it costs what all matches would. `isLight`: all tests
 * look at the row alone.
 */
function walkOf(counts: readonly number[], rows: number, limit: number, isLight: boolean) {
  const matches = counts.reduce((left, count) => (left * Math.min(count, rows)) / rows, rows)
  if (isLight && matches * FETCH_COST >= rows) return { cap: MAX_WALK, isEndless: true } as const
  const even = (limit * rows) / matches
  const cap = Math.max(PATIENCE * even, FETCH_COST * matches, MIN_WALK)
  return { cap: Math.round(Math.min(cap, MAX_WALK)) }
}

/**
 * The driver where nothing is known of the type's rows: a key may be rare or that of most rows. A short walk
 * first costs a rare one 8 µs for each row wanted; without it the page of a common one is a sort of all rows.
 */
export function unknownDriver(driver: Driver, tests: readonly Test[], limit: number): Driver {
  const isByKeys =
    tests.some(({ kind }) => kind === 'keys') &&
    tests.every((test) => test.kind === 'keys' || test.kind === 'date' || isPlain(test))
  const isFew = tests.some((test) => test.kind === 'keys' && test.isIdentifying)
  if (driver.kind !== 'keys' || !isByKeys || isFew) return driver
  return { kind: 'walk', cap: Math.min(UNKNOWN_PATIENCE * limit, MIN_WALK) }
}

function isPlain(test: Test): boolean {
  return test.kind === 'filter' && test.isCostly !== true
}

/** Matches up to which fetching and sorting all of them is faster than a walk in order. */
export function rareBelow(rows: number, limit: number): number {
  return Math.sqrt(0.25 * limit * rows)
}

/** Up to so many rows of the dates are fetched and sorted. */
export function datesDriver(rows: number, limit: number): Driver {
  const few = Math.round(Math.min(rareBelow(rows, limit), MAX_IDS))
  return { kind: 'dates', few, cap: Math.min(Math.max(2 * PATIENCE * few, MIN_WALK), MAX_WALK) }
}

/** As many ids as rows are walked for a page where so many match: neither way costs more. */
function idsDriver(
  statistics: Matches,
  ids: readonly IdsTest[],
  rows: number,
  limit: number,
): Driver {
  const few = Math.round(Math.min(Math.sqrt(limit * rows), MAX_IDS))
  if (rows > MAX_IDS) {
    const cap = Math.min(Math.max(PATIENCE * few, MIN_WALK), MAX_WALK)
    return { kind: 'ids', few, read: READ * few, cap }
  }
  // So few rows are read and walked to their end; a statement with one way only is planned in half the time.
  const isFew =
    rows <= FEW_ROWS ||
    ids.some(({ expected }) => expected !== undefined && expected(statistics) <= few)
  return { kind: 'ids', few: isFew ? undefined : few, read: undefined, cap: undefined }
}

/** Rows that hold one of the keys; 0 when all of them are rare. */
export function matchesOf(statistics: Matches, test: KeysTest): number {
  return test.any.reduce((sum, key) => sum + (statistics.matches(key) ?? 0), 0)
}

/** Rows of one type; `number` is the type's. */
interface Place {
  readonly project: number
  readonly number: number
}

/** The share of a type's rows that fulfil all tests, by the statistics of their keys; 0 without any. */
export function shareOf(
  statistics: KeyStatistics,
  { project, number }: Place,
  tests: readonly Test[],
): number {
  const rows = statistics.rowsOf(project, number)
  const holding = (test: KeysTest) => Math.min(1, matchesOf(statistics, test) / rows)
  const shares = tests.map((test) => {
    if (rows === 0) return 0
    if (test.kind === 'keys') return holding(test)
    if (test.kind === 'filter' && test.none !== undefined) return 1 - holding(test.none)
    return test.kind === 'join' ? (test.walk?.share?.(statistics) ?? 0) : 0
  })
  return shares.reduce((product, share) => product * share, 1)
}

/** The same driver, in fewer words where a policy's join alone makes it walk. */
export function sureDriver(
  statistics: KeyStatistics,
  place: Place,
  tests: readonly Test[],
  limit: number,
  driver: Driver,
): Driver {
  if (driver.kind !== 'walk' || !tests.some(({ kind }) => kind === 'join')) return driver
  const cap = Math.min(driver.cap, MIN_WALK)
  const walked = Math.min(cap, statistics.rowsOf(place.project, place.number))
  const found = shareOf(statistics, place, tests) * walked
  return found < PATIENCE * limit ? driver : { kind: 'walk', cap, isSure: true }
}

/** Compiled searches with their order, and estimates of their row counts. */
import type { Bind } from '../../postgres/statement.ts'
import type { KeyStatistics } from '../../store/index/statistics.ts'
import type { VersionRow } from '../../store/rows/rows.ts'
import type { KeysPredicate, Matches, Predicate } from './predicate.ts'
import type { Term } from './sort-terms.ts'

export interface Order {
  readonly column: 'lu' | 'd_lo' | 'id'
  readonly descending: boolean
  /** Order over several types: the type is the last tie-break, since two types may share an id. */
  readonly byType: boolean
  /** If not empty, sorts by these terms, then by id, ignoring `column`. */
  readonly terms: readonly Term[]
}

/** Last row of the previous page; `value` null is a row without a date. */
export interface Position {
  readonly value: string | null
  readonly values: readonly TermValue[]
  readonly id: string
  readonly type: number
  /** The page ends before this row instead of starting after it. */
  readonly isBackwards: boolean
}

export interface SortedRow extends VersionRow {
  readonly score?: number | null
  /** Infinite for the open end of a period. */
  readonly d_lo: Date | number | null
  /** `s0`, `s1`, …: values of the order's terms. */
  readonly [term: `s${number}`]: Date | number | string | null
}

/** JSON value; infinite numbers and times are strings. */
export type TermValue = string | number | null

export interface PlannedQuery {
  readonly query: Query
  readonly stats: PlannerStats
  readonly accessPath: AccessPath
}

export interface Query {
  readonly project: number
  /** Several types share predicates and order; keys are found first. */
  readonly typeNumbers: readonly number[]
  readonly predicates: readonly Predicate[]
  /** True when some predicates belong to a policy: statistics of all rows must not be revealed. */
  readonly hasPolicyTests?: boolean
  readonly order: Order
  readonly score?: ((project: string, bind: Bind) => string) | undefined
  readonly after: Position | undefined
  readonly limit: number
  readonly offset: number
}

export interface PlannerStats {
  readonly statistics: KeyStatistics
  /** Live rows of the types; a medium number if unknown. */
  readonly rows: number
  /** Rows wanted, including those before the page. */
  readonly limit: number
  /** False for a Project or type without ANALYZE data. */
  readonly isKnown: boolean
}

export interface AccessPath {
  readonly name: 'keys' | 'ids' | 'dates' | 'join' | 'walk'
  readonly fits: (query: Query) => boolean
  /** Expected number of rows to fetch; four walked rows count as one. */
  readonly cost: (query: Query, stats: PlannerStats) => number
  readonly sql: (planned: PlannedQuery, most: string, bind: Bind) => string
}

function estimateRows(statistics: KeyStatistics, { project, typeNumbers }: Query): number {
  return typeNumbers.reduce((sum, number) => sum + statistics.typeRows(project, number), 0)
}

export function toPlannerStats(statistics: KeyStatistics, query: Query): PlannerStats {
  const { project, typeNumbers, limit, offset } = query
  const isKnown = typeNumbers.every((number) => statistics.knows(project, number))
  return { statistics, rows: estimateRows(statistics, query), limit: limit + offset, isKnown }
}

/** Estimates the rows that hold one of the keys; 0 when all keys are rare. */
export function estimateMatches(statistics: Pick<Matches, 'matches'>, test: KeysPredicate): number {
  return test.any.reduce((sum, key) => sum + (statistics.matches(key) ?? 0), 0)
}

/** Number of matches below which fetching and sorting all of them is faster than walking in order. */
export function rareBelow(rows: number, limit: number): number {
  return Math.sqrt(0.25 * limit * rows)
}

/** Estimates the fraction of a type's rows that fulfil all predicates, from key statistics; 0 without any. */
export function estimateSelectivity(
  statistics: KeyStatistics,
  { project, number }: { readonly project: number; readonly number: number },
  predicates: readonly Predicate[],
): number {
  const rows = statistics.typeRows(project, number)
  const holding = (test: KeysPredicate) => Math.min(1, estimateMatches(statistics, test) / rows)
  const shares = predicates.map((predicate) => {
    if (rows === 0) return 0
    if (predicate.kind === 'keys') return holding(predicate)
    if (predicate.kind === 'filter' && predicate.none !== undefined)
      return 1 - holding(predicate.none)
    return predicate.kind === 'join' ? (predicate.walk?.share?.(statistics) ?? 0) : 0
  })
  return shares.reduce((product, share) => product * share, 1)
}

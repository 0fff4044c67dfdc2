/** A compiled search, the parts it is put together from, and how many rows they are expected to find. */
import type { Bind } from '../../postgres/statement.ts'
import type { KeyStatistics } from '../../store/index/statistics.ts'
import type { Order, Position } from './position.ts'
import type { KeysPredicate, Matches, Predicate } from './predicate.ts'

/** A type of a search, and how its rows are found. */
export interface PlannedQuery {
  readonly query: Query
  readonly stats: PlannerStats
  readonly accessPath: AccessPath
}

export interface Query {
  readonly project: number
  /** More than one: tests and order are the same for all of them, and keys are found first. */
  readonly typeNumbers: readonly number[]
  readonly predicates: readonly Predicate[]
  /** Some of the tests are a policy's: statistics of all rows must not be revealed. */
  readonly hasPolicyTests?: boolean
  readonly order: Order
  /** The score of a row of the page, where words are searched. */
  readonly score?: ((project: string, bind: Bind) => string) | undefined
  readonly after: Position | undefined
  readonly limit: number
  readonly offset: number
}

/** The numbers that a way is chosen by. */
export interface PlannerStats {
  readonly statistics: KeyStatistics
  /** Live rows of the types; a middling number where nobody knows. */
  readonly rows: number
  /** Rows wanted, those before the page included. */
  readonly limit: number
  /** False for a Project or type that no ANALYZE has seen. */
  readonly isKnown: boolean
}

/** A way from the tests of a search to its rows; access-paths.ts has all of them. */
export interface AccessPath {
  readonly name: 'keys' | 'ids' | 'dates' | 'join' | 'walk'
  readonly fits: (query: Query) => boolean
  /** Rows that it is expected to fetch; four that are walked past cost as much as one. */
  readonly cost: (query: Query, stats: PlannerStats) => number
  /** Rows in order, at most `most` of them. */
  readonly sql: (planned: PlannedQuery, most: string, bind: Bind) => string
}

/** The number of rows of a query's types. */
export function rowsOf(statistics: KeyStatistics, { project, typeNumbers }: Query): number {
  return typeNumbers.reduce((sum, number) => sum + statistics.typeRows(project, number), 0)
}

/** The numbers that the way of a query is chosen by. */
export function factsOf(statistics: KeyStatistics, query: Query): PlannerStats {
  const { project, typeNumbers, limit, offset } = query
  const isKnown = typeNumbers.every((number) => statistics.knows(project, number))
  return { statistics, rows: rowsOf(statistics, query), limit: limit + offset, isKnown }
}

/** Rows that hold one of the keys; 0 when all of them are rare. */
export function estimateMatches(statistics: Pick<Matches, 'matches'>, test: KeysPredicate): number {
  return test.any.reduce((sum, key) => sum + (statistics.matches(key) ?? 0), 0)
}

/**
 * Matches up to which it is faster to fetch and sort all of them than to walk in order: 1.75 µs a match and 0.42 µs a
 * row walked meet at the square root of a quarter of `rows` times `limit`.
 */
export function rareBelow(rows: number, limit: number): number {
  return Math.sqrt(0.25 * limit * rows)
}

/** The share of a type's rows that fulfil all tests, by the statistics of their keys; 0 without any. */
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

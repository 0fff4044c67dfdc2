/** How many rows of a type fulfil a test, by the statistics of keys. */
import type { KeysTest, Matches, Test } from '../tests/test.ts'
import type { KeyStatistics } from './statistics.ts'

/** Rows that hold one of the keys; 0 when all of them are rare. */
export function matchesOf(statistics: Pick<Matches, 'matches'>, test: KeysTest): number {
  return test.any.reduce((sum, key) => sum + (statistics.matches(key) ?? 0), 0)
}

/**
 * Matches up to which it is faster to fetch and sort all of them than to walk in order: 1.75 µs a match and 0.42 µs a
 * row walked meet at the square root of a quarter of `rows` times `limit`.
 */
export function rareBelow(rows: number, limit: number): number {
  return Math.sqrt(0.25 * limit * rows)
}

/** Rows of one type; `number` is the type's. */
/** The share of a type's rows that fulfil all tests, by the statistics of their keys; 0 without any. */
export function shareOf(
  statistics: KeyStatistics,
  { project, number }: { readonly project: number; readonly number: number },
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

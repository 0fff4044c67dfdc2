/** Totals: counted, or estimated from PostgreSQL statistics if everything is visible. */

import type { KeyStatistics } from '../../store/index/statistics.ts'
import type { StoreContext } from '../../store/rows/context.ts'
import { countNow } from '../../store/rows/counts.ts'
import { estimateMatches, factsOf, type Query, rowsOf } from '../predicates/query.ts'
import { countedStatement } from './page-statement.ts'

/** Estimated totals are counted exactly up to here. */
const EXACT_COUNT = 10_000
/** Under a policy, estimates are counted up to here: the statistics include invisible rows. */
const LIMITED_COUNT = 100_000
/** Above this number, accurate totals are estimated too. */
const MAX_COUNTED = 1_000_000

export async function countRows(
  { statistics, connection, counts }: StoreContext,
  queries: readonly Query[],
  total: 'estimate' | 'accurate',
): Promise<number> {
  if (queries.length === 0) return 0
  const guesses = queries.map((query) => estimateTotal(statistics, query))
  const estimate = Math.round(guesses.reduce((sum, guess) => sum + guess, 0))
  const isLimited = queries.some((query) => query.hasPolicyTests)
  const isCounted = total === 'accurate' && estimate <= MAX_COUNTED
  const most = total === 'accurate' ? MAX_COUNTED : LIMITED_COUNT
  const max = isCounted ? undefined : isLimited ? most : EXACT_COUNT + 1
  const counted = queries.map((query) => ({ query, facts: factsOf(statistics, query) }))
  const statement = countedStatement(counted, max)
  const count =
    counts === undefined
      ? (await countNow(connection, statement)).count
      : await counts.count(connection, statement)
  return isCounted || isLimited || count <= EXACT_COUNT ? count : Math.max(count, estimate)
}

/** Estimates by the rarest key; without statistics, keys are ignored. */
function estimateTotal(statistics: KeyStatistics, query: Query): number {
  const { rare } = statistics
  const all = rowsOf(statistics, query)
  if (rare === undefined) return all
  const matches = query.predicates.flatMap((predicate) =>
    predicate.kind === 'keys'
      ? Math.max(estimateMatches(statistics, predicate), rare * predicate.any.length)
      : [],
  )
  return Math.min(all, ...matches)
}

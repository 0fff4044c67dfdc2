/**
 * Common keys within a range of the main date: a statistic of both does not exist, so the statement counts the range in
 * its index, up to the rows of the keys, and reads the side that holds fewer.
 */
import type { Bind } from '../../postgres/statement.ts'
import { type KeysPredicate, predicateSql } from '../predicates/predicate.ts'
import { estimateMatches, type PlannerStats, type Query } from '../predicates/query.ts'
import { type IndexScan, indexScan } from '../predicates/scan-sql.ts'
import { WALKED, walkSql } from '../predicates/walk-sql.ts'
import { has, isOne } from './bounds.ts'

/** True when an index of dates narrows the matches. */
export function isInRange({ predicates }: Query): boolean {
  return predicates.some((predicate) => predicate.kind === 'date' && predicate.within !== undefined)
}

/** Returns the query in the order of its dates, from the start of the range. */
export function alongDates(query: Query) {
  return { ...query, order: { column: 'd_lo', descending: false }, after: undefined } as const
}

/** Returns the scan of the smaller side; without a range or common keys, that of the keys. */
export function scanRangeOrKeys(
  query: Query,
  { statistics, isKnown }: PlannerStats,
  bind: Bind,
): IndexScan {
  const held = query.predicates.filter((predicate) => predicate.kind === 'keys')
  const matches = rarest(held, statistics)
  const isEither = isKnown && isOne(query) && isInRange(query) && !has(query, 'narrow')
  const byKeys = indexScan(query, bind)
  if (!isEither || matches === 0) return byKeys
  const most = bind(matches, 'int')
  const inRange = (end?: string) => walkSql(alongDates(query), end, bind)
  const tested = held.map((predicate) => predicateSql(predicate, bind, true))
  const isRange = '(select is_range from b)'
  const from = `(with b as materialized (
      select count(*) <= ${most} as is_range from (${inRange(`${most} + 1`)}) r)
    select ${WALKED} from (${inRange()}) r where ${[isRange, ...tested].join(' and ')}
    union all
    select ${WALKED} from resource r where ${[`not ${isRange}`, ...byKeys.conditions].join(' and ')}) r`
  return { from, conditions: [], others: byKeys.others }
}

/** Returns the rows of the rarest keys; 0 without any, or if some are too rare for statistics. */
function rarest(held: readonly KeysPredicate[], statistics: PlannerStats['statistics']): number {
  if (held.length === 0) return 0
  return Math.round(Math.min(...held.map((predicate) => estimateMatches(statistics, predicate))))
}

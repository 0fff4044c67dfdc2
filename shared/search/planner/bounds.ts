/** Costs and bounds that the access paths share. */
import type { Predicate } from '../predicates/predicate.ts'
import { estimateMatches, type PlannerStats, type Query, rareBelow } from '../predicates/query.ts'

export const MIN_WALK = 2000
export const MAX_WALK = 20_000
/** Rows walked in the time of fetching and sorting one. */
export const FETCH_COST = 4
/** Looking up a key, and a row found by it, in rows walked in the time. */
export const KEY_COST = 11
export const FOUND_COST = 3

export const isOne = ({ typeNumbers }: Query) => typeNumbers.length === 1
export const has = ({ predicates }: Query, ...kinds: readonly Predicate['kind'][]) =>
  predicates.some(({ kind }) => kinds.includes(kind))
/** A path that counts first avoids both common keys and endless walks. */
export const counted = (_query: Query, { rows, limit }: PlannerStats) =>
  Math.min(rareBelow(rows, limit) + 1, rows / FETCH_COST)

export function estimateAllMatches(
  predicates: readonly Predicate[],
  { statistics, rows, limit, isKnown }: PlannerStats,
): number {
  const held = predicates.filter((predicate) => predicate.kind === 'keys')
  if (held.length > 0 && !isKnown) return limit
  return held.reduce(
    (left, test) => left * Math.min(estimateMatches(statistics, test) / rows, 1),
    rows,
  )
}

/** If more `matches` are to be fetched after it, a longer walk is still a small part of the cost. */
export function clamped(cap: number, matches = 0): number {
  return Math.round(Math.min(Math.max(cap, MIN_WALK), Math.max(MAX_WALK, matches)))
}

/**
 * The SQL of totals. Rows are counted in indexes alone where their conditions allow it. Where a chain or `_has` has many
 * matches in a large type, the rows of a sample of its keys are counted; keys are hashes, so any of them are a sample.
 */
import type { Bind } from '../../postgres/statement.ts'
import {
  type JoinPredicate,
  type KeysPredicate,
  oneRowSql,
  type Predicate,
  predicateReadScope,
} from '../predicates/predicate.ts'
import { estimateMatches, type PlannerStats, type Query, rareBelow } from '../predicates/query.ts'
import { byIds, type IndexScan, idsSql, indexScan, testedSql } from '../predicates/scan-sql.ts'
import { intersectRanges, walkSql } from '../predicates/walk-sql.ts'
import { keys } from './access-paths.ts'
import { FOUND_COST, has, isOne, KEY_COST, MIN_WALK } from './bounds.ts'
import { joinedRows } from './join-path.ts'
import { scanRangeOrKeys } from './range-or-keys.ts'

/** More keys are 400 too-costly, as on a page, where fewer are enough. */
const MAX_COUNTED_KEYS = 200_000
const LEAST_SAMPLE = 100

/**
 * Selects the number of rows that match, and true if it is an estimate. For `:not` alone, all rows less the others: an
 * index holds only these. `work`: see CountLimits.
 */
export function countSql(query: Query, stats: PlannerStats, work: number, bind: Bind): string {
  const count = (predicates: readonly Predicate[]) =>
    `(select count(*) from (${countedSql({ ...query, predicates }, stats, bind)}) r)`
  const held = excludedKeys(query, stats)
  if (held !== undefined) return `select ${count([])} - ${count([held])}, false`
  const first = sampledJoin(query)
  if (first !== undefined) return joinCountSql(query, first, { stats, work }, bind)
  return `select ${count(query.predicates)}, false`
}

/** Returns the join whose keys find the rows to count, if the other conditions are read from these rows alone. */
export function sampledJoin(query: Query): JoinPredicate | undefined {
  const [first, another] = query.predicates.filter((predicate) => predicate.kind === 'join')
  if (first?.fanOut === undefined || another !== undefined || !isOne(query)) return undefined
  const others = query.predicates.filter((predicate) => predicate !== first)
  const isLight = (predicate: Predicate) =>
    predicate.kind !== 'keys' && predicateReadScope(predicate) === 'row'
  return others.every(isLight) && !has(query, 'narrow') ? first : undefined
}

/** Looks up the rows of each key, or walks all rows, whichever is less; if both are too much, counts for a sample of the keys. */
function joinCountSql(
  query: Query,
  first: JoinPredicate,
  { stats, work }: { readonly stats: PlannerStats; readonly work: number },
  bind: Bind,
): string {
  const { rows, statistics } = stats
  const cost = KEY_COST + FOUND_COST * (first.fanOut?.(statistics).matchingRows(rows) ?? 1)
  const sample = Math.max(LEAST_SAMPLE, Math.floor(work / cost))
  const isWalked = rows <= Math.max(work, sample * cost)
  const mostKeys = bind(isWalked ? Math.ceil(rows / cost) : sample, 'int')
  const matching = joinedRows(query, first, { columns: 'r.id', most: undefined, mostKeys }, bind)
  const keys = first.keys(bind, MAX_COUNTED_KEYS)
  if (isWalked) {
    return `with j as materialized (select ${keys} as k)
      select (select count(*) from (${matching}) r), false`
  }
  return `with a as materialized (select ${keys} as k),
    j as materialized (select k[1:${mostKeys}] as k from a)
    select case when cardinality(a.k) <= ${mostKeys} then c.n
      else greatest(c.n, least(round(c.n * cardinality(a.k) / ${mostKeys}::numeric), ${bind(Math.round(rows), 'int')})) end,
      cardinality(a.k) > ${mostKeys}
    from a cross join (select count(*) as n from (${matching}) r) c`
}

/** Undefined unless this is the only condition and at most half of the rows hold the keys. */
function excludedKeys(
  { predicates }: Query,
  { statistics, rows, isKnown }: PlannerStats,
): KeysPredicate | undefined {
  const [only, another] = predicates
  if (only?.kind !== 'filter' || only.none === undefined || another !== undefined) return undefined
  return isKnown && estimateMatches(statistics, only.none) <= rows / 2 ? only.none : undefined
}

/** Selects the rows to count, or a column of them. With rare keys, the other tests run per row. */
export function countedSql(query: Query, stats: PlannerStats, bind: Bind, column = '1'): string {
  const { predicates } = query
  const rows = (found: IndexScan, testSql: typeof testedSql) =>
    rowsSql(found, testSql, bind, column)
  if (has(query, 'keys', 'narrow')) {
    const isFew = keys.cost(query, stats) <= rareBelow(stats.rows, MIN_WALK)
    if (isFew) return rows(indexScan(query, bind), oneRowSql)
    return manyRowsSql(query, scanRangeOrKeys(query, stats, bind), bind, column)
  }
  const ids = predicates.filter((predicate) => predicate.kind === 'ids')
  if (ids.length > 0) {
    const others = predicates.filter(({ kind }) => kind !== 'ids')
    return rows(byIds({ ...query, predicates: others }, stats, idsSql(ids, bind), bind), testedSql)
  }
  const first = predicates.find((predicate) => predicate.kind === 'join')
  if (first !== undefined && isOne(query)) {
    return `with j as materialized (select ${first.keys(bind)} as k)
      select ${column} from (${joinedRows(query, first, { columns: 'r.id', most: undefined }, bind)}) r`
  }
  const bounded = (['d_lo', 'lu'] as const).find(
    (one) => intersectRanges(predicates, one).isBounded,
  )
  const start = bounded ?? 'id'
  const order = { column: start, descending: false } as const
  const from = `(${walkSql({ ...query, order, after: undefined }, undefined, bind)}) r`
  return rows({ from, conditions: [], others: predicates }, testedSql)
}

function manyRowsSql(query: Query, found: IndexScan, bind: Bind, column: string): string {
  const others = found.others.flatMap(
    (predicate) => (predicate.kind === 'filter' && predicate.of) || [predicate],
  )
  const joins = others.filter(
    (predicate) => predicate.kind === 'join' && !query.predicates.includes(predicate),
  )
  const names = new Map(joins.map((predicate, i) => [predicate, `j${i}`]))
  const named = joins.flatMap((predicate) => {
    if (predicate.kind !== 'join') return []
    return `${names.get(predicate)} as materialized (select ${predicate.keys(bind)} as k)`
  })
  const tested = (predicate: Predicate) => {
    const name = names.get(predicate)
    const isNamed = predicate.kind === 'join' && name !== undefined
    return isNamed ? predicate.check(`(select k from ${name})`, true) : testedSql(predicate, bind)
  }
  const first = named.length === 0 ? '' : `with ${named.join(', ')} `
  return `${first}${rowsSql({ ...found, others }, tested, bind, column)}`
}

function rowsSql(
  { from, conditions, others }: IndexScan,
  testSql: (predicate: Predicate, bind: Bind) => string,
  bind: Bind,
  column: string,
): string {
  const tested = others.map((predicate) => `(${testSql(predicate, bind)}) is true`)
  return `select ${column} from ${from} where ${[...conditions, ...tested].join(' and ') || 'true'}`
}

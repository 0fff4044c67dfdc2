/**
 * Chooses how a search finds its rows. If only the rows can show the cost, the statement counts them first, up to a
 * bound: a wrong estimate costs no more than the bounded walk. Bounds of reads: docs/data-model.md.
 */
import type { Bind } from '../../postgres/statement.ts'
import {
  hasStablePlan,
  type IdsPredicate,
  type Predicate,
  predicateReadScope,
  probeSql,
  type TimeRange,
} from '../predicates/predicate.ts'
import {
  type AccessPath,
  estimateMatches,
  estimateSelectivity,
  type PlannedQuery,
  type PlannerStats,
  type Query,
  rareBelow,
} from '../predicates/query.ts'
import {
  byIds,
  idsSql,
  indexScan,
  indexScanSql,
  splitIndexJoin,
  testedSql,
  type Walk,
  walkThenFallbackSql,
  walkToEndSql,
} from '../predicates/scan-sql.ts'
import { walkSql } from '../predicates/walk-sql.ts'
import {
  clamped,
  counted,
  estimateAllMatches,
  FETCH_COST,
  has,
  isOne,
  MAX_WALK,
  MIN_WALK,
} from './bounds.ts'
import { join } from './join-path.ts'
import { alongDates, isInRange, scanRangeOrKeys } from './range-or-keys.ts'

const MAX_IDS = 5000
/** Types with fewer rows are read to the end; a single-path statement runs faster. */
const FEW_ROWS = 2000
const RARE_IDS = 100
/** Ids read per row that counts as few: a side table lookup is much more expensive than a read. */
const READ = 10
const PATIENCE = 4
/** Rows walked per wanted row without statistics: fills a page of a key that one row in 20 holds. */
const UNKNOWN_PATIENCE = 20
/**
 * Returns the cheapest applicable path:
 *
 * | path | begins with | then |
 * |---|---|---|
 * | keys | the rarest key in the GIN index, or given ids | fetch and sort its rows |
 * | ids | names, numbers or quantities in a side table | few: fetch and sort; many: walk, then fetch |
 * | dates | the main date, in another order | like ids |
 * | join | the keys from a chain, `_has` or a dictionary | like ids |
 * | walk | the order's own index, testing each row | if a key may be rare: its rows, otherwise walk to the end |
 */
export function chooseAccessPath(asked: Query, stats: PlannerStats): PlannedQuery {
  const predicates = asked.predicates.map((predicate) =>
    predicate.kind === 'join' && predicate.withStatistics !== undefined
      ? predicate.withStatistics(stats.statistics)
      : predicate,
  )
  const query = { ...asked, predicates }
  const fitting = ACCESS_PATHS.filter(({ fits }) => fits(query))
  const costs = fitting.map((accessPath) => accessPath.cost(query, stats))
  const accessPath = fitting[costs.indexOf(Math.min(...costs))] ?? keys
  return { query, stats, accessPath }
}

export function isPlannedOnce({ predicates, order, score }: Query): boolean {
  if (score !== undefined) return false
  if (order.terms.length > 0) return predicates.every(({ kind }) => kind === 'keys')
  return predicates.every(hasStablePlan)
}

export const keys: AccessPath = {
  name: 'keys',
  fits: (query) => !isOne(query) || has(query, 'keys', 'narrow'),
  cost: ({ predicates }, stats) => {
    if (predicates.some(({ kind }) => kind === 'narrow')) return 0
    return Math.min(...predicates.map((predicate) => foundBy(predicate, stats)))
  },
  sql: ({ query }, most, bind) => indexScanSql(query, indexScan(query, bind), most, bind),
}

/** Rows found by the keys of a predicate. Without statistics, any key may match most rows. */
function foundBy(predicate: Predicate, { statistics, isKnown }: PlannerStats): number {
  if (predicate.kind !== 'keys') return Infinity
  return isKnown || predicate.isIdentifying ? estimateMatches(statistics, predicate) : Infinity
}

const ids: AccessPath = {
  name: 'ids',
  fits: (query) => isOne(query) && has(query, 'ids'),
  cost: counted,
  sql: ({ query, stats }, most, bind) => {
    const { rows, limit, isKnown, statistics } = stats
    const all = query.predicates.filter((predicate) => predicate.kind === 'ids')
    const [first] = all
    if (first === undefined) throw new Error('There is no test on a side table')
    const isRare = ({ expected }: IdsPredicate) => (expected?.(statistics) ?? Infinity) <= RARE_IDS
    if (isKnown && (rows <= FEW_ROWS || all.some(isRare))) {
      const others = query.predicates.filter(({ kind }) => kind !== 'ids')
      return indexScanSql(
        query,
        byIds({ ...query, predicates: others }, stats, idsSql(all, bind), bind),
        most,
        bind,
      )
    }
    const few = Math.round(Math.min(rareBelow(rows, limit), MAX_IDS))
    const isFew = `(select n from c) <= ${bind(few, 'int')}`
    const isAll = `(select n from c) <= ${bind(READ * few, 'int')}`
    const among = (ids: string) => (predicate: Predicate) =>
      predicate === first ? `(r.id in (select id from ${ids})) is true` : testedSql(predicate, bind)
    const looked = `case when ${isAll} then ${among('f')(first)} else ${probeSql(first, bind)} end`
    const rest = {
      ...query,
      predicates: query.predicates.filter((predicate) => predicate !== first),
    }
    const isMany = `(select count(*) from k) > ${bind(Math.round(rows / FETCH_COST), 'int')}`
    const found = byIds(rest, stats, `select id from k where not (${isMany})`, bind)
    return walkThenFallbackSql(query, most, bind, {
      with: [
        `f(id) as materialized (select x.id from (${first.ids(bind)}) x(id) limit ${bind(READ * few + 1, 'int')})`,
        'c as materialized (select count(*) as n from f)',
        `k(id) as materialized (select id from f where ${isFew} union all
          select x.id from (${first.ids(bind)}) x(id) where not (${isFew}))`,
      ],
      walk: {
        when: `not (${isFew})`,
        cap: clamped(2 * PATIENCE * few),
        tested: query.predicates.map((predicate) =>
          predicate === first ? looked : testedSql(predicate, bind),
        ),
      },
      rest: `select * from (${indexScanSql(query, found, most, bind)}) a union all
        select * from (${walkToEndSql(query, [isMany, ...query.predicates.map(among('k'))], most, bind)}) b`,
    })
  },
}

const dates: AccessPath = {
  name: 'dates',
  fits: ({ predicates, order, typeNumbers }) =>
    typeNumbers.length === 1 &&
    order.terms.length === 0 &&
    order.column !== 'd_lo' &&
    predicates.some(({ kind }) => kind === 'date') &&
    predicates.every((predicate) => predicate.kind !== 'date' || beginsInRange(predicate.within)),
  cost: counted,
  sql: ({ query, stats: { rows, limit } }, most, bind) => {
    const few = Math.round(Math.min(rareBelow(rows, limit), MAX_IDS))
    const along = (end: string | undefined) => walkSql(alongDates(query), end, bind)
    const from = `(${along(undefined)}) r`
    return walkThenFallbackSql(query, most, bind, {
      with: [`c as materialized (select count(*) as n from (${along(bind(few + 1, 'int'))}) b)`],
      walk: {
        when: `(select n from c) > ${bind(few, 'int')}`,
        cap: clamped(2 * PATIENCE * few),
        tested: query.predicates.map((predicate) => testedSql(predicate, bind)),
      },
      rest: indexScanSql(query, { from, conditions: [], others: query.predicates }, most, bind),
    })
  },
}

/** False where open periods, of which there may be many, begin before the range. */
function beginsInRange(within: TimeRange | undefined): boolean {
  return within !== undefined && (within.long === undefined || within.long.since > -Infinity)
}

const walk: AccessPath = {
  name: 'walk',
  fits: isOne,
  cost: (query, stats) => {
    const isOpen = has(query, 'ids', 'join') || dates.fits(query)
    const { rows, limit } = stats
    const matches = isOpen ? limit : estimateAllMatches(query.predicates, stats)
    return (limit * rows) / Math.max(matches, limit) / FETCH_COST
  },
  sql: ({ query, stats }, most, bind) => {
    const { rows, limit, isKnown } = stats
    const matches = estimateAllMatches(query.predicates, stats)
    const isLight = query.predicates.every((predicate) => predicateReadScope(predicate) === 'row')
    const isForMost = isKnown && isLight && matches * FETCH_COST >= rows
    if (isForMost || !has(query, 'keys')) {
      const tested = query.predicates.map((predicate) => testedSql(predicate, bind))
      return walkToEndSql(query, tested, most, bind)
    }
    const even = (limit * rows) / Math.max(matches, 1)
    const cap = isKnown
      ? clamped(Math.max(PATIENCE * even, FETCH_COST * matches), matches)
      : Math.min(UNKNOWN_PATIENCE * limit, MIN_WALK)
    const planned = planWalk(query, stats, cap, bind)
    const counting = cap > MAX_WALK ? countRange(query, bind) : undefined
    return walkThenFallbackSql(query, most, bind, {
      with: counting === undefined ? [] : [counting.sql],
      walk: { ...planned, when: counting?.isMany },
      rest: indexScanSql(query, scanRangeOrKeys(query, stats, bind), most, bind),
    })
  },
}

/** Counts the rows in a range of dates: few of them are fetched in less time than a long walk takes. */
function countRange(
  query: Query,
  bind: Bind,
): { readonly sql: string; readonly isMany: string } | undefined {
  if (query.order.column === 'd_lo' || !isInRange(query)) return undefined
  const few = bind(MAX_WALK / FETCH_COST, 'int')
  const inRange = walkSql(alongDates(query), `${few} + 1`, bind)
  return {
    sql: `c as materialized (select count(*) as n from (${inRange}) b)`,
    isMany: `(select n from c) > ${few}`,
  }
}

/** Plans a walk; splits combined policy predicates to probe each row where that is likely to fill the page. */
function planWalk(
  query: Query,
  { statistics, rows, limit }: PlannerStats,
  cap: number,
  bind: Bind,
): Walk {
  const { project, typeNumbers, predicates } = query
  const each = predicates.flatMap(
    (predicate) => (predicate.kind === 'filter' && predicate.of) || [predicate],
  )
  const place = { project, number: typeNumbers[0] ?? 0 }
  const near = Math.min(cap, MIN_WALK)
  const isSure =
    has({ ...query, predicates: each }, 'join') &&
    estimateSelectivity(statistics, place, each) * Math.min(near, rows) >= PATIENCE * limit
  return isSure
    ? { cap: near, ...splitIndexJoin(each, query, bind) }
    : { cap, ...splitIndexJoin(predicates, query, bind) }
}

export const ACCESS_PATHS: readonly AccessPath[] = [keys, ids, dates, join, walk]

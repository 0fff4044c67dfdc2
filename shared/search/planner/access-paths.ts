/**
 * Chooses how a search finds its rows. If only the rows can show the cost, the statement counts them first, up to a
 * bound: a wrong estimate costs no more than the bounded walk. Bounds of reads: docs/data-model.md.
 */
import type { Bind } from '../../postgres/statement.ts'
import { afterSql, orderSql } from '../predicates/order.ts'
import {
  type FanOut,
  hasStablePlan,
  heldRows,
  type IdsPredicate,
  type JoinPredicate,
  oneRowSql,
  type Predicate,
  predicateReadScope,
  probeSql,
  scopeSql,
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
  COLUMNS,
  type IndexScan,
  idsSql,
  indexScan,
  indexScanSql,
  intersectRanges,
  splitIndexJoin,
  testedSql,
  type Walk,
  walkedOn,
  walkSql,
  walkThenFallbackSql,
} from '../predicates/scan-sql.ts'

const MIN_WALK = 2000
const MAX_WALK = 20_000
const MAX_IDS = 5000
/** Types with fewer rows are read to the end; a single-path statement runs faster. */
const FEW_ROWS = 2000
const RARE_IDS = 100
/** Ids read per row that counts as few: a side table lookup is much more expensive than a read. */
const READ = 10
/** Rows walked in the time of fetching and sorting one. */
const FETCH_COST = 4
const PATIENCE = 4
/** Rows walked per wanted row without statistics: fills a page of a key that one row in 20 holds. */
const UNKNOWN_PATIENCE = 20
const FEW_KEYS = 200

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

const isOne = ({ typeNumbers }: Query) => typeNumbers.length === 1
const has = ({ predicates }: Query, ...kinds: readonly Predicate['kind'][]) =>
  predicates.some(({ kind }) => kinds.includes(kind))
/** A path that counts first avoids both common keys and endless walks. */
const counted = (_query: Query, { rows, limit }: PlannerStats) =>
  Math.min(rareBelow(rows, limit) + 1, rows / FETCH_COST)

const keys: AccessPath = {
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
        select * from (${walkedOn(query, [isMany, ...query.predicates.map(among('k'))], most, bind)}) b`,
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
    predicates.every((predicate) => predicate.kind !== 'date' || predicate.begins !== undefined),
  cost: counted,
  sql: ({ query, stats: { rows, limit } }, most, bind) => {
    const few = Math.round(Math.min(rareBelow(rows, limit), MAX_IDS))
    const along = (predicates: readonly Predicate[], end: string | undefined) => {
      const order = { column: 'd_lo', descending: false } as const
      return walkSql({ ...query, predicates, order, after: undefined }, end, bind)
    }
    const predicates = query.predicates.map((predicate) =>
      predicate.kind === 'date' && predicate.begins !== undefined
        ? { ...predicate, within: predicate.begins }
        : predicate,
    )
    const from = `(${along(query.predicates, undefined)}) r`
    return walkThenFallbackSql(query, most, bind, {
      with: [
        `c as materialized (select count(*) as n from (${along(predicates, bind(few + 1, 'int'))}) b)`,
      ],
      walk: {
        when: `(select n from c) > ${bind(few, 'int')}`,
        cap: clamped(2 * PATIENCE * few),
        tested: query.predicates.map((predicate) => testedSql(predicate, bind)),
      },
      rest: indexScanSql(query, { from, conditions: [], others: query.predicates }, most, bind),
    })
  },
}

const join: AccessPath = {
  name: 'join',
  fits: (query) => isOne(query) && has(query, 'join'),
  cost: counted,
  sql: ({ query, stats }, most, bind) => {
    const found = query.predicates.filter((predicate) => predicate.kind === 'join')
    // A join that suits a walk comes last: most rows hold its keys.
    const joins = found.toSorted(
      (a, b) => Number(a.walk !== undefined) - Number(b.walk !== undefined),
    )
    const [first] = joins
    if (first === undefined) throw new Error('There is nothing to join')
    return walkThenFallbackSql(query, most, bind, {
      with: [`j as materialized (select ${first.keys(bind)} as k)`],
      walk: joinWalk(query, joins, stats, bind),
      rest: joinedSql(query, first, most, bind),
    })
  },
}

const FOUND = '(select k from j)'
function joinWalk(
  query: Query,
  joins: readonly JoinPredicate[],
  stats: PlannerStats,
  bind: Bind,
): Walk | undefined {
  const { statistics } = stats
  const [first] = joins
  const tested = (predicate: Predicate) =>
    predicate === first ? first.check(FOUND, true) : testedSql(predicate, bind)
  const cap = Math.min(...joins.map(({ walk }) => walk?.rows(statistics) ?? 0))
  if (cap > 0) return { cap, ...splitIndexJoin(query.predicates, query, bind) }
  const many = first?.fanOut?.(statistics)
  if (many === undefined) return undefined
  if (many.walk !== undefined) {
    const when = many.walk.isMany(bind)
    return { cap: many.walk.rows, when, ...splitIndexJoin(query.predicates, query, bind) }
  }
  const few = fewKeys(query, many, stats)
  if (few >= FEW_KEYS) return undefined
  const isMany = `cardinality(${FOUND}) > ${bind(few, 'int')}`
  return { cap: MIN_WALK, when: isMany, tested: query.predicates.map(tested) }
}

export function fewKeys(query: Query, many: FanOut, stats: PlannerStats): number {
  const { rows, limit } = stats
  const share = estimateAllMatches(query.predicates, stats) / Math.max(rows, 1)
  return Math.ceil(rareBelow(rows, limit) / many.matchingRows(rows) / share)
}

function joinedSql(query: Query, first: JoinPredicate, most: string, bind: Bind): string {
  return `select * from (${joinedRows(query, first, { columns: COLUMNS, most }, bind)}) r
    order by ${orderSql(query.order, 'r')} limit ${most}`
}

type Rows = { readonly columns: string; readonly most: string | undefined }

/** Finds rows by the join keys if there are few, otherwise in order. A row may hold several of the keys. */
function joinedRows(query: Query, first: JoinPredicate, { columns, most }: Rows, bind: Bind) {
  const { project, typeNumbers, order, after } = query
  const others = query.predicates.filter((predicate) => predicate !== first)
  const tested = others.map((predicate) => `(${oneRowSql(predicate, bind)}) is true`)
  const scope = scopeSql(project, typeNumbers, bind, true)
  const rest = after === undefined ? [] : [`(${afterSql(order, after, bind)}) is true`]
  const found = (overlap: string) =>
    `select ${columns} from resource r where ${[...scope, overlap, ...tested, ...rest].join(' and ')}`
  const looked = [
    first.check(FOUND, true),
    ...others.map((predicate) => testedSql(predicate, bind)),
  ]
  const { few, many } = heldRows(FOUND, found, walkedOn(query, looked, most, bind))
  return `select distinct * from (${few}) a union all select ${columns} from (${many}) r`
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
      return walkedOn(query, tested, most, bind)
    }
    const even = (limit * rows) / Math.max(matches, 1)
    const cap = isKnown
      ? clamped(Math.max(PATIENCE * even, FETCH_COST * matches))
      : Math.min(UNKNOWN_PATIENCE * limit, MIN_WALK)
    return walkThenFallbackSql(query, most, bind, {
      with: [],
      walk: planWalk(query, stats, cap, bind),
      rest: indexScanSql(query, indexScan(query, bind), most, bind),
    })
  },
}

function estimateAllMatches(
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

/** Selects the rows to count, or a column of them. With rare keys, the other tests run per row. */
export function countedSql(query: Query, stats: PlannerStats, bind: Bind, column = '1'): string {
  const { predicates } = query
  const rows = (found: IndexScan, testSql: typeof testedSql) =>
    rowsSql(found, testSql, bind, column)
  if (has(query, 'keys', 'narrow')) {
    const isFew = keys.cost(query, stats) <= rareBelow(stats.rows, MIN_WALK)
    return isFew ? rows(indexScan(query, bind), oneRowSql) : manyRowsSql(query, bind, column)
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
  const start = intersectRanges(predicates, 'd_lo').isBounded ? 'd_lo' : 'id'
  const order = { column: start, descending: false } as const
  const from = `(${walkSql({ ...query, order, after: undefined }, undefined, bind)}) r`
  return rows({ from, conditions: [], others: predicates }, testedSql)
}

function manyRowsSql(query: Query, bind: Bind, column: string): string {
  const found = indexScan(query, bind)
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

export const ACCESS_PATHS: readonly AccessPath[] = [keys, ids, dates, join, walk]

function clamped(cap: number): number {
  return Math.round(Math.min(Math.max(cap, MIN_WALK), MAX_WALK))
}

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
  idsSql,
  indexScan,
  indexScanSql,
  KEY_COLUMNS,
  splitIndexJoin,
  testedSql,
  type Walk,
  walkedOn,
  walkSql,
  walkThenFallbackSql,
} from '../predicates/scan-sql.ts'

export const MIN_WALK = 2000
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
/** With fewer matching targets, their keys are read at once. */
const MIN_PROBED = 1000
/** Matches need not be spread evenly along the walk. */
const SPREAD = 2

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

export const isOne = ({ typeNumbers }: Query) => typeNumbers.length === 1
export const has = ({ predicates }: Query, ...kinds: readonly Predicate['kind'][]) =>
  predicates.some(({ kind }) => kinds.includes(kind))
/** A path that counts first avoids both common keys and endless walks. */
const counted = (_query: Query, { rows, limit }: PlannerStats) =>
  Math.min(rareBelow(rows, limit) + 1, rows / FETCH_COST)

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
    const probing = planProbes(query, first, stats)
    return walkThenFallbackSql(query, most, bind, {
      with: [
        `j as materialized (select ${first.keys(bind)} as k)`,
        ...(probing ? [`m as materialized (select ${probing.isMany(bind)} as is_many)`] : []),
      ],
      walk: joinWalk(query, joins, stats, bind),
      rest: joinedSql(query, first, most, bind),
    })
  },
}

const FOUND = '(select k from j)'
const PROBED = '(select is_many from m)'

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
  const isMany = few < FEW_KEYS ? `cardinality(${FOUND}) > ${bind(few, 'int')}` : 'false'
  const probing = first && planProbes(query, first, stats)
  if (probing === undefined) {
    if (few >= FEW_KEYS) return undefined
    return { cap: MIN_WALK, when: isMany, tested: query.predicates.map(tested) }
  }
  const probed = (predicate: Predicate) =>
    predicate === first
      ? `case when ${PROBED} then ${probing.test(bind)} else ${tested(predicate)} end`
      : tested(predicate)
  return {
    cap: probing.cap,
    when: `(${PROBED} or ${isMany})`,
    tested: query.predicates.map(probed),
  }
}

/** Undefined unless a walk fills the page when enough targets of the chain match. */
function planProbes(query: Query, first: JoinPredicate, stats: PlannerStats) {
  const { limit, statistics } = stats
  const probes = first.fanOut?.(statistics).probes
  if (probes === undefined) return undefined
  const share = matchingShare(query, stats)
  const cap = clamped(MIN_WALK / share)
  const matches = Math.max(MIN_PROBED, (probes.targets * limit * SPREAD) / (cap * share))
  if (matches > probes.targets) return undefined
  return { cap, test: probes.test, isMany: probes.isMany(Math.round(matches)) }
}

export function fewKeys(query: Query, many: FanOut, stats: PlannerStats): number {
  const { rows, limit } = stats
  return Math.ceil(rareBelow(rows, limit) / many.matchingRows(rows) / matchingShare(query, stats))
}

function matchingShare({ predicates }: Query, stats: PlannerStats): number {
  return estimateAllMatches(predicates, stats) / Math.max(stats.rows, 1)
}

function joinedSql(query: Query, first: JoinPredicate, most: string, bind: Bind): string {
  return `select * from (${joinedRows(query, first, { columns: KEY_COLUMNS, most }, bind)}) r
    order by ${orderSql(query.order, 'r')} limit ${most}`
}

interface Rows {
  readonly columns: string
  readonly most: string | undefined
  /** More keys are tested on every row; by default so many that a page of a walk costs less. */
  readonly mostKeys?: string
}

/** Finds rows by the join keys if there are few, otherwise in order. A row may hold several of the keys. */
export function joinedRows(
  query: Query,
  first: JoinPredicate,
  { columns, most, mostKeys }: Rows,
  bind: Bind,
) {
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
  const { few, many } = heldRows(FOUND, found, walkedOn(query, looked, most, bind), mostKeys)
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
      ? clamped(Math.max(PATIENCE * even, FETCH_COST * matches), isInRange(query) ? 0 : matches)
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

export const ACCESS_PATHS: readonly AccessPath[] = [keys, ids, dates, join, walk]

/** True when an index of dates narrows the matches of the keys. */
function isInRange({ predicates }: Query): boolean {
  return predicates.some((predicate) => predicate.kind === 'date' && predicate.begins !== undefined)
}

/** If more `matches` are to be fetched after it, a longer walk is still a small part of the cost. */
function clamped(cap: number, matches = 0): number {
  return Math.round(Math.min(Math.max(cap, MIN_WALK), Math.max(MAX_WALK, matches)))
}

/** The access path of a chain, `_has` or a dictionary: finds rows by the keys of the other side. */
import type { Bind } from '../../postgres/statement.ts'
import { afterSql, orderSql } from '../predicates/order.ts'
import {
  type FanOut,
  heldRows,
  type JoinPredicate,
  oneRowSql,
  type Predicate,
  scopeSql,
} from '../predicates/predicate.ts'
import {
  type AccessPath,
  type PlannedQuery,
  type PlannerStats,
  type Query,
  rareBelow,
} from '../predicates/query.ts'
import {
  splitIndexJoin,
  testedSql,
  type Walk,
  walkThenFallbackSql,
  walkToEndSql,
} from '../predicates/scan-sql.ts'
import { KEY_COLUMNS } from '../predicates/walk-sql.ts'
import {
  clamped,
  counted,
  estimateAllMatches,
  FOUND_COST,
  has,
  isOne,
  KEY_COST,
  MIN_WALK,
} from './bounds.ts'

/** The rows of so many keys are looked up at once. */
const FEW_KEYS = 200
/** The rows of more keys are never looked up one by one. */
const MOST_KEYS = 5000
/** With fewer matching targets, their keys are read at once. */
const MIN_PROBED = 1000
/** Matches need not be spread evenly along the walk. */
const SPREAD = 2

export const join: AccessPath = {
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
      rest: joinedSql({ query, stats }, first, most, bind),
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

/** Returns the number of keys whose rows cost as much to look up as a walk that fills the page with them. */
export function keysLookedUp(query: Query, first: JoinPredicate, stats: PlannerStats): number {
  const { rows, limit, statistics } = stats
  const matching = first.fanOut?.(statistics).matchingRows(rows)
  if (matching === undefined) return FEW_KEYS
  const cost = KEY_COST + FOUND_COST * matching
  const even = Math.sqrt((limit * rows) / (matchingShare(query, stats) * matching * cost))
  return Math.round(Math.min(Math.max(even, FEW_KEYS), MOST_KEYS))
}

function joinedSql(
  { query, stats }: Pick<PlannedQuery, 'query' | 'stats'>,
  first: JoinPredicate,
  most: string,
  bind: Bind,
): string {
  const mostKeys = bind(keysLookedUp(query, first, stats), 'int')
  const rows = joinedRows(query, first, { columns: KEY_COLUMNS, most, mostKeys }, bind)
  return `select * from (${rows}) r
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
  const { few, many } = heldRows(FOUND, found, walkToEndSql(query, looked, most, bind), mostKeys)
  return `select distinct * from (${few}) a union all select ${columns} from (${many}) r`
}

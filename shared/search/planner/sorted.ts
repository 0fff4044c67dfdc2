/**
 * Pages sorted by values. If a side table or an index holds the first term in order, its index is walked from the page's
 * position, testing each row, up to a cap: rare matches are cheaper to find and sort. Rows without a value are in no
 * side table and form a separate run, last ascending, first descending.
 */
import type { Bind } from '../../postgres/statement.ts'
import { afterTermsSql, termOrderSql } from '../predicates/order.ts'
import {
  fewSql,
  foundBySql,
  isByKeys,
  type KeysPredicate,
  oneRowSql,
  type Predicate,
  predicateSql,
  scopeSql,
} from '../predicates/predicate.ts'
import type { Order } from '../predicates/query.ts'
import {
  estimateMatches,
  type PlannedQuery,
  type PlannerStats,
  type Query,
  rareBelow,
} from '../predicates/query.ts'
import { testedSql } from '../predicates/scan-sql.ts'
import type { Side, Term } from '../predicates/sort-terms.ts'
import { KEY_COLUMNS } from '../predicates/walk-sql.ts'
import { countedSql } from './counted.ts'

/** Side table rows walked per match at the point where sorting all matches costs the same. */
const PATIENCE = 4
/** Minimum walk; resources with several values make it longer. */
const MIN_WALK = 500
/** Rows probed individually for missing values, before all ids are compared. */
const PROBED = 2000

export function sortedSql(planned: PlannedQuery, most: string, bind: Bind): string {
  const { query, stats } = planned
  const [first] = query.order.terms
  const isFew = fewMatches(query, stats)
  if (first?.side === undefined || isFew === true) return allSorted(planned, most, bind)
  return walkSorted({ planned, first, side: first.side, most, bind }, isFew)
}

/** True for few matches; a number: up to that many are few, if the rows confirm it. */
function fewMatches(
  { predicates }: Query,
  { rows, limit, statistics, isKnown }: PlannerStats,
): number | boolean {
  if (predicates.some(({ kind }) => kind === 'narrow')) return true
  const few = Math.round(rareBelow(rows, limit))
  const isOpen = (predicate: Predicate) => {
    if (predicate.kind === 'keys') return !isKnown && predicate.isIdentifying !== true
    return (
      predicate.kind === 'ids' ||
      predicate.kind === 'join' ||
      (predicate.kind === 'date' && predicate.within !== undefined)
    )
  }
  const known = predicates.filter((predicate) => predicate.kind === 'keys' && !isOpen(predicate))
  if (
    known.some(
      (predicate) => predicate.kind === 'keys' && estimateMatches(statistics, predicate) <= few,
    )
  )
    return true
  return predicates.some(isOpen) ? few : false
}

function allSorted({ query, accessPath }: PlannedQuery, most: string, bind: Bind): string {
  const { project, typeNumbers, predicates } = query
  const scope = scopeSql(project, typeNumbers, bind, isByKeys(predicates))
  const testSql = accessPath.name === 'keys' ? fewSql : predicateSql
  const where = [...scope, ...predicates.map((predicate) => testSql(predicate, bind))].join(' and ')
  return sortedRows(query, `resource r where ${where}`, most, bind)
}

/** `offset 0` keeps PostgreSQL from looking up a value twice. */
function sortedRows(query: Query, from: string, most: string, bind: Bind): string {
  const { order, after } = query
  const rows = `select ${KEY_COLUMNS}, ${valuesSql(query, 0, bind)} from ${from} offset 0`
  const rest = after === undefined ? '' : ` where ${afterTermsSql(order, after, bind)}`
  return `select * from (${rows}) r${rest} order by ${orderBy(order)} limit ${most}`
}

/** Streams ids of candidate rows, so that a limit stops the search early; may repeat ids. */
function candidatesSql({ query, stats }: PlannedQuery, bind: Bind): string {
  const ids = query.predicates.find((predicate) => predicate.kind === 'ids')
  if (ids?.kind === 'ids') return `select x.id from (${ids.ids(bind)}) x(id)`
  return countedSql({ ...query, after: undefined }, stats, bind, 'r.id')
}

function fewSorted({ query }: PlannedQuery, most: string, bind: Bind): string {
  const { project, typeNumbers, predicates } = query
  const isOpen = predicates.some(({ kind }) => kind === 'ids')
  const tested = isOpen
    ? predicates.map((predicate) => `(${oneRowSql(predicate, bind)}) is true`)
    : []
  const where = [...scopeSql(project, typeNumbers, bind, false), 'r.id = n.id', ...tested]
  const from = `(select distinct id from n) n cross join lateral (select * from resource r
    where ${where.join(' and ')} offset 0) r`
  return sortedRows(query, from, most, bind)
}

interface Walk {
  readonly planned: PlannedQuery
  readonly first: Term
  readonly side: Side
  readonly most: string
  readonly bind: Bind
}

/** `few`: up to this many matches are all sorted; false: there are known to be more. */
function walkSorted(walk: Walk, few: number | false): string {
  const { planned, first, side, most, bind } = walk
  const { query, stats } = planned
  const { order, after, offset, limit, project } = query
  const isMissing = after !== undefined && (after.values[0] ?? null) === null
  const isFull = (...names: readonly string[]) =>
    `${names.map((name) => `(select count(*) from ${name})`).join(' + ')} >= ${most}`
  const steps: string[] = []
  let isWalked = 'true'
  if (few !== false) {
    const bound = bind(few, 'int')
    steps.push(`n(id) as materialized (${candidatesSql(planned, bind)} limit ${bound} + 1)`)
    isWalked = `(select count(*) from n) > ${bound}`
  }
  if (isMissing && !first.descending) {
    steps.push(...missingRows(walk, isWalked))
    return chosen(walk, { steps, found: ['select * from m'], isWalked, isDone: 'true' })
  }
  const hasMissingFirst = first.descending && (after === undefined || isMissing)
  if (hasMissingFirst) steps.push(...missingRows(walk, isWalked))
  const cap = bind(Math.round(PATIENCE * rareBelow(stats.rows, limit + offset)) + MIN_WALK, 'int')
  const bound = boundSql(walk, isMissing ? undefined : after)
  const when = hasMissingFirst ? `${isWalked} and not (${isFull('m')})` : isWalked
  const isFilled = hasMissingFirst ? isFull('m', 'w') : isFull('w')
  const left = `select 1 from (${side.rows(project, bind)}) s where ${bound} limit ${cap} + 1`
  steps.push(
    `w as materialized (${valueRows(walk, { bound, cap, when })} limit ${most})`,
    `e as materialized (select count(*) <= ${cap} as is_end from (${left}) s)`,
  )
  const found = hasMissingFirst ? ['select * from m', 'select * from w'] : ['select * from w']
  if (order.terms.length > 1) {
    const last = `s.v = (select ${first.descending ? 'min' : 'max'}(s0) from w)`
    found.push(valueRows(walk, { bound: last, cap: undefined, when: isFilled }))
  }
  if (!first.descending) {
    const isLeft = `${isWalked} and not (${isFilled}) and (select is_end from e)`
    steps.push(...missingRows(walk, isLeft))
    found.push('select * from m')
  }
  const isDone = `${isFilled} or (select is_end from e)`
  return chosen(walk, { steps, found, isWalked, isDone })
}

/** Selects the walked rows if they fill the page, otherwise the sorted matches. */
function chosen({ planned, most, bind }: Walk, { steps, found, isWalked, isDone }: Chosen): string {
  // Rows of the last value are found twice.
  const union = planned.query.order.terms.length > 1 ? ' union ' : ' union all '
  const few =
    isWalked === 'true'
      ? ''
      : `union all select * from (${fewSorted(planned, most, bind)}) b where not (${isWalked})`
  return `with ${[...steps, `d as materialized (select ${isDone} as is_done)`].join(', ')}
    select * from (
      select * from (${found.join(union)}) u where ${isWalked} and (select is_done from d)
      union all
      select * from (${allSorted(planned, most, bind)}) a where ${isWalked} and not (select is_done from d)
      ${few}
    ) r order by ${orderBy(planned.query.order)} limit ${most}`
}

interface Chosen {
  readonly steps: readonly string[]
  readonly found: readonly string[]
  readonly isWalked: string
  readonly isDone: string
}

interface Values {
  readonly bound: string
  readonly cap: string | undefined
  readonly when: string
}

function valueRows(walk: Walk, { bound, cap, when }: Values): string {
  const { planned, first, side, bind } = walk
  const { query } = planned
  const { project, typeNumbers, predicates, order, after } = query
  const by = sideOrder(walk)
  const rows = `select distinct on (s.v, s.id) s.id, s.v from (${side.rows(project, bind)}) s
    where ${bound} order by ${by}${cap === undefined ? '' : ` limit ${cap}`}`
  const where = [
    ...scopeSql(project, typeNumbers, bind, false),
    ...predicates.map((predicate) => `(${testedSql(predicate, bind)}) is true`),
    'r.id = s.id',
    `${first.one(project, bind)} = s.v`,
  ].join(' and ')
  const others = order.terms.length > 1 ? `, ${valuesSql(query, 1, bind)}` : ''
  // The bound of a single term is the exact position.
  const rest =
    after === undefined || order.terms.length === 1
      ? ''
      : ` and ${afterTermsSql(order, after, bind)}`
  const names = ['s0', ...order.terms.slice(1).map((_, i) => `s${i + 1}`)].join(', ')
  return `select ${KEY_COLUMNS}, ${names} from (select r.*, s.v as s0 from (${rows}) s
    cross join lateral (select ${KEY_COLUMNS}${others} from resource r where ${where} offset 0) r) r
    where ${when}${rest}`
}

/** Bounds the side table rows to those after a position; with further terms, includes rows of equal value. */
function boundSql({ first, planned, bind }: Walk, after: Query['after']): string {
  if (after === undefined) return 'true'
  const { order } = planned.query
  const value = bind(after.values[0] ?? null, first.type)
  const inclusive = `s.v ${first.descending ? '<=' : '>='} ${value}`
  if (order.terms.length > 1) return inclusive
  const id = bind(after.id, 'uuid')
  const beyond = first.descending ? '<' : '>'
  if (first.descending === order.descending) return `(s.v, s.id) ${beyond} (${value}, ${id})`
  return `${inclusive} and (s.v ${beyond} ${value} or s.id ${order.descending ? '<' : '>'} ${id})`
}

function sideOrder({ first, planned }: Walk): string {
  const { descending } = planned.query.order
  return `s.v${first.descending ? ' desc' : ''}, s.id${descending ? ' desc' : ''}`
}

/** `m`: rows without a value. Unless they are rare, first among the first rows; then by absence key if any, or all ids. */
function missingRows(walk: Walk, when: string): readonly string[] {
  const { planned, first, side, most, bind } = walk
  const { query, stats } = planned
  const { project, typeNumbers, predicates, order, after } = query
  const isSingle = order.terms.length === 1
  const place = after !== undefined && (after.values[0] ?? null) === null ? after : undefined
  const values = [`null::${first.type} as s0`, ...(isSingle ? [] : [valuesSql(query, 1, bind)])]
  const rest = place !== undefined && !isSingle ? ` where ${afterTermsSql(order, place, bind)}` : ''
  const behind =
    place === undefined || !isSingle
      ? []
      : [`r.id ${order.descending ? '<' : '>'} ${bind(place.id, 'uuid')}`]
  const tested = predicates.map((predicate) => `(${testedSql(predicate, bind)}) is true`)
  const sorted = (from: string, where: readonly string[]) =>
    `select * from (select ${KEY_COLUMNS}, ${values.join(', ')} from ${from}
      where ${where.join(' and ')} offset 0) r ${rest} order by ${orderBy(order)} limit ${most}`
  // PostgreSQL rejects unused parameters.
  const scope = () => [...scopeSql(project, typeNumbers, bind, false), ...behind]
  const absent = stats.statistics.isIndexed ? side.absent(project) : undefined
  const key: KeysPredicate | undefined =
    absent === undefined ? absent : { kind: 'keys', any: [absent] }
  const byKey = (found: KeysPredicate, isWanted: string) => {
    const keys = predicates.filter((predicate) => predicate.kind === 'keys')
    return sorted('resource r', [
      isWanted,
      ...foundBySql([found, ...keys], bind),
      ...scopeSql(project, typeNumbers, bind, true),
      ...[...behind, ...tested].map((sql) => `(${sql}) is true`),
    ])
  }
  const byIds = (isWanted: string) => {
    const where = scope()
    const ids = `select r.id from resource r where ${where.join(' and ')}
      except select s.id from (${side.rows(project, bind)}) s`
    const row = `select * from resource r where ${[...where, 'r.id = x.id'].join(' and ')} offset 0`
    return sorted(`(${ids}) x cross join lateral (${row}) r`, [isWanted, ...tested])
  }
  if (side.isIndexed === true) {
    return [
      `m as materialized (${sorted('resource r', [when, ...scope(), side.isMissing(project, bind), ...tested])})`,
    ]
  }
  const all = (isWanted: string) => (key === undefined ? byIds(isWanted) : byKey(key, isWanted))
  const isRare = key !== undefined && estimateMatches(stats.statistics, key) <= PROBED
  if (!isSingle || isRare) return [`m as materialized (${all(when)})`]
  const isMissing =
    key === undefined ? side.isMissing(project, bind) : predicateSql(key, bind, true)
  const direction = order.descending ? ' desc' : ''
  const probed = `select r.* from resource r where ${scope().join(' and ')}
    order by r.project${direction}, r.type${direction}, r.id${direction} limit ${PROBED}`
  const isFilled = `(select count(*) from p) >= ${most}`
  return [
    `p as materialized (select ${KEY_COLUMNS}, ${values.join(', ')} from (${probed}) r
      where ${[when, ...tested, isMissing].join(' and ')} limit ${most})`,
    `m as materialized (select * from p where ${isFilled} union all
      select * from (${all(`not (${isFilled}) and ${when}`)}) a)`,
  ]
}

function valuesSql({ order, project }: Query, from: number, bind: Bind): string {
  return order.terms
    .slice(from)
    .map(({ one }, i) => `${one(project, bind)} as s${from + i}`)
    .join(', ')
}

function orderBy({ terms, descending }: Order): string {
  return termOrderSql(terms, descending, 'r')
}

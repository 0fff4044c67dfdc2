/**
 * How the rows of a search are found. Each way has one index that it begins with, and a search takes the cheapest of
 * the ways that fit it. Where the cost is only known when rows are met, the statement counts them first, to a bound,
 * and goes on as the count says: a short walk along the order if there are many, all of them if there are few or the
 * walk has not filled the page. So a wrong or an old estimate costs a bounded walk, and never a hundred times as much.
 *
 * | way | begins with | then |
 * |---|---|---|
 * | keys | the rarest key in the GIN index, or ids that are given | fetches and sorts its rows |
 * | ids | names, numbers or quantities in a side table | few: fetches and sorts; many: walks, then fetches |
 * | dates | the main date, in another order | the same |
 * | join | the keys that a chain, `_has` or a dictionary leads to | the same |
 * | walk | the order's own index, testing each row | where a key may be rare: its rows, else on to the end |
 *
 * PostgreSQL caches the plan of a statement whose tests are steady: they are read by the same indexes whatever is looked
 * for. Their values stand behind a select, so that the plan made for one search is the one for all. What is the most
 * that a way reads is in docs/data-model.md.
 */

import type { Bind } from '../../../platform/postgres/statement.ts'
import { afterSql, orderSql } from '../order/order.ts'
import {
  heldRows,
  type IdsTest,
  isSteady,
  type JoinTest,
  type Many,
  oneRowSql,
  probeSql,
  reachOf,
  scopeSql,
  type Test,
} from '../tests/test.ts'
import {
  type Facts,
  matchesOf,
  type Part,
  type Query,
  rareBelow,
  shareOf,
  type Way,
} from './query.ts'
import {
  byIds,
  byIndex,
  COLUMNS,
  type Finding,
  foundSql,
  idsSql,
  led,
  spanOf,
  staged,
  testedSql,
  type Walk,
  walkedOn,
  walkSql,
} from './stages.ts'

const MIN_WALK = 2000
const MAX_WALK = 20_000
/** Ids that are read before a walk. */
const MAX_IDS = 5000
/** A type of so few rows is read to its end; a statement with one way only runs in half the time. */
const FEW_ROWS = 2000
/** Ids of a text that is rare by the statistics. */
const RARE_IDS = 100
/** Ids that are read for each that is few. Measured: 0.5 µs each; to look a row up in the side table takes 13 µs. */
const READ = 10
/** Rows walked in the time that it takes to fetch and sort one. */
const FETCH_COST = 4
/** Rows walked beyond what an even spread needs. */
const PATIENCE = 4
/** Rows walked for each that is wanted where nothing is known: a page of a key that one row in 20 holds. */
const UNKNOWN_PATIENCE = 20
/** Keys that are looked up in the index together. */
const FEW_KEYS = 200

/** Errors: none; the last way fits every search of one type, the first every search of several. */
export function wayOf(asked: Query, facts: Facts): Part {
  const tests = asked.tests.map((test) =>
    test.kind === 'join' && test.informed !== undefined ? test.informed(facts.statistics) : test,
  )
  const query = { ...asked, tests }
  const fitting = WAYS.filter(({ fits }) => fits(query))
  const costs = fitting.map((way) => way.cost(query, facts))
  const way = fitting[costs.indexOf(Math.min(...costs))] ?? keys
  return { query, facts, way }
}

/** True where one plan serves all values. */
export function isPlannedOnce({ tests, order, score }: Query): boolean {
  if (score !== undefined) return false
  if (order.terms.length > 0) return tests.every(({ kind }) => kind === 'keys')
  return tests.every(isSteady)
}

const isOne = ({ typeNumbers }: Query) => typeNumbers.length === 1
const has = ({ tests }: Query, ...kinds: readonly Test['kind'][]) =>
  tests.some(({ kind }) => kinds.includes(kind))
/** The cost of a way that counts first: it wins from keys that are common, and from a walk without an end. */
const counted = (_query: Query, { rows, limit }: Facts) =>
  Math.min(rareBelow(rows, limit) + 1, rows / FETCH_COST)

const keys: Way = {
  name: 'keys',
  fits: (query) => !isOne(query) || has(query, 'keys', 'narrow'),
  cost: ({ tests }, facts) => {
    if (tests.some(({ kind }) => kind === 'narrow')) return 0
    return Math.min(...tests.map((test) => foundBy(test, facts)))
  },
  sql: ({ query }, most, bind) => foundSql(query, byIndex(query, bind), most, bind),
}

/** Rows that a test finds by its keys. Where nothing is known of the rows any key may be that of most. */
function foundBy(test: Test, { statistics, isKnown }: Facts): number {
  if (test.kind !== 'keys') return Infinity
  return isKnown || test.isIdentifying ? matchesOf(statistics, test) : Infinity
}

const ids: Way = {
  name: 'ids',
  fits: (query) => isOne(query) && has(query, 'ids'),
  cost: counted,
  sql: ({ query, facts }, most, bind) => {
    const { rows, limit, isKnown, statistics } = facts
    const all = query.tests.filter((test) => test.kind === 'ids')
    const [first] = all
    if (first === undefined) throw new Error('There is no test on a side table')
    const isRare = ({ expected }: IdsTest) => (expected?.(statistics) ?? Infinity) <= RARE_IDS
    if (isKnown && (rows <= FEW_ROWS || all.some(isRare))) {
      const others = query.tests.filter(({ kind }) => kind !== 'ids')
      return foundSql(
        query,
        byIds({ ...query, tests: others }, facts, idsSql(all, bind), bind),
        most,
        bind,
      )
    }
    const few = Math.round(Math.min(rareBelow(rows, limit), MAX_IDS))
    const isFew = `(select n from c) <= ${bind(few, 'int')}`
    const isAll = `(select n from c) <= ${bind(READ * few, 'int')}`
    const among = (ids: string) => (test: Test) =>
      test === first ? `(r.id in (select id from ${ids})) is true` : testedSql(test, bind)
    const looked = `case when ${isAll} then ${among('f')(first)} else ${probeSql(first, bind)} end`
    const rest = { ...query, tests: query.tests.filter((test) => test !== first) }
    const isMany = `(select count(*) from k) > ${bind(Math.round(rows / FETCH_COST), 'int')}`
    const found = byIds(rest, facts, `select id from k where not (${isMany})`, bind)
    return staged(query, most, bind, {
      with: [
        `f(id) as materialized (select x.id from (${first.ids(bind)}) x(id) limit ${bind(READ * few + 1, 'int')})`,
        'c as materialized (select count(*) as n from f)',
        `k(id) as materialized (select id from f where ${isFew} union all
          select x.id from (${first.ids(bind)}) x(id) where not (${isFew}))`,
      ],
      walk: {
        when: `not (${isFew})`,
        cap: clamped(2 * PATIENCE * few),
        tested: query.tests.map((test) => (test === first ? looked : testedSql(test, bind))),
      },
      rest: `select * from (${foundSql(query, found, most, bind)}) a union all
        select * from (${walkedOn(query, [isMany, ...query.tests.map(among('k'))], most, bind)}) b`,
    })
  },
}

const dates: Way = {
  name: 'dates',
  fits: ({ tests, order, typeNumbers }) =>
    typeNumbers.length === 1 &&
    order.terms.length === 0 &&
    order.column !== 'd_lo' &&
    tests.some(({ kind }) => kind === 'date') &&
    tests.every((test) => test.kind !== 'date' || test.begins !== undefined),
  cost: counted,
  sql: ({ query, facts: { rows, limit } }, most, bind) => {
    const few = Math.round(Math.min(rareBelow(rows, limit), MAX_IDS))
    const along = (tests: readonly Test[], end: string | undefined) => {
      const order = { column: 'd_lo', descending: false } as const
      return walkSql({ ...query, tests, order, after: undefined }, end, bind)
    }
    const tests = query.tests.map((test) =>
      test.kind === 'date' && test.begins !== undefined ? { ...test, within: test.begins } : test,
    )
    const from = `(${along(query.tests, undefined)}) r`
    return staged(query, most, bind, {
      with: [
        `c as materialized (select count(*) as n from (${along(tests, bind(few + 1, 'int'))}) b)`,
      ],
      walk: {
        when: `(select n from c) > ${bind(few, 'int')}`,
        cap: clamped(2 * PATIENCE * few),
        tested: query.tests.map((test) => testedSql(test, bind)),
      },
      rest: foundSql(query, { from, conditions: [], others: query.tests }, most, bind),
    })
  },
}

const join: Way = {
  name: 'join',
  fits: (query) => isOne(query) && has(query, 'join'),
  cost: counted,
  sql: ({ query, facts }, most, bind) => {
    const found = query.tests.filter((test) => test.kind === 'join')
    // Tests that suit a walk come last: most rows hold their keys, as they do those of a policy.
    const joins = found.toSorted(
      (a, b) => Number(a.walk !== undefined) - Number(b.walk !== undefined),
    )
    const [first] = joins
    if (first === undefined) throw new Error('There is nothing to join')
    return staged(query, most, bind, {
      with: [`j as materialized (select ${first.keys(bind)} as k)`],
      walk: joinWalk(query, joins, facts, bind),
      rest: joinedSql(query, first, most, bind),
    })
  },
}

const FOUND = '(select k from j)'

/** Undefined: the keys are looked for at once. */
function joinWalk(
  query: Query,
  joins: readonly JoinTest[],
  facts: Facts,
  bind: Bind,
): Walk | undefined {
  const { statistics } = facts
  const [first] = joins
  const tested = (test: Test) => (test === first ? first.check(FOUND, true) : testedSql(test, bind))
  const cap = Math.min(...joins.map(({ walk }) => walk?.rows(statistics) ?? 0))
  if (cap > 0) return { cap, ...led(query.tests, query, bind) }
  const many = first?.many?.(statistics)
  if (many === undefined) return undefined
  if (many.walk !== undefined) {
    const when = many.walk.isMany(bind)
    return { cap: many.walk.rows, when, ...led(query.tests, query, bind) }
  }
  const few = fewKeys(query, many, facts)
  if (few >= FEW_KEYS) return undefined
  const isMany = `cardinality(${FOUND}) > ${bind(few, 'int')}`
  return { cap: MIN_WALK, when: isMany, tested: query.tests.map(tested) }
}

/** More keys are held by more rows than are found and sorted as quickly as a walk fills the page. */
export function fewKeys(query: Query, many: Many, facts: Facts): number {
  const { rows, limit } = facts
  const share = matchesOfAll(query.tests, facts) / Math.max(rows, 1)
  return Math.ceil(rareBelow(rows, limit) / many.held(rows) / share)
}

function joinedSql(query: Query, first: JoinTest, most: string, bind: Bind): string {
  return `select * from (${joinedRows({ query, first, columns: COLUMNS, most }, bind)}) r
    order by ${orderSql(query.order, 'r')} limit ${most}`
}

interface Joined {
  readonly query: Query
  readonly first: JoinTest
  readonly columns: string
  readonly most: string | undefined
}

/** By the keys of a join when they are few, else looked up in order. A row may hold several of them. */
function joinedRows({ query, first, columns, most }: Joined, bind: Bind): string {
  const { project, typeNumbers, order, after } = query
  const others = query.tests.filter((test) => test !== first)
  const tested = others.map((test) => `(${oneRowSql(test, bind)}) is true`)
  const scope = scopeSql(project, typeNumbers, bind, true)
  const rest = after === undefined ? [] : [`(${afterSql(order, after, bind)}) is true`]
  const found = (overlap: string) =>
    `select ${columns} from resource r where ${[...scope, overlap, ...tested, ...rest].join(' and ')}`
  const looked = [first.check(FOUND, true), ...others.map((test) => testedSql(test, bind))]
  const { few, many } = heldRows(FOUND, found, walkedOn(query, looked, most, bind))
  return `select distinct * from (${few}) a union all select ${columns} from (${many}) r`
}

const walk: Way = {
  name: 'walk',
  fits: isOne,
  cost: (query, facts) => {
    const isOpen = has(query, 'ids', 'join') || dates.fits(query)
    const { rows, limit } = facts
    const matches = isOpen ? limit : matchesOfAll(query.tests, facts)
    return (limit * rows) / Math.max(matches, limit) / FETCH_COST
  },
  sql: ({ query, facts }, most, bind) => {
    const { rows, limit, isKnown } = facts
    const matches = matchesOfAll(query.tests, facts)
    const isLight = query.tests.every((test) => reachOf(test) === 'row')
    const isForMost = isKnown && isLight && matches * FETCH_COST >= rows
    if (isForMost || !has(query, 'keys')) {
      const tested = query.tests.map((test) => testedSql(test, bind))
      return walkedOn(query, tested, most, bind)
    }
    const even = (limit * rows) / Math.max(matches, 1)
    const cap = isKnown
      ? clamped(Math.max(PATIENCE * even, FETCH_COST * matches))
      : Math.min(UNKNOWN_PATIENCE * limit, MIN_WALK)
    return staged(query, most, bind, {
      with: [],
      walk: walkOf(query, facts, cap, bind),
      rest: foundSql(query, byIndex(query, bind), most, bind),
    })
  },
}

/** Matches of all keys if they are spread evenly; where nothing is known, as few as are wanted. */
function matchesOfAll(tests: readonly Test[], { statistics, rows, limit, isKnown }: Facts): number {
  const held = tests.filter((test) => test.kind === 'keys')
  if (held.length > 0 && !isKnown) return limit
  return held.reduce((left, test) => left * Math.min(matchesOf(statistics, test) / rows, 1), rows)
}

/** Rows that are walked are looked at one by one; what a policy asks of them is looked up where that fills the page. */
function walkOf(query: Query, { statistics, rows, limit }: Facts, cap: number, bind: Bind): Walk {
  const { project, typeNumbers, tests } = query
  const each = tests.flatMap((test) => (test.kind === 'filter' && test.of) || [test])
  const place = { project, number: typeNumbers[0] ?? 0 }
  const near = Math.min(cap, MIN_WALK)
  const isSure =
    has({ ...query, tests: each }, 'join') &&
    shareOf(statistics, place, each) * Math.min(near, rows) >= PATIENCE * limit
  return isSure ? { cap: near, ...led(each, query, bind) } : { cap, ...led(tests, query, bind) }
}

/** Rows to be counted, or a column of them. Where keys are known to find few the rest is looked up for each, else it is read at once. */
export function countedSql(query: Query, facts: Facts, bind: Bind, column = '1'): string {
  const { tests } = query
  const rows = (found: Finding, testSql: typeof testedSql) => rowsSql(found, testSql, bind, column)
  if (has(query, 'keys', 'narrow')) {
    const isFew = keys.cost(query, facts) <= rareBelow(facts.rows, MIN_WALK)
    return isFew ? rows(byIndex(query, bind), oneRowSql) : manyRowsSql(query, bind, column)
  }
  const ids = tests.filter((test) => test.kind === 'ids')
  if (ids.length > 0) {
    const others = tests.filter(({ kind }) => kind !== 'ids')
    return rows(byIds({ ...query, tests: others }, facts, idsSql(ids, bind), bind), testedSql)
  }
  const first = tests.find((test) => test.kind === 'join')
  if (first !== undefined && isOne(query)) {
    return `with j as materialized (select ${first.keys(bind)} as k)
      select ${column} from (${joinedRows({ query, first, columns: 'r.id', most: undefined }, bind)}) r`
  }
  const order = {
    column: spanOf(tests, 'd_lo').isBounded ? 'd_lo' : 'id',
    descending: false,
  } as const
  const from = `(${walkSql({ ...query, order, after: undefined }, undefined, bind)}) r`
  return rows({ from, conditions: [], others: tests }, testedSql)
}

/** The keys of a policy's joins are found once, before the rows are looked at. */
function manyRowsSql(query: Query, bind: Bind, column: string): string {
  const found = byIndex(query, bind)
  const others = found.others.flatMap((test) => (test.kind === 'filter' && test.of) || [test])
  const joins = others.filter((test) => test.kind === 'join' && !query.tests.includes(test))
  const names = new Map(joins.map((test, i) => [test, `j${i}`]))
  const named = joins.flatMap((test) => {
    if (test.kind !== 'join') return []
    return `${names.get(test)} as materialized (select ${test.keys(bind)} as k)`
  })
  const tested = (test: Test) => {
    const name = names.get(test)
    const isNamed = test.kind === 'join' && name !== undefined
    return isNamed ? test.check(`(select k from ${name})`, true) : testedSql(test, bind)
  }
  const first = named.length === 0 ? '' : `with ${named.join(', ')} `
  return `${first}${rowsSql({ ...found, others }, tested, bind, column)}`
}

function rowsSql(
  { from, conditions, others }: Finding,
  testSql: (test: Test, bind: Bind) => string,
  bind: Bind,
  column: string,
): string {
  const tested = others.map((test) => `(${testSql(test, bind)}) is true`)
  return `select ${column} from ${from} where ${[...conditions, ...tested].join(' and ') || 'true'}`
}

/** From the cheapest: what costs the same is taken in this order. */
export const WAYS: readonly Way[] = [keys, ids, dates, join, walk]

function clamped(cap: number): number {
  return Math.round(Math.min(Math.max(cap, MIN_WALK), MAX_WALK))
}

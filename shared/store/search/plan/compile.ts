/**
 * A search → one statement. Narrow rows of `resource` are found, ordered and cut to a page first;
 * only the page's contents are fetched from `version`. How the rows are found is a matter of ways.ts.
 */

import { tooCostly } from '../../../errors.ts'
import type { Statement } from '../../../platform/postgres/statement.ts'
import { BARE_COLUMNS } from '../../rows/recent.ts'
import { versionColumns, withVersions } from '../../rows/rows.ts'
import { type Bind, binder } from '../../rows/side-rows.ts'
import { orderSql } from '../order/order.ts'
import type { Order } from '../order/position.ts'
import { afterTermsSql, termOrderSql } from '../order/sort-cursor.ts'
import type { Term } from '../order/sort-terms.ts'
import { CHUNK, fewSql, isByKeys, scopeSql, sqlOf } from '../tests/row-test.ts'
import type { Test } from '../tests/test.ts'
import { isSteady } from '../tests/test.ts'
import type { Facts, Part, Query } from './query.ts'
import { behindSelect, COLUMNS, foundSql } from './stages.ts'
import { countedSql, fewKeys, isPlannedOnce } from './ways.ts'

const MAX_BINDINGS = 65_535

/** Rows are SortedRow, in order; bare: without contents. Parts differ in type and tests only: several are several types. */
export function pageStatement(parts: readonly Part[], isBare = false): Statement {
  const { bind, statement } = statementBuilder()
  const isKept = parts.every(({ query }) => isPlannedOnce(query))
  // One plan for all values is one whose work is bounded.
  return { ...statement(pageSql(parts, { isKept, isBare }, bind)), isKept, isBrief: isKept }
}

const FEW = '(select k from j)'

/**
 * The same for few keys of a join, in words so short that they start in half the time. One row without an id says that
 * there are more, so that it has to be asked otherwise. Undefined where no join leads to the rows, or many are expected.
 */
export function triedStatement(
  { query, facts, way }: Part,
  isBare: boolean,
): Statement | undefined {
  const { project, typeNumbers, tests, order, limit, offset } = query
  const joins = tests.filter((test) => test.kind === 'join')
  const [first] = joins
  if (way.name !== 'join' || first?.some === undefined || !isPlannedOnce(query)) return undefined
  const many = first.many?.(facts.statistics)
  const walksFirst = joins.some(({ walk }) => (walk?.rows(facts.statistics) ?? 0) > 0)
  if (many === undefined || walksFirst || order.terms.length > 0 || offset > 0) return undefined
  const { bind: plainBind, statement } = statementBuilder()
  const bind = behindSelect(plainBind)
  const few = bind(Math.min(fewKeys(query, many, facts), CHUNK), 'int')
  const scope = scopeSql(project, typeNumbers, bind, true)
  const found = {
    from: 'resource r',
    conditions: [...scope, `r.keys && ${FEW} and cardinality(${FEW}) <= ${few}`],
    others: tests.filter((test) => test !== first),
  }
  const rows = foundSql(query, found, bind(limit, 'int'), bind)
  const nulls = shownColumns(isBare).replaceAll(/[^,]+/g, 'null')
  const text = `with j as materialized (select array(${first.some(bind)} limit ${few} + 1) as k)
    (${shownSql([{ query }], rows, isBare, bind)})
    union all select null, ${nulls} from j where cardinality(k) > ${few}`
  return { ...statement(text), isKept: true, isBrief: true }
}

/** The same of several searches at once: `n` says whose row it is. */
export function pagesStatement(pages: readonly (Part & { readonly n: number })[]): Statement {
  const { bind, statement } = statementBuilder()
  const rows = pages.map((part) => {
    const page = pageSql([part], { isKept: isPlannedOnce(part.query), isBare: false }, bind)
    return `(select ${bind(part.n, 'int')} as n, p.* from (${page}) p)`
  })
  return statement(rows.join(' union all '))
}

interface PageForm {
  readonly isKept: boolean
  readonly isBare: boolean
}

function pageSql(parts: readonly Part[], { isKept, isBare }: PageForm, plainBind: Bind): string {
  const [first] = parts
  if (first === undefined) throw new Error('A search has at least one type')
  const bind = isKept ? behindSelect(plainBind) : plainBind
  const { order, limit, offset } = first.query
  const most = bind(offset + limit, 'int')
  const rows = parts.map((part) => rowsSql(part, most, bind))
  const [only = '', other] = rows
  const found =
    other === undefined
      ? `(${only}) r`
      : `(${rows.map((sql) => `(${sql})`).join(' union all ')}) r order by ${orderSql(order, 'r')}`
  // Each level of a statement takes planning.
  const isPage = other === undefined && offset === 0
  const page = isPage ? only : `select * from ${found} limit ${most} offset ${bind(offset, 'int')}`
  return shownSql(parts, page, isBare, bind)
}

/** The rows of a page with their versions. */
function shownSql(
  parts: readonly Pick<Part, 'query'>[],
  page: string,
  isBare: boolean,
  bind: Bind,
): string {
  const [first] = parts
  if (first === undefined) throw new Error('A search has at least one type')
  const { order, score } = first.query
  // A time takes long to write; only cursors of this order read it.
  const date = order.column === 'd_lo' ? 'r.d_lo' : 'null::timestamptz as d_lo'
  const sorted = [date, ...order.terms.map((_, i) => `r.s${i}`)]
  // A linked Project has versions of its own.
  const isOfOne = parts.every(({ query }) => query.project === first.query.project)
  // PostgreSQL refuses a value that no part of the statement names.
  const project = () => (isOfOne ? bind(first.query.project, 'int') : 'r.project')
  if (score !== undefined) sorted.push(`${score(project(), bind)} as score`)
  const versions = isBare ? '' : withVersions(project())
  return `select ${sorted.join(', ')}, ${shownColumns(isBare)} from (${page}) r
    ${versions} order by ${orderSql(order, 'r')}`
}

const shownColumns = (isBare: boolean) => (isBare ? BARE_COLUMNS : versionColumns('v'))

function rowsSql(part: Part, most: string, bind: Bind): string {
  const { query, way } = part
  if (query.order.terms.length === 0) return way.sql(part, most, bind)
  const { project, typeNumbers, tests } = query
  const testSql = way.name === 'keys' ? fewSql : sqlOf
  const where = (isHeld: boolean, sql: (test: Test) => string) =>
    [...scopeSql(project, typeNumbers, bind, isHeld), ...tests.map(sql)].join(' and ')
  const sorting = {
    ...query,
    columns: COLUMNS,
    isNarrow: way.name !== 'walk',
    tests: (isForced: boolean) =>
      isForced
        ? where(false, (test) => sqlOf(test, bind, true))
        : where(isByKeys(tests), (test) => testSql(test, bind)),
  }
  return sortedRows(sorting, most, bind)
}

const BY_ID = { column: 'id', descending: false, byType: false, terms: [] } as const

/** The rows that are counted, up to `max` when given. */
export function countedStatement(
  queries: readonly { readonly query: Query; readonly facts: Facts }[],
  max: number | undefined,
): Statement {
  const { bind, statement } = statementBuilder()
  const isKept = queries.every(({ query }) => query.tests.every(isSteady))
  const valueBind = isKept ? behindSelect(bind) : bind
  const rows = queries.map(({ query, facts }) =>
    countedSql({ ...query, order: BY_ID, after: undefined }, facts, valueBind),
  )
  const all = rows.map((sql) => `(${sql})`).join(' union all ')
  const capped = max === undefined ? all : `${all} limit ${bind(max, 'int')}`
  return { ...statement(capped), isKept }
}

function statementBuilder() {
  const { values, bind } = binder()
  const statement = (text: string): Statement => {
    // The protocol counts them in 16 bits.
    if (values.length > MAX_BINDINGS) throw tooCostly('The search has too many values')
    return { text, values }
  }
  return { bind, statement }
}

interface Sorting {
  readonly project: number
  readonly order: Order
  readonly after: Parameters<typeof afterTermsSql>[1] | undefined
  /** The columns of `resource r`. */
  readonly columns: string
  /** The search narrows its rows to few. */
  readonly isNarrow: boolean
  /** Tests of `resource r`; forced: looked at for a row that is at hand. */
  readonly tests: (isForced: boolean) => string
}

/**
 * Beside its rows a walk looks at others: values of rows that do not match, and further values of those
 * that do. Measured: 10 µs each.
 */
const WALKED_A_ROW = 6
const WALKED = 500

function sortedRows(sorting: Sorting, most: string, bind: Bind): string {
  const walk = sorting.isNarrow ? undefined : walkOf(sorting, most, bind)
  if (walk === undefined) return allSorted(sorting, most, bind)
  const by = termOrderSql(sorting.order.terms, false, 'r')
  return `with w as materialized (${walk} limit ${most})
    select * from (
      select * from w where (select count(*) from w) >= ${most}
      union all
      select * from (${allSorted(sorting, most, bind)}) a where (select count(*) from w) < ${most}
    ) r order by ${by}`
}

/**
 * All matches with what they are sorted by. Few of them look it up one by one; where nothing narrows
 * the search, all values are read at once. `offset 0` keeps a value from being looked up twice.
 */
function allSorted(sorting: Sorting, most: string, bind: Bind): string {
  const { order, after, project, columns, isNarrow, tests } = sorting
  const values = order.terms.map(({ one, all }, i) => {
    if (isNarrow || all === undefined) return { value: `${one(project, bind)} as s${i}`, join: '' }
    const join = ` left join (${all(project, bind)}) t${i} on t${i}.id = r.id`
    return { value: `t${i}.v as s${i}`, join }
  })
  const rows = `select ${[columns, ...values.map(({ value }) => value)].join(', ')}
    from resource r${values.map(({ join }) => join).join('')}
    where ${tests(false)} offset 0`
  const rest = after === undefined ? '' : ` where ${afterTermsSql(order, after, bind)}`
  const by = termOrderSql(order.terms, order.descending, 'r')
  return `select * from (${rows}) r${rest} order by ${by} limit ${most}`
}

/** By the values themselves where one term ascends: rows without one come last, behind the walk. */
function walkOf(sorting: Sorting, most: string, bind: Bind): string | undefined {
  const { project, order, after, columns, tests } = sorting
  const [term, second] = order.terms
  if (term?.walk === undefined || second !== undefined) return undefined
  if (term.descending || order.descending) return undefined
  const from = fromSql(term, after, bind)
  if (from === undefined) return undefined
  const values = `${term.walk(project, bind)}${from} order by s.v, s.id`
  const cap = `${most} * ${WALKED_A_ROW} + ${WALKED}`
  return `select r.*, s.v as s0 from (${values} limit ${cap}) s
    cross join lateral (select ${columns} from resource r
      where ${tests(true)} and r.id = s.id and ${term.one(project, bind)} = s.v offset 0) r`
}

/** Undefined behind the last value. */
function fromSql(term: Term, after: Sorting['after'], bind: Bind): string | undefined {
  if (after === undefined) return ''
  const [value = null] = after.values
  if (value === null) return undefined
  return ` and (s.v, s.id) > (${bind(value, term.type)}, ${bind(after.id, 'uuid')})`
}

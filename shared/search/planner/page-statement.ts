/** Compiles a search to one statement: finds narrow rows of `resource` first, then fetches the page's contents. */

import { tooCostly } from '../../core/errors.ts'
import { type Bind, binder, type Statement } from '../../postgres/statement.ts'
import { BARE_COLUMNS } from '../../store/rows/recent-versions.ts'
import { versionColumns, withVersions } from '../../store/rows/rows.ts'
import { orderSql } from '../predicates/order.ts'
import { CHUNK, hasStablePlan, scopeSql } from '../predicates/predicate.ts'
import type { PlannedQuery, PlannerStats, Query, SortedRow } from '../predicates/query.ts'
import { hideFromPlanner, indexScanSql } from '../predicates/scan-sql.ts'
import { isPlannedOnce } from './access-paths.ts'
import { countedSql, countSql } from './counted.ts'
import { fewKeys } from './join-path.ts'
import { sortedSql } from './sorted.ts'

const MAX_BINDINGS = 65_535

/** Returns SortedRows, in order; bare: without contents. The plans differ in type and predicates only. */
export function pageStatement(plans: readonly PlannedQuery[], isBare = false): Statement {
  const { bind, statement } = statementBuilder()
  const isPreparable = plans.every(({ query }) => isPlannedOnce(query))
  // A cached plan has bounded work, except for sorts without an index.
  const isPipelined = isPreparable && plans.every(({ query }) => query.order.terms.length === 0)
  return {
    ...statement(pageSql(plans, { isPreparable, isBare }, bind)),
    isPreparable,
    isPipelined,
  }
}

const FEW = '(select k from j)'

/** A shorter statement for few join keys. Undefined when no join applies or many keys are expected. */
export function fewKeysStatement(
  { query, stats, accessPath }: PlannedQuery,
  isBare: boolean,
): Statement | undefined {
  const { project, typeNumbers, predicates, order, limit, offset } = query
  const joins = predicates.filter((predicate) => predicate.kind === 'join')
  const [first] = joins
  if (accessPath.name !== 'join' || first?.some === undefined || !isPlannedOnce(query))
    return undefined
  const many = first.fanOut?.(stats.statistics)
  const walksFirst = joins.some(({ walk }) => (walk?.rows(stats.statistics) ?? 0) > 0)
  if (many === undefined || walksFirst || order.terms.length > 0 || offset > 0) return undefined
  const { bind: plainBind, statement } = statementBuilder()
  const bind = hideFromPlanner(plainBind)
  const few = bind(Math.min(fewKeys(query, many, stats), CHUNK), 'int')
  const scope = scopeSql(project, typeNumbers, bind, true)
  const found = {
    from: 'resource r',
    conditions: [...scope, `r.keys && ${FEW} and cardinality(${FEW}) <= ${few}`],
    others: predicates.filter((predicate) => predicate !== first),
  }
  const rows = indexScanSql(query, found, bind(limit, 'int'), bind)
  const nulls = shownColumns(isBare)
    .split(',')
    .map(() => 'null')
    .join()
  const text = `with j as materialized (select array(${first.some(bind)} limit ${few} + 1) as k)
    (${shownSql([{ query }], rows, isBare, bind)})
    union all select null, ${nulls} from j where cardinality(k) > ${few}`
  return { ...statement(text), isPreparable: true, isPipelined: true }
}

/** Rows found by `fewKeysStatement`; undefined when there are too many keys. */
export function fewKeysResult(
  rows: readonly (SortedRow | { readonly id: null })[],
): readonly SortedRow[] | undefined {
  const found = rows.filter((row) => row.id !== null)
  return found.length === rows.length ? found : undefined
}

/** Combines several searches; `n` is the index of each row's search. */
export function pagesStatement(
  pages: readonly (PlannedQuery & { readonly n: number })[],
): Statement {
  const { bind, statement } = statementBuilder()
  const rows = pages.map((planned) => {
    const page = pageSql(
      [planned],
      { isPreparable: isPlannedOnce(planned.query), isBare: false },
      bind,
    )
    return `(select ${bind(planned.n, 'int')} as n, p.* from (${page}) p)`
  })
  return statement(rows.join(' union all '))
}

function pageSql(
  plans: readonly PlannedQuery[],
  { isPreparable, isBare }: { readonly isPreparable: boolean; readonly isBare: boolean },
  plainBind: Bind,
): string {
  const [first] = plans
  if (first === undefined) throw new Error('A search has at least one type')
  const bind = isPreparable ? hideFromPlanner(plainBind) : plainBind
  const { order, limit, offset } = first.query
  const most = bind(offset + limit, 'int')
  const rows = plans.map((planned) => rowsSql(planned, most, bind))
  const [only = '', other] = rows
  const found =
    other === undefined
      ? `(${only}) r`
      : `(${rows.map((sql) => `(${sql})`).join(' union all ')}) r order by ${orderSql(order, 'r')}`
  // Each level of a statement adds planning time.
  const isPage = other === undefined && offset === 0
  const page = isPage ? only : `select * from ${found} limit ${most} offset ${bind(offset, 'int')}`
  return shownSql(plans, page, isBare, bind)
}

function shownSql(
  parts: readonly Pick<PlannedQuery, 'query'>[],
  page: string,
  isBare: boolean,
  bind: Bind,
): string {
  const [first] = parts
  if (first === undefined) throw new Error('A search has at least one type')
  const { order, score } = first.query
  // Formatting times is slow; only cursors of this order need them.
  const date = order.column === 'd_lo' ? 'r.d_lo' : 'null::timestamptz as d_lo'
  const sorted = [date, ...order.terms.map((_, i) => `r.s${i}`)]
  // Versions of linked rows belong to their own Project.
  const isOfOne = parts.every(({ query }) => query.project === first.query.project)
  // PostgreSQL rejects unused parameters.
  const project = () => (isOfOne ? bind(first.query.project, 'int') : 'r.project')
  if (score !== undefined) sorted.push(`${score(project(), bind)} as score`)
  const versions = isBare ? '' : withVersions(project())
  return `select ${sorted.join(', ')}, ${shownColumns(isBare)} from (${page}) r
    ${versions} order by ${orderSql(order, 'r')}`
}

const shownColumns = (isBare: boolean) => (isBare ? BARE_COLUMNS : versionColumns('v'))

function rowsSql(planned: PlannedQuery, most: string, bind: Bind): string {
  const { query, accessPath } = planned
  if (query.order.terms.length === 0) return accessPath.sql(planned, most, bind)
  return sortedSql(planned, most, bind)
}

const BY_ID = { column: 'id', descending: false, byType: false, terms: [] } as const

interface CountLimits {
  /** Matches to count; undefined: all. */
  readonly max?: number | undefined
  /** Rows to walk for a join, or as many lookups as take the time; more are estimated. Unused with `max`. */
  readonly work?: number
}

/** Selects a Total: the rows of all queries. */
export function countedStatement(
  queries: readonly { readonly query: Query; readonly stats: PlannerStats }[],
  { max, work = Infinity }: CountLimits = {},
): Statement {
  const { bind, statement } = statementBuilder()
  const isPreparable = queries.every(({ query }) => query.predicates.every(hasStablePlan))
  const valueBind = isPreparable ? hideFromPlanner(bind) : bind
  const each = queries.map(({ query, stats }) => {
    const unordered = { ...query, order: BY_ID, after: undefined }
    return max === undefined
      ? `(${countSql(unordered, stats, work, valueBind)})`
      : `(${countedSql(unordered, stats, valueBind)})`
  })
  const all = each.join(' union all ')
  const text =
    max === undefined
      ? `select sum(c), bool_or(e) from (${all}) r(c, e)`
      : `select count(*), false from (${all} limit ${bind(max, 'int')}) r`
  return { ...statement(text), isPreparable }
}

function statementBuilder() {
  const { values, bind: add } = binder()
  const bind: Bind = (value, type) => {
    // The protocol counts parameters in 16 bits; the text of more could fill the memory.
    if (values.length === MAX_BINDINGS) throw tooCostly('The search has too many values')
    return add(value, type)
  }
  const statement = (text: string): Statement => ({ text, values })
  return { bind, statement }
}

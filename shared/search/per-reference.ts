/**
 * Searches for many references at once, for lists of resources that refer to the rows of a page. A fenced lateral
 * join finds the keys, so that PostgreSQL does not walk the whole type for each reference. Very common references are
 * searched individually.
 */

import { visibleRows } from '../access/decisions/grant-predicates.ts'
import { hidesAny } from '../access/hidden.ts'
import { grantsFor } from '../access/policy.ts'
import type { Principal } from '../access/principal.ts'
import { tooCostly } from '../core/errors.ts'
import { arrayLiteral, type Bind, binder, type Statement } from '../postgres/statement.ts'
import { requireAllowed, type StoreContext } from '../store/rows/context.ts'
import { BARE_COLUMNS, withContents } from '../store/rows/recent-versions.ts'
import { versionColumns, withVersions } from '../store/rows/rows.ts'
import type { SearchPage } from '../store/rows/version.ts'
import type { Condition, SearchRequest } from './language/search-request.ts'
import { buildSearchPage, search, showRows } from './page.ts'
import { prepare } from './planner/prepare.ts'
import { compilePredicate } from './predicates/compile.ts'
import { orderSql, resolveOrder } from './predicates/order.ts'
import { fewSql, hasStablePlan, probeSql, scopeSql } from './predicates/predicate.ts'
import type { Order, SortedRow } from './predicates/query.ts'
import { estimateMatches, type Query } from './predicates/query.ts'
import { hideFromPlanner } from './predicates/scan-sql.ts'
import { KEY_COLUMNS } from './predicates/walk-sql.ts'

export interface ReferenceSearch {
  /** Without the reference condition and without a cursor. */
  readonly request: SearchRequest
  readonly code: string
  readonly references: readonly string[]
}

/** References with more rows are searched individually. */
const COMMON = 5_000

/** Returns a page per reference, in order. Errors: 403, 400; `too-costly` beyond `maxRows`. */
export async function searchPerReference(
  store: StoreContext,
  principal: Principal,
  { request, code, references }: ReferenceSearch,
  maxRows: number,
): Promise<readonly SearchPage[]> {
  const asked = await planReferenceQueries(store, principal, request, { code, references })
  const common = asked.sought.filter(({ isCommon }) => isCommon)
  const rest = asked.sought.filter(({ isCommon }) => !isCommon)
  const pages = new Map<string, SearchPage>()
  const alone = common.map(async ({ reference, condition }) => {
    const conditions = [condition, ...request.conditions]
    pages.set(reference, await search(store, principal, { ...request, conditions }))
  })
  const together = async () => {
    if (asked.queries.length === 0 || rest.length === 0) return
    const rows = await withContents(store, asked.queries, (isBare) =>
      store.connection.query<SortedRow & { n: number }>(
        pagesStatement(asked, rest, { most: maxRows + 1, isBare }),
      ),
    )
    if (rows.length > maxRows) throw tooCostly(`More than ${maxRows} resources were found`)
    const shown = await showRows(store, principal, rows)
    for (const [n, own] of Map.groupBy(shown, ({ row }) => row.n)) {
      pages.set(
        rest[n - 1]?.reference ?? '',
        buildSearchPage(request, { order: asked.order, after: undefined, rows: own }),
      )
    }
  }
  await Promise.all([...alone, together()])
  const empty = buildSearchPage(request, { order: asked.order, after: undefined, rows: [] })
  return references.map((reference) => pages.get(reference) ?? empty)
}

/** Returns the number of matches per reference, in order. One statement. Errors: 403, 400. */
export async function countPerReference(
  store: StoreContext,
  principal: Principal,
  { request, code, references }: ReferenceSearch,
): Promise<readonly number[]> {
  const asked = await planReferenceQueries(store, principal, request, { code, references })
  if (asked.queries.length === 0 || references.length === 0) return references.map(() => 0)
  const statement = countsStatement(asked, asked.sought)
  const rows = await store.connection.query<{ n: number; count: number }>(statement)
  const counts = new Map(rows.map(({ n, count }) => [n, count]))
  return references.map((_, i) => counts.get(i + 1) ?? 0)
}

interface Asked {
  readonly order: Order
  readonly queries: readonly Query[]
  readonly sought: readonly ReferenceCondition[]
}

interface ReferenceCondition {
  readonly reference: string
  readonly condition: Condition
  readonly keys: readonly (readonly bigint[])[]
  readonly isCommon: boolean
}

async function planReferenceQueries(
  store: StoreContext,
  principal: Principal,
  request: SearchRequest,
  { code, references }: { readonly code: string; readonly references: readonly string[] },
): Promise<Asked> {
  const { type } = request
  requireAllowed(principal, type, 'search')
  const order = resolveOrder(request, store.keys, principal.project.parameters)
  const prepared = await prepare(store, principal, order, [request])
  const scopes = prepared.queries.map(({ project }) =>
    visibleRows(store, principal, type, {
      interaction: 'search',
      project,
      units: [],
      codes: [code],
    }),
  )
  // Rows are not found by references that a policy hides.
  const isHidden = grantsFor(principal, type, 'search')?.some((grant) =>
    hidesAny(grant, type, [code], principal.project.parameters),
  )
  const queries = prepared.queries.map((query, i) => ({
    ...query,
    predicates: [...query.predicates, ...(isHidden ? (scopes[i]?.visible ?? []) : [])],
  }))
  const sought = references.map((reference): ReferenceCondition => {
    const values = [reference]
    const condition: Condition = { code, type: 'reference', modifier: undefined, values }
    const tests = scopes.flatMap((scope) =>
      scope === undefined ? [] : compilePredicate(scope, condition),
    )
    const byKeys = tests.filter((test) => test.kind === 'keys')
    const isCommon = byKeys.some((test) => estimateMatches(store.statistics, test) > COMMON)
    return { reference, condition, keys: byKeys.map(({ any }) => any), isCommon }
  })
  return { order, queries, sought }
}

function pagesStatement(
  { order, queries }: Asked,
  sought: readonly ReferenceCondition[],
  { most, isBare }: { readonly most: number; readonly isBare: boolean },
): Statement {
  const { values, bind: plainBind } = binder()
  const isPreparable =
    order.terms.length === 0 &&
    queries.every(({ predicates, score }) => score === undefined && predicates.every(hasStablePlan))
  const bind = isPreparable ? hideFromPlanner(plainBind) : plainBind
  const [first] = queries
  const names = order.terms.map((_, i) => `s${i}`)
  const rows = queries.map((query, i) => {
    const terms = order.terms.map(({ one }, s) => `${one(query.project, bind)} as s${s}`)
    return rowsSql(query, `x.k${i}`, [KEY_COLUMNS, ...terms].join(', '), bind)
  })
  const sorted = ['d_lo', ...names].map((name) => `r.${name}`).join(', ')
  const isOfOne = queries.every(({ project }) => project === first?.project)
  const [columns, versions] = isBare
    ? [BARE_COLUMNS, '']
    : [versionColumns('v'), withVersions(isOfOne ? bind(first?.project, 'int') : 'r.project')]
  const text = `select x.n::int, p.* from ${keysSql(queries, sought, bind)} cross join lateral (
      select ${sorted}, ${columns} from (
        select * from (${rows.join(' union all ')}) r order by ${orderSql(order, 'r')}
        limit ${bind(first?.limit, 'int')} offset ${bind(first?.offset, 'int')}
      ) r ${versions} order by ${orderSql(order, 'r')}) p
    limit ${bind(most, 'int')}`
  return { text, values, isPreparable, isPipelined: isPreparable }
}

function countsStatement({ queries }: Asked, sought: readonly ReferenceCondition[]): Statement {
  const { values, bind } = binder()
  const rows = queries.map((query, i) => rowsSql(query, `x.k${i}`, 'r.id', bind))
  const text = `select x.n::int, p.count::int from ${keysSql(queries, sought, bind)}
    cross join lateral (select count(*) from (${rows.join(' union all ')}) r) p`
  return { text, values }
}

/** Keys as array literals, a column per query: a reference may have several keys. */
function keysSql(
  queries: readonly Query[],
  sought: readonly ReferenceCondition[],
  bind: Bind,
): string {
  const columns = queries.map((_, i) => `k${i}`)
  const lists = queries.map((_, i) =>
    bind(
      sought.map(({ keys }) => arrayLiteral(keys[i] ?? [])),
      'text[]',
    ),
  )
  return `unnest(${lists.join(', ')}) with ordinality x(${columns.join(', ')}, n)`
}

function rowsSql(query: Query, keys: string, columns: string, bind: Bind): string {
  const conditions = [
    ...scopeSql(query.project, query.typeNumbers, bind, true),
    `r.keys && ${keys}::bigint[]`,
    ...query.predicates.map((predicate) =>
      predicate.kind === 'ids' ? probeSql(predicate, bind) : fewSql(predicate, bind),
    ),
  ]
  return `(select ${columns} from resource r where ${conditions.join(' and ')} offset 0)`
}

/**
 * One search for each of many references at once: the lists of what refers to the rows of a page. One
 * plan serves them all. Their keys are found by a lateral join, fenced so that PostgreSQL cannot walk
 * the order of the type for every one of them. A reference so common that fetching and sorting all its
 * rows costs more than walking the order is searched for like any other search.
 */
import type { Principal } from '../../access/principal.ts'
import type { Statement } from '../../database.ts'
import { tooCostly } from '../../errors.ts'
import type { Condition, SearchRequest } from '../../fhir/search.ts'
import type { Store } from '../context.ts'
import { keysLiteral } from '../keys.ts'
import { allow } from '../read.ts'
import type { SearchPage } from '../repository.ts'
import { versionColumns } from '../rows.ts'
import type { Bind } from '../side-rows.ts'
import type { Query } from './compile.ts'
import { testOf } from './conditions.ts'
import { matchesOf } from './driver.ts'
import { orderOf, orderSql, type SortedRow } from './order.ts'
import { pageOf, searchMany } from './page.ts'
import { prepare } from './prepare.ts'
import { fewSql, scopeSql } from './row-test.ts'
import { sightOf } from './sight.ts'

export interface ReferenceSearch {
  /** Without the condition on the reference, and without a cursor. */
  readonly request: SearchRequest
  readonly code: string
  /** `Type/id`, each once. */
  readonly references: readonly string[]
  /** Rows of all pages together. */
  readonly maxRows: number
}

/** Rows of one reference above which they are not all fetched. */
const COMMON = 5_000

/** A page for each reference, in their order. Errors: 403, 400; `too-costly` beyond `maxRows`. */
export async function searchPerReference(
  store: Store,
  principal: Principal,
  { request, code, references, maxRows }: ReferenceSearch,
): Promise<readonly SearchPage[]> {
  allow(principal, request.type, 'search')
  const order = orderOf(request, store.keys, principal.project.parameters)
  const { project, queries } = await prepare(store, principal, order, request, [request])
  const [query] = queries
  const scene = query && sightOf(store, principal, request.type, 'search', project)
  if (query === undefined || scene === undefined || references.length === 0) {
    return references.map(() => pageOf(request, order, undefined, []))
  }
  const conditions = references.map(
    (reference): Condition => ({
      code,
      type: 'reference',
      modifier: undefined,
      values: [reference],
    }),
  )
  const tests = conditions.map((condition) => testOf(scene, condition))
  const isCommon = (place: number) => {
    const test = tests[place]
    return test?.kind !== 'keys' || matchesOf(store.statistics, test) > COMMON
  }
  const places = [...references.keys()]
  const found = new Map<number, SearchPage>()
  const common = places.filter(isCommon)
  const rest = places.filter((place) => !isCommon(place))
  const keys = rest.map((place) => {
    const test = tests[place]
    return test?.kind === 'keys' ? test.any : []
  })
  await Promise.all([searchCommon(), searchRest()])
  return places.map((place) => found.get(place) ?? pageOf(request, order, undefined, []))

  async function searchCommon(): Promise<void> {
    if (common.length === 0) return
    const requests = common.flatMap((place) => {
      const condition = conditions[place]
      return condition ? [{ ...request, conditions: [condition, ...request.conditions] }] : []
    })
    const pages = await searchMany(store, principal, requests)
    for (const [i, page] of pages.entries()) {
      if (page.status === 'rejected') throw page.reason
      found.set(common[i] ?? 0, page.value)
    }
  }

  async function searchRest(): Promise<void> {
    if (rest.length === 0 || query === undefined) return
    const statement = pagesStatement(query, keys, maxRows + 1)
    const rows = await store.connection.query<SortedRow & { n: number }>(statement)
    if (rows.length > maxRows) throw tooCostly(`More than ${maxRows} resources were found`)
    for (const [n, own] of Map.groupBy(rows, (row) => row.n)) {
      found.set(rest[n - 1] ?? 0, pageOf(request, order, undefined, own))
    }
  }
}

/** How many match for each reference, in their order. One statement. Errors: 403, 400. */
export async function countPerReference(
  store: Store,
  principal: Principal,
  { request, code, references }: Omit<ReferenceSearch, 'maxRows'>,
): Promise<readonly number[]> {
  allow(principal, request.type, 'search')
  const order = orderOf(request, store.keys, principal.project.parameters)
  const { project, queries } = await prepare(store, principal, order, request, [request])
  const [query] = queries
  const scene = query && sightOf(store, principal, request.type, 'search', project)
  if (query === undefined || scene === undefined) return references.map(() => 0)
  const keys = references.map((reference) => {
    const values = [reference]
    const test = testOf(scene, { code, type: 'reference', modifier: undefined, values })
    return test.kind === 'keys' ? test.any : []
  })
  const rows = await store.connection.query<{ n: number; count: number }>(
    countsStatement(query, keys),
  )
  const counts = new Map(rows.map(({ n, count }) => [n, count]))
  return references.map((_, i) => counts.get(i + 1) ?? 0)
}

const COLUMNS = 'r.project, r.type, r.id, r.ver, r.lu, r.d_lo'
type Keys = readonly (readonly bigint[])[]

function pagesStatement(query: Query, keys: Keys, maxRows: number): Statement {
  const values: unknown[] = []
  const bind = binder(values)
  const { order, limit, offset, project } = query
  const terms = order.terms.map(({ one }, i) => `${one(project, bind)} as s${i}`)
  const columns = [COLUMNS, ...terms].join(', ')
  const sorted = ['d_lo', ...order.terms.map((_, i) => `s${i}`)].map((name) => `r.${name}`)
  const text = `select x.n::int, p.* from ${keysSql(keys, bind)} cross join lateral (
      select ${sorted.join(', ')}, ${versionColumns('v')} from (
        select * from (${rowsSql(query, columns, bind)} offset 0) r
        order by ${orderSql(order, 'r')} limit ${bind(limit, 'int')} offset ${bind(offset, 'int')}
      ) r join version v using (project, type, id, ver) order by ${orderSql(order, 'r')}) p
    limit ${bind(maxRows, 'int')}`
  return { text, values }
}

function countsStatement(query: Query, keys: Keys): Statement {
  const values: unknown[] = []
  const bind = binder(values)
  const text = `select x.n::int, p.count::int from ${keysSql(keys, bind)} cross join lateral (
    select count(*) from (${rowsSql(query, 'r.id', bind)} offset 0) r) p`
  return { text, values }
}

function binder(values: unknown[]): Bind {
  return (value, type) => {
    values.push(value)
    return `$${values.length}::${type}`
  }
}

/** Keys as texts of arrays: each reference may have several. */
function keysSql(keys: Keys, bind: Bind): string {
  return `unnest(${bind(keys.map(keysLiteral), 'text[]')}) with ordinality x(k, n)`
}

function rowsSql({ project, typeNumbers, tests }: Query, columns: string, bind: Bind): string {
  const conditions = [
    ...scopeSql(project, typeNumbers, bind, true),
    'r.keys && x.k::bigint[]',
    ...tests.map((test) => fewSql(test, bind)),
  ]
  return `select ${columns} from resource r where ${conditions.join(' and ')}`
}

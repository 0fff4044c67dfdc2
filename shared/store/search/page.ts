/** One page of a search, as a Principal sees it: one statement, one more for a total and each step of includes. */
import { REGISTRY_TYPES } from '../../access/policy.ts'
import type { Principal } from '../../access/principal.ts'
import { badRequest, forbidden, tooCostly } from '../../errors.ts'
import { typeNumber } from '../../fhir/definitions.ts'
import { type Condition, isCondition, type SearchRequest } from '../../fhir/search.ts'
import { unescapeValue } from '../../fhir/search-values.ts'
import { projectKey, type Store } from '../context.ts'
import { allow } from '../read.ts'
import type { SearchPage } from '../repository.ts'
import { toVersion } from '../rows.ts'
import { countStatement, pageStatement, type Query } from './compile.ts'
import { testOf } from './conditions.ts'
import { chooseDriver, matchesOf } from './driver.ts'
import { followIncludes } from './include.ts'
import {
  type Order,
  orderOf,
  orderOfTypes,
  readCursor,
  type SortedRow,
  writeCursor,
} from './order.ts'
import type { Test } from './row-test.ts'
import { sightOf } from './sight.ts'
import { unitsOf } from './units.ts'

/** Up to here even an estimated total is counted: 9 ms, and pages of small results stay exact. */
const EXACT_COUNT = 10_000
const MAX_SORTED = 100_000

/** Errors: 403, 400 for what cannot be searched or sorted by and for a damaged cursor. */
export async function search(
  store: Store,
  principal: Principal,
  request: SearchRequest,
): Promise<SearchPage> {
  allow(principal, request.type, 'search')
  return searchPage(store, principal, orderOf(request, store.keys), request, [request])
}

/**
 * Several types as one result; the requests differ in type and conditions only. Types that may not
 * be searched are left out. Errors: as `search`; 403 when no type is left.
 */
export async function searchTypes(
  store: Store,
  principal: Principal,
  requests: readonly SearchRequest[],
): Promise<SearchPage> {
  const allowed = requests.filter(({ type }) => sightOf(store, principal, type, 'search'))
  const [first] = allowed
  if (first === undefined) throw forbidden()
  return searchPage(store, principal, orderOfTypes(first, store.keys), first, allowed)
}

async function searchPage(
  store: Store,
  principal: Principal,
  order: Order,
  paging: SearchRequest,
  requests: readonly SearchRequest[],
): Promise<SearchPage> {
  const { count, offset, cursor, includes } = paging
  if (requests.some(({ type }) => type === 'Binary')) {
    throw badRequest('Cannot search on Binary resource type')
  }
  if (cursor !== undefined && offset > 0) throw badRequest('Cannot use both offset and cursor')
  const after = cursor === undefined ? undefined : readCursor(order, cursor)
  const project = await projectOf(store, principal, requests)
  // One row more than asked for tells whether there is a next page.
  const page = { order, after, limit: count + 1, offset }
  const units = project === undefined ? [] : await unitsOf(store, project, requests)
  const wanted = project === undefined ? [] : wantedOf(store, principal, project, units, requests)
  const queries = wanted.map((query) => ({ ...query, ...page }))
  const [rows, total] = await Promise.all([
    count === 0 || queries.length === 0 ? [] : findRows(store, queries),
    paging.total === 'none' ? undefined : countRows(store, queries, paging.total),
  ])
  const shown = rows.slice(0, count)
  const last = rows.length > count ? shown.at(-1) : undefined
  const versions = shown.map((row) => toVersion(row))
  const follow = project !== undefined && includes.length > 0
  const { included, isCut } = follow
    ? await followIncludes(store, principal, project, includes, versions)
    : { included: [], isCut: false }
  return { versions, total, next: last && writeCursor(order, last), included, isCut }
}

function findRows(store: Store, queries: readonly Query[]): Promise<SortedRow[]> {
  const { statistics, connection } = store
  const parts = queries.map((query) => {
    if (query.typeNumbers.length > 1)
      return { query, driver: { kind: 'keys', ids: false } as const }
    const rows = rowsOf(store, query)
    const limit = query.limit + query.offset
    checkSortable(statistics, query, rows)
    return { query, driver: chooseDriver(statistics, query.tests, rows, limit) }
  })
  return connection.query<SortedRow>(pageStatement(parts))
}

/** A sort by values looks at every match. Errors: 400 too-costly. */
function checkSortable(statistics: Store['statistics'], { order, tests }: Query, rows: number) {
  if (order.terms.length === 0 || tests.some(({ kind }) => kind === 'ids' || kind === 'narrow')) {
    return
  }
  const counts = tests.flatMap((test) => (test.kind === 'keys' ? matchesOf(statistics, test) : []))
  const estimate = Math.round(Math.min(rows, ...counts))
  if (estimate <= MAX_SORTED) return
  const names = order.terms.map(({ name }) => name).join(',')
  const text = `About ${estimate} matches are too many to sort by ${names}; ${MAX_SORTED} are allowed`
  throw tooCostly(text, '_sort')
}

async function countRows(
  store: Store,
  queries: readonly Query[],
  total: 'estimate' | 'accurate',
): Promise<number> {
  if (queries.length === 0) return 0
  const max = total === 'accurate' ? undefined : EXACT_COUNT + 1
  const [row] = await store.connection.query<{ count: number }>(countStatement(queries, max))
  const count = row?.count ?? 0
  if (total === 'accurate' || count <= EXACT_COUNT) return count
  const { statistics } = store
  const estimates = queries.map((query) => {
    const matches = query.tests.flatMap((test) =>
      test.kind === 'keys' ? matchesOf(statistics, test) || [] : [],
    )
    return Math.min(rowsOf(store, query), ...matches)
  })
  return Math.max(count, Math.round(estimates.reduce((sum, estimate) => sum + estimate, 0)))
}

function rowsOf({ statistics }: Store, { project, typeNumbers }: Query): number {
  return typeNumbers.reduce((sum, number) => sum + statistics.rowsOf(project, number), 0)
}

type Wanted = Pick<Query, 'project' | 'typeNumbers' | 'tests'>

/** Planning a type costs half a millisecond; a compartment says the same of all its types. */
function wantedOf(
  store: Store,
  principal: Principal,
  project: number,
  units: readonly string[],
  requests: readonly SearchRequest[],
): readonly Wanted[] {
  const wanted = requests.map((request) => wantedOfType(store, principal, project, units, request))
  const isAlike = ({ conditions }: SearchRequest, i: number) =>
    wanted[i]?.project === project &&
    wanted[i]?.tests.length === conditions.length &&
    conditions.length > 0 &&
    conditions.every((criterion) => 'kind' in criterion && criterion.kind === 'compartment')
  if (!requests.every(isAlike)) return wanted
  return wanted.slice(0, 1).map((first) => ({
    ...first,
    typeNumbers: wanted.flatMap(({ typeNumbers }) => typeNumbers),
  }))
}

/** The caller has asked whether the type may be searched. */
function wantedOfType(
  store: Store,
  principal: Principal,
  project: number,
  units: readonly string[],
  { type, conditions }: SearchRequest,
): Wanted {
  const scene = sightOf(store, principal, type, 'search', project, units)
  if (scene === undefined) throw forbidden()
  const tests = conditions.flatMap((criterion): Test | readonly Test[] => {
    if (!isCondition(criterion) || criterion.code !== '_project') return testOf(scene, criterion)
    // Outside the registry the project itself was chosen by it.
    if (!REGISTRY_TYPES.has(type)) return []
    const any = projectIds(criterion).map((id) => projectKey(store.keys, type, id))
    return { kind: 'keys', any }
  })
  return {
    project: scene.project,
    typeNumbers: [typeNumber(type)],
    tests: [...scene.visible, ...tests],
  }
}

/** The Principal's own project or the one that `_project` names; undefined: none in sight. */
async function projectOf(
  store: Store,
  principal: Principal,
  requests: readonly SearchRequest[],
): Promise<number | undefined> {
  const conditions = requests
    .filter(({ type }) => !REGISTRY_TYPES.has(type))
    .flatMap((request) => request.conditions)
  let { number } = principal.project
  for (const condition of conditions) {
    if (!isCondition(condition) || condition.code !== '_project') continue
    const found = await projectNumber(store, principal, projectIds(condition))
    if (found === undefined) return undefined
    number = found
  }
  return number
}

function projectIds({ values }: Condition): string[] {
  return values.map((value) => unescapeValue(value).replace(/^Project\//, ''))
}

/** A super admin names any one Project, everybody else only their own. */
async function projectNumber(
  store: Store,
  principal: Principal,
  ids: readonly string[],
): Promise<number | undefined> {
  if (!principal.isSuperAdmin) {
    return ids.includes(principal.project.id) ? principal.project.number : undefined
  }
  const [id, second] = ids
  if (id === undefined || second !== undefined) throw badRequest('_project takes one Project')
  return store.tenants.numberOf(store.connection, store.keys.rowId('Project', id))
}

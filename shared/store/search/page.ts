/** One page of a search, as a Principal sees it: one statement, one more for a total and each step of includes. */
import { REGISTRY_TYPES } from '../../access/policy.ts'
import type { Principal } from '../../access/principal.ts'
import type { Statement } from '../../database.ts'
import { badRequest, forbidden } from '../../errors.ts'
import { typeNumber } from '../../fhir/definitions.ts'
import { type Condition, isCondition, type SearchRequest } from '../../fhir/search.ts'
import { unescapeValue } from '../../fhir/search-values.ts'
import { projectKey, type Store } from '../context.ts'
import { allow } from '../read.ts'
import type { SearchPage } from '../repository.ts'
import { toVersion } from '../rows.ts'
import { type Part, pageStatement, type Query } from './compile.ts'
import { testOf } from './conditions.ts'
import { chooseDriver, type Driver } from './driver.ts'
import { followIncludes } from './include.ts'
import {
  type Order,
  orderOf,
  orderOfTypes,
  type Position,
  readCursor,
  reversed,
  type SortedRow,
  writeCursor,
} from './order.ts'
import type { Test } from './row-test.ts'
import { sightOf } from './sight.ts'
import { checkSortable, countRows, rowsOf } from './total.ts'
import { unitsOf } from './units.ts'

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

/** What search would do: the statement of its page and how it was chosen. Errors: as `search`. */
export async function plan(
  store: Store,
  principal: Principal,
  request: SearchRequest,
): Promise<{ readonly statement: Statement; readonly driver: Driver } | undefined> {
  allow(principal, request.type, 'search')
  const order = orderOf(request, store.keys)
  const [part] = partsOf(
    store,
    (await planned(store, principal, order, request, [request])).queries,
  )
  return part && { statement: pageStatement([part]), driver: part.driver }
}

async function searchPage(
  store: Store,
  principal: Principal,
  order: Order,
  paging: SearchRequest,
  requests: readonly SearchRequest[],
): Promise<SearchPage> {
  const { count, includes } = paging
  const { project, after, queries } = await planned(store, principal, order, paging, requests)
  const [rows, total] = await Promise.all([
    count === 0 || queries.length === 0 ? [] : findRows(store, queries),
    paging.total === 'none' ? undefined : countRows(store, queries, paging.total),
  ])
  const shown = rows.slice(0, count)
  const isBackwards = after?.isBackwards === true
  if (isBackwards) shown.reverse()
  const versions = shown.map((row) => toVersion(row))
  const follow = project !== undefined && includes.length > 0
  const { included, isCut } = follow
    ? await followIncludes(store, principal, project, includes, versions)
    : { included: [], isCut: false }
  const hasMore = rows.length > count
  const [first, last] = [shown.at(0), shown.at(-1)]
  // The page that a cursor comes from lies on its other side.
  const previous = (isBackwards ? hasMore : after !== undefined) ? first : undefined
  const next = hasMore || isBackwards ? last : undefined
  return {
    versions,
    total,
    next: next && writeCursor(order, next),
    previous: previous && writeCursor(order, previous, true),
    included,
    isCut,
  }
}

interface Planned {
  /** Undefined: none in sight. */
  readonly project: number | undefined
  readonly after: Position | undefined
  readonly queries: readonly Query[]
}

async function planned(
  store: Store,
  principal: Principal,
  order: Order,
  paging: SearchRequest,
  requests: readonly SearchRequest[],
): Promise<Planned> {
  const { count, offset, cursor } = paging
  if (requests.some(({ type }) => type === 'Binary')) {
    throw badRequest('Cannot search on Binary resource type')
  }
  if (cursor !== undefined && offset > 0) {
    throw badRequest('Cannot use both offset and cursor', '_cursor')
  }
  const after = cursor === undefined ? undefined : readCursor(order, cursor)
  const project = await projectOf(store, principal, requests)
  if (project === undefined) return { project, after, queries: [] }
  const units = await unitsOf(store, project, requests)
  // One row more than asked for tells whether there is a next page.
  const page = {
    order: after?.isBackwards ? reversed(order) : order,
    after,
    limit: count + 1,
    offset,
  }
  const wanted = wantedOf(store, principal, project, units, requests)
  return { project, after, queries: wanted.map((query) => ({ ...query, ...page })) }
}

function findRows(store: Store, queries: readonly Query[]): Promise<SortedRow[]> {
  return store.connection.query<SortedRow>(pageStatement(partsOf(store, queries)))
}

/** Errors: 400 too-costly for a sort by values, which looks at every match. */
function partsOf({ statistics }: Store, queries: readonly Query[]): readonly Part[] {
  return queries.map((query) => {
    checkSortable(statistics, query)
    if (query.typeNumbers.length > 1) return { query, driver: { kind: 'keys', ids: false } }
    const limit = query.limit + query.offset
    return {
      query,
      driver: chooseDriver(statistics, query.tests, rowsOf(statistics, query), limit),
    }
  })
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

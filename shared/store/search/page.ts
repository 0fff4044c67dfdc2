/** One page of a search, as a Principal sees it: one statement, a second one only for a total. */
import { REGISTRY_TYPES } from '../../access/policy.ts'
import type { Principal } from '../../access/principal.ts'
import { badRequest } from '../../errors.ts'
import { typeNumber } from '../../fhir/definitions.ts'
import type { Condition, SearchRequest } from '../../fhir/search.ts'
import { unescapeValue } from '../../fhir/search-values.ts'
import { projectKey, type Store, scopeOf } from '../context.ts'
import { allow } from '../read.ts'
import type { SearchPage } from '../repository.ts'
import { toVersion } from '../rows.ts'
import { countStatement, pageStatement, type Query } from './compile.ts'
import { testOf } from './conditions.ts'
import { chooseDriver, matchesOf } from './driver.ts'
import { orderOf, readCursor, type SortedRow, writeCursor } from './order.ts'
import type { Test } from './row-test.ts'
import { unitsOf } from './units.ts'

/** Up to here even an estimated total is counted: 9 ms, and pages of small results stay exact. */
const EXACT_COUNT = 10_000

const EMPTY: SearchPage = { versions: [], total: undefined, next: undefined }

/** Errors: 403, 400 for what cannot be searched or sorted by and for a damaged cursor. */
export async function search(
  store: Store,
  principal: Principal,
  request: SearchRequest,
): Promise<SearchPage> {
  const { type } = request
  allow(principal, type, 'search')
  if (type === 'Binary') throw badRequest('Cannot search on Binary resource type')
  if (request.cursor !== undefined && request.offset > 0) {
    throw badRequest('Cannot use both offset and cursor')
  }
  const order = orderOf(request)
  const after = request.cursor === undefined ? undefined : readCursor(order, request.cursor)
  const wanted = await testsOf(store, principal, request)
  if (wanted === undefined) return { ...EMPTY, total: request.total === 'none' ? undefined : 0 }
  // One row more than asked for tells whether there is a next page.
  const query: Query = {
    ...wanted,
    typeNumber: typeNumber(type),
    order,
    after,
    limit: request.count + 1,
    offset: request.offset,
  }
  const [rows, total] = await Promise.all([
    request.count === 0 ? [] : findRows(store, query),
    request.total === 'none' ? undefined : countRows(store, query, request.total),
  ])
  const shown = rows.slice(0, request.count)
  const last = rows.length > request.count ? shown.at(-1) : undefined
  return {
    versions: shown.map((row) => toVersion(row)),
    total,
    next: last && writeCursor(order, last),
  }
}

function findRows(store: Store, query: Query): Promise<SortedRow[]> {
  const rows = store.statistics.rowsOf(query.project, query.typeNumber)
  const limit = query.limit + query.offset
  const driver = chooseDriver(store.statistics, query.tests, rows, limit)
  return store.connection.query<SortedRow>(pageStatement(query, driver))
}

async function countRows(
  store: Store,
  query: Query,
  total: 'estimate' | 'accurate',
): Promise<number> {
  const max = total === 'accurate' ? undefined : EXACT_COUNT + 1
  const [row] = await store.connection.query<{ count: number }>(countStatement(query, max))
  const count = row?.count ?? 0
  if (total === 'accurate' || count <= EXACT_COUNT) return count
  const { statistics } = store
  const estimates = query.tests.flatMap((test) =>
    test.kind === 'keys' ? matchesOf(statistics, test) || [] : [],
  )
  const rows = statistics.rowsOf(query.project, query.typeNumber)
  return Math.max(count, Math.round(Math.min(rows, ...estimates)))
}

interface Wanted {
  readonly project: number
  readonly tests: readonly Test[]
}

/** Undefined when nothing can be in sight. */
async function testsOf(
  store: Store,
  principal: Principal,
  { type, conditions }: SearchRequest,
): Promise<Wanted | undefined> {
  const { keys } = store
  const isRegistry = REGISTRY_TYPES.has(type)
  let { project } = scopeOf(principal, type)
  const tests: Test[] = []
  if (isRegistry && !principal.isSuperAdmin) {
    tests.push({ kind: 'keys', any: [projectKey(keys, type, principal.project.id)] })
  }
  const named = conditions.filter(({ code }) => code === '_project')
  for (const condition of named) {
    const ids = projectIds(condition)
    if (isRegistry) tests.push({ kind: 'keys', any: ids.map((id) => projectKey(keys, type, id)) })
    else {
      const found = await projectNumber(store, principal, ids)
      if (found === undefined) return undefined
      project = found
    }
  }
  const units = await unitsOf(store, project, conditions)
  const scene = { keys, project, type, units }
  for (const condition of conditions) {
    if (condition.code !== '_project') tests.push(testOf(scene, condition))
  }
  return { project, tests }
}

function projectIds({ values, modifier }: Condition): string[] {
  if (modifier !== undefined) throw badRequest(`Invalid modifier :${modifier} for _project`)
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

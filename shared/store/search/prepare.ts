/** A search → what is to be asked of `resource`, in whose eyes, and by which way. */
import { REGISTRY_TYPES } from '../../access/policy.ts'
import type { Principal } from '../../access/principal.ts'
import { badRequest, forbidden } from '../../errors.ts'
import { typeNumber } from '../../fhir/definitions.ts'
import { testedCodes } from '../../fhir/parameter-paths.ts'
import { type Condition, isCondition, type SearchRequest } from '../../fhir/search.ts'
import { unescapeValue } from '../../fhir/search-values.ts'
import { projectKey, type Store } from '../context.ts'
import type { Query } from './compile.ts'
import { testOf } from './conditions.ts'
import { chooseDriver, type Driver, matchesOf, rareBelow } from './driver.ts'
import { withVisible } from './grant-tests.ts'
import { type Order, type Position, readCursor, reversed } from './order.ts'
import type { Scene, Test } from './row-test.ts'
import { sightOf } from './sight.ts'
import { checkSortable, rowsOf } from './total.ts'
import { unitsOf } from './units.ts'

export interface Prepared {
  /** Undefined: there is no such project in sight, and no query. */
  readonly project: number | undefined
  readonly after: Position | undefined
  readonly queries: readonly Query[]
}

/** `requests` differ in type and conditions only; `paging` holds what they share. Errors: 400, 403. */
export async function prepare(
  store: Store,
  principal: Principal,
  order: Order,
  paging: SearchRequest,
  requests: readonly SearchRequest[],
): Promise<Prepared> {
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
  const page = {
    order: after?.isBackwards ? reversed(order) : order,
    after,
    // One row more than asked for tells whether there is a next page.
    limit: count + 1,
    offset,
  }
  const wanted = wantedOf(store, principal, project, units, requests)
  return { project, after, queries: wanted.map((query) => ({ ...query, ...page })) }
}

/** Errors: 400 too-costly for a sort by values, which looks at every match. */
export function driverOf({ statistics }: Store, query: Query): Driver {
  checkSortable(statistics, query)
  if (query.typeNumbers.length > 1) return { kind: 'keys' }
  const limit = query.limit + query.offset
  return chooseDriver(statistics, query.tests, rowsOf(statistics, query), limit)
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
  { type, conditions, sort, count, offset }: SearchRequest,
): Wanted {
  const codes = [
    ...conditions.flatMap((criterion) => testedCodes(type, criterion)),
    ...sort.map(({ code }) => code),
  ]
  const scene = sightOf(store, principal, type, 'search', project, units, codes)
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
    tests: withVisible(scene.visible, tests, (test) => isRare(store, scene, test, count + offset)),
  }
}

/** As the driver would find its rows by it. */
function isRare(
  { statistics }: Store,
  { project, type }: Scene,
  test: Test,
  limit: number,
): boolean {
  if (test.kind !== 'keys') return false
  const rows = statistics.rowsOf(project, typeNumber(type))
  return matchesOf(statistics, test) <= rareBelow(rows, limit)
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

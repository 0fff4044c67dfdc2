/** A search → the query of `resource`, with the tests of the Principal, and the way to its rows. */

import { visibleRows, withVisible } from '../../../access/decisions/grant-predicates.ts'
import { REGISTRY_TYPES } from '../../../access/policy.ts'
import type { Principal } from '../../../access/principal.ts'
import { linkedProjects } from '../../../access/project-context.ts'
import { badRequest, forbidden } from '../../../errors.ts'
import { typeNumber } from '../../../fhir/definitions.ts'
import { isOfWords } from '../../../fhir/searched-text.ts'
import { UCUM } from '../../../fhir/values.ts'
import type { Bind } from '../../../platform/postgres/statement.ts'
import {
  type Condition,
  type Criterion,
  isCondition,
  type SearchRequest,
} from '../../../query/search-request.ts'
import { unescapeValue } from '../../../query/values.ts'
import { projectKey, type Store } from '../../rows/context.ts'
import { readCursor, reversed } from '../order/order.ts'
import type { Order, Position } from '../order/position.ts'
import { testOf } from '../tests/conditions.ts'
import { othersTest } from '../tests/dictionary.ts'
import { codesRead, type IdsTest, probeSql, reachOf, type Scene, type Test } from '../tests/test.ts'
import { scoreOf } from '../tests/texts.ts'
import { factsOf, matchesOf, type Part, type Query, rareBelow } from './query.ts'
import { wayOf } from './ways.ts'

export interface Prepared {
  /** The Principal's own or the one it names, then linked ones; none: none is visible. */
  readonly projects: readonly number[]
  readonly after: Position | undefined
  readonly queries: readonly Query[]
}

/** The requests differ in type and conditions only. Errors: 400, 403. */
export async function prepare(
  store: Store,
  principal: Principal,
  order: Order,
  requests: readonly [SearchRequest, ...SearchRequest[]],
): Promise<Prepared> {
  const { count, offset, cursor, hasNext = true } = requests[0]
  if (requests.some(({ type }) => type === 'Binary')) {
    throw badRequest('Cannot search on Binary resource type')
  }
  if (cursor !== undefined && offset > 0) {
    throw badRequest('Cannot use both offset and cursor', '_cursor')
  }
  const after = cursor === undefined ? undefined : readCursor(order, cursor)
  const projects = await projectsOf(store, principal, requests)
  const page = {
    order: after?.isBackwards ? reversed(order) : order,
    after,
    // One row more than asked for tells whether there is a next page.
    limit: hasNext ? count + 1 : count,
    offset,
  }
  const wanted = await Promise.all(
    projects.map(async (project) => {
      const shared = requests.filter(({ type }) => isShared(principal, project, type))
      const units = await unitsOf(store, project, shared)
      return wantedOf(store, principal, { project, units, requests: shared })
    }),
  )
  return { projects, after, queries: wanted.flat().map((query) => ({ ...query, ...page })) }
}

/** A Project that is only linked shows the types that it shares. */
export function isShared(principal: Principal, project: number, type: string): boolean {
  if (project === principal.project.number || principal.isSuperAdmin) return true
  return linkedProjects(principal, type).some(({ number }) => number === project)
}

export function partOf({ statistics }: Pick<Store, 'statistics'>, query: Query): Part {
  return wayOf(query, factsOf(statistics, query))
}

type Wanted = Pick<Query, 'project' | 'typeNumbers' | 'tests' | 'isLimited' | 'score'>

interface WantedScope {
  readonly project: number
  readonly units: readonly string[]
  readonly requests: readonly SearchRequest[]
}

/** Planning a type costs half a millisecond; a compartment says the same of all its types. */
function wantedOf(
  store: Store,
  principal: Principal,
  { project, units, requests }: WantedScope,
): readonly Wanted[] {
  const wanted = requests.map((request) =>
    wantedOfType(store, principal, { project, units, request }),
  )
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

interface WantedType {
  readonly project: number
  readonly units: readonly string[]
  readonly request: SearchRequest
}

/** The caller has asked whether the type may be searched. */
function wantedOfType(
  store: Store,
  principal: Principal,
  { project, units, request: { type, conditions, sort, count, offset } }: WantedType,
): Wanted {
  const { parameters } = principal.project
  const codes = [
    ...conditions.flatMap((criterion) => codesRead(type, criterion, parameters)),
    ...sort.map(({ code }) => code),
  ]
  const scene = visibleRows(store, principal, type, {
    interaction: 'search',
    project,
    units,
    codes,
  })
  if (scene === undefined) throw forbidden(`no right to search ${type}`)
  const tests = conditions.flatMap((criterion): Test | readonly Test[] => {
    if (!isNamed(criterion)) {
      const test = testOf(scene, criterion)
      return [test, ...leadingTo(store, scene, criterion, { test, limit: count + offset })]
    }
    // Outside the registry the project itself was chosen by it.
    if (!REGISTRY_TYPES.has(type)) return []
    const any = projectIds(criterion).map((id) => projectKey(store.keys, type, id))
    return { kind: 'keys', any }
  })
  return {
    project: scene.project,
    typeNumbers: [typeNumber(type)],
    score: codes.some(isOfWords) ? scoreOf(conditions) : undefined,
    isLimited: scene.visible.length > 0,
    tests: withVisible(scene.visible, joinable(store, tests), (test) =>
      isRare(store, scene, test, count + offset),
    ),
  }
}

interface Led {
  readonly test: Test
  readonly limit: number
}

/** Leads to the rows that `:not` lets through, where a walk may pass by many others first. */
function leadingTo(
  { statistics }: Pick<Store, 'statistics'>,
  scene: Scene,
  criterion: Criterion,
  { test, limit }: Led,
): readonly Test[] {
  if (!isCondition(criterion) || criterion.modifier !== 'not') return []
  if (test.kind !== 'filter' || test.none === undefined) return []
  const number = typeNumber(scene.type)
  const rows = statistics.rowsOf(scene.project, number)
  const passing = rows - matchesOf(statistics, test.none)
  const isKnown = statistics.knows(scene.project, number)
  if (isKnown && passing > rareBelow(rows, limit)) return []
  return [othersTest(scene, criterion.code, test.none) ?? []].flat()
}

/**
 * PostgreSQL makes a join of each test on a side table and looks for their best order: measured, 20 s for
 * 40 quantities. Further tests filter the rows that they find.
 */
const MOST_JOINED = 4

/** The first ones, those before others that are known to be rare. */
function joinable({ statistics }: Pick<Store, 'statistics'>, tests: readonly Test[]) {
  const expected = (test: IdsTest) => test.expected?.(statistics) ?? Infinity
  const ids = tests.filter((test) => test.kind === 'ids')
  if (ids.length <= MOST_JOINED) return tests
  const few = ids.toSorted((a, b) => expected(a) - expected(b)).slice(0, MOST_JOINED)
  return tests.map((test): Test => {
    if (test.kind !== 'ids' || few.includes(test)) return test
    const sql = (bind: Bind) => probeSql(test, bind)
    return { kind: 'filter', sql, isCostly: true, reach: reachOf(test) }
  })
}

/** As the driver would find its rows by it. */
export function isRare(
  { statistics }: Pick<Store, 'statistics'>,
  { project, type }: Scene,
  test: Test,
  limit: number,
): boolean {
  if (test.kind === 'join')
    return test.walk?.share !== undefined && test.walk.rows(statistics) === 0
  if (test.kind !== 'keys') return false
  const rows = statistics.rowsOf(project, typeNumber(type))
  return matchesOf(statistics, test) <= rareBelow(rows, limit)
}

/** The Principal's own Project and those it is linked to, or the ones that `_project` names of them. */
async function projectsOf(
  store: Store,
  principal: Principal,
  requests: readonly SearchRequest[],
): Promise<readonly number[]> {
  const { project, isSuperAdmin } = principal
  const conditions = requests
    .filter(({ type }) => !REGISTRY_TYPES.has(type))
    .flatMap((request) => request.conditions)
    .filter(isNamed)
  const named = conditions.map(projectIds)
  if (isSuperAdmin) return namedProjects(store, principal, named)
  return [project, ...(project.linked ?? [])]
    .filter(({ id }) => named.every((ids) => ids.includes(id)))
    .map(({ number }) => number)
}

/** True for a `_project` that names Projects. */
function isNamed(criterion: Criterion): criterion is Condition {
  return isCondition(criterion) && criterion.code === '_project' && criterion.modifier === undefined
}

function projectIds({ values }: Condition): string[] {
  return values.map((value) => unescapeValue(value).replace(/^Project\//, ''))
}

/** A super admin names any one Project. */
async function namedProjects(
  store: Store,
  { project }: Principal,
  named: readonly (readonly string[])[],
): Promise<readonly number[]> {
  const [ids] = named
  if (ids === undefined) return [project.number]
  const [id, second] = ids
  if (id === undefined || second !== undefined) throw badRequest('_project takes one Project')
  if (named.some((others) => others[0] !== id)) return []
  const found = await store.tenants.numberOf(store.connection, store.keys.rowId('Project', id))
  return found === undefined ? [] : [found]
}

// Which UCUM units a project's data has, so that a quantity is found in whatever unit it is.

/** One small statement, and only for what names a unit of UCUM somewhere. */
export async function unitsOf(
  { connection, keys }: Pick<Store, 'connection' | 'keys'>,
  project: number,
  requests: readonly Pick<SearchRequest, 'conditions'>[],
): Promise<readonly string[]> {
  if (!requests.some(({ conditions }) => conditions.some(namesUnit))) return []
  const rows = await connection.query<{ code: string }>({
    name: 'search-units',
    text: 'select distinct code from code where project = $1 and p = $2 and system = $3',
    values: [project, keys.units(project), UCUM],
  })
  return rows.map(({ code }) => code)
}

function namesUnit(criterion: Criterion): boolean {
  const texts = isCondition(criterion) ? criterion.values : [JSON.stringify(criterion)]
  return texts.some((text) => text.includes(`|${UCUM}|`))
}

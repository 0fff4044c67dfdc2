/** Compiles a search with the Principal's policies to a query of `resource` and its access path. */

import { visibleRows, withVisible } from '../../access/decisions/grant-predicates.ts'
import { REGISTRY_TYPES } from '../../access/policy.ts'
import type { Principal } from '../../access/principal.ts'
import { isShared } from '../../access/project-context.ts'
import { badRequest, forbidden } from '../../core/errors.ts'
import { typeNumber } from '../../fhir/definitions.ts'
import { UCUM } from '../../fhir/values.ts'
import type { Bind } from '../../postgres/statement.ts'
import { projectKey, type StoreContext } from '../../store/rows/context.ts'
import {
  type Condition,
  type Criterion,
  isCondition,
  isOfWords,
  type SearchRequest,
} from '../language/search-request.ts'
import { unescapeValue } from '../language/values.ts'
import { compilePredicate } from '../predicates/compile.ts'
import { otherCodesPredicate } from '../predicates/dictionary.ts'
import { readCursor, reversed } from '../predicates/order.ts'
import {
  codesRead,
  type IdsPredicate,
  type Predicate,
  predicateReadScope,
  probeSql,
  type SearchScope,
} from '../predicates/predicate.ts'
import type { Order, Position } from '../predicates/query.ts'
import {
  estimateMatches,
  type PlannedQuery,
  type Query,
  rareBelow,
  toPlannerStats,
} from '../predicates/query.ts'
import { scoreSql } from '../predicates/texts.ts'
import { chooseAccessPath } from './access-paths.ts'
import { createKeyLimit } from './key-count.ts'

interface Prepared {
  /** The Principal's or the named Project, then linked ones; empty: nothing is visible. */
  readonly projects: readonly number[]
  readonly after: Position | undefined
  readonly queries: readonly Query[]
}

/** The requests differ in type and conditions only. Errors: 400, 403. */
export async function prepare(
  store: StoreContext,
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
  requests.forEach(createKeyLimit(principal.project.parameters))
  const after = cursor === undefined ? undefined : readCursor(order, cursor)
  const projects = await searchedProjects(store, principal, requests)
  const page = {
    order: after?.isBackwards ? reversed(order) : order,
    after,
    // One extra row detects a next page.
    limit: hasNext ? count + 1 : count,
    offset,
  }
  const wanted = await Promise.all(
    projects.map(async (project) => {
      const shared = requests.filter(({ type }) => isShared(principal, project, type))
      const units = await findUnits(store, project, shared)
      return compileRequests(store, principal, { project, units, requests: shared })
    }),
  )
  return { projects, after, queries: wanted.flat().map((query) => ({ ...query, ...page })) }
}

export function planQuery(
  { statistics }: Pick<StoreContext, 'statistics'>,
  query: Query,
): PlannedQuery {
  return chooseAccessPath(query, toPlannerStats(statistics, query))
}

type CompiledRequest = Pick<
  Query,
  'project' | 'typeNumbers' | 'predicates' | 'hasPolicyTests' | 'score'
>

interface WantedScope {
  readonly project: number
  readonly units: readonly string[]
  readonly requests: readonly SearchRequest[]
}

/** Merges the types of a compartment into one query: their conditions are equal, and planning each is slow. */
function compileRequests(
  store: StoreContext,
  principal: Principal,
  { project, units, requests }: WantedScope,
): readonly CompiledRequest[] {
  const wanted = requests.map((request) =>
    compileRequest(store, principal, { project, units, request }),
  )
  const isAlike = ({ conditions }: SearchRequest, i: number) =>
    wanted[i]?.project === project &&
    wanted[i]?.predicates.length === conditions.length &&
    conditions.length > 0 &&
    conditions.every((criterion) => 'kind' in criterion && criterion.kind === 'compartment')
  if (!requests.every(isAlike)) return wanted
  return wanted.slice(0, 1).map((first) => ({
    ...first,
    typeNumbers: wanted.flatMap(({ typeNumbers }) => typeNumbers),
  }))
}

interface TypeRequest {
  readonly project: number
  readonly units: readonly string[]
  readonly request: SearchRequest
}

function compileRequest(
  store: StoreContext,
  principal: Principal,
  { project, units, request: { type, conditions, sort, count, offset } }: TypeRequest,
): CompiledRequest {
  const { parameters } = principal.project
  const codes = [
    ...conditions.flatMap((criterion) => codesRead(type, criterion, parameters)),
    ...sort.map(({ code }) => code),
  ]
  const scope = visibleRows(store, principal, type, {
    interaction: 'search',
    project,
    units,
    codes,
  })
  if (scope === undefined) throw forbidden(`no right to search ${type}`)
  const tests = conditions.flatMap((criterion): Predicate | readonly Predicate[] => {
    if (!isNamed(criterion)) {
      const predicate = compilePredicate(scope, criterion)
      return [
        predicate,
        ...rareOtherCodes(store, scope, criterion, { predicate, limit: count + offset }),
      ]
    }
    // For other types, `_project` has already selected the Projects.
    if (!REGISTRY_TYPES.has(type)) return []
    const any = projectIds(criterion).map((id) => projectKey(store.keys, type, id))
    return { kind: 'keys', any }
  })
  return {
    project: scope.project,
    typeNumbers: [typeNumber(type)],
    score: codes.some(isOfWords) ? scoreSql(conditions) : undefined,
    hasPolicyTests: scope.visible.length > 0,
    predicates: withVisible(scope.visible, joinable(store, tests), (predicate) =>
      isRare(store, scope, predicate, count + offset),
    ),
  }
}

/** Returns predicates that find the rows of `:not`, which a walk might reach late. */
function rareOtherCodes(
  { statistics }: Pick<StoreContext, 'statistics'>,
  scope: SearchScope,
  criterion: Criterion,
  { predicate, limit }: { readonly predicate: Predicate; readonly limit: number },
): readonly Predicate[] {
  if (!isCondition(criterion) || criterion.modifier !== 'not') return []
  if (predicate.kind !== 'filter' || predicate.none === undefined) return []
  const number = typeNumber(scope.type)
  const rows = statistics.typeRows(scope.project, number)
  const passing = rows - estimateMatches(statistics, predicate.none)
  const isKnown = statistics.knows(scope.project, number)
  if (isKnown && passing > rareBelow(rows, limit)) return []
  return [otherCodesPredicate(scope, criterion.code, predicate.none) ?? []].flat()
}

/** PostgreSQL's search for the best order of many joins is slow, so further predicates filter the rows. */
const MOST_JOINED = 4

/** Keeps the rarest side table predicates as joins; the others probe each row. */
function joinable(
  { statistics }: Pick<StoreContext, 'statistics'>,
  predicates: readonly Predicate[],
) {
  const expected = (predicate: IdsPredicate) => predicate.expected?.(statistics) ?? Infinity
  const ids = predicates.filter((predicate) => predicate.kind === 'ids')
  if (ids.length <= MOST_JOINED) return predicates
  const few = ids.toSorted((a, b) => expected(a) - expected(b)).slice(0, MOST_JOINED)
  return predicates.map((predicate): Predicate => {
    if (predicate.kind !== 'ids' || few.includes(predicate)) return predicate
    const sql = (bind: Bind) => probeSql(predicate, bind)
    return { kind: 'filter', sql, isCostly: true, reach: predicateReadScope(predicate) }
  })
}

export function isRare(
  { statistics }: Pick<StoreContext, 'statistics'>,
  { project, type }: SearchScope,
  predicate: Predicate,
  limit: number,
): boolean {
  if (predicate.kind === 'join')
    return predicate.walk?.share !== undefined && predicate.walk.rows(statistics) === 0
  if (predicate.kind !== 'keys') return false
  const rows = statistics.typeRows(project, typeNumber(type))
  return estimateMatches(statistics, predicate) <= rareBelow(rows, limit)
}

/** Returns the Principal's Project and its linked ones, or those among them that `_project` names. */
async function searchedProjects(
  store: StoreContext,
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

function isNamed(criterion: Criterion): criterion is Condition {
  return isCondition(criterion) && criterion.code === '_project' && criterion.modifier === undefined
}

function projectIds({ values }: Condition): string[] {
  return values.map((value) => unescapeValue(value).replace(/^Project\//, ''))
}

/** A super admin may name any single Project. */
async function namedProjects(
  store: StoreContext,
  { project }: Principal,
  named: readonly (readonly string[])[],
): Promise<readonly number[]> {
  const [ids] = named
  if (ids === undefined) return [project.number]
  const [id, second] = ids
  if (id === undefined || second !== undefined) throw badRequest('_project takes one Project')
  if (named.some((others) => others[0] !== id)) return []
  const found = await store.projectNumber(store.connection, store.keys.rowId('Project', id))
  return found === undefined ? [] : [found]
}

/** One small statement, run only when a condition uses a UCUM unit. */
export async function findUnits(
  { connection, keys }: Pick<StoreContext, 'connection' | 'keys'>,
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

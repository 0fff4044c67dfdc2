/** Criteria of conditional interactions and searches. https://hl7.org/fhir/R4/http.html#cond-update */

import { may, REGISTRY_TYPES } from '../access/policy.ts'
import { badRequest, tooCostly } from '../core/errors.ts'
import type { OwnParameters } from '../fhir/definitions-data.ts'
import { canonicalUrl, chosen, parseReference, type Resource } from '../fhir/resource.ts'
import { requireElements } from '../fhir/view.ts'
import { readQuery, wantsStrict } from '../request/negotiate.ts'
import { fhirBases } from '../request/reply.ts'
import type { CallerContext, FhirContext } from '../request/request.ts'
import { referenceLiterals } from '../search/language/parameter-paths.ts'
import { parseSearch } from '../search/language/search.ts'
import {
  asksForCodes,
  type Condition,
  type Criterion,
  isCondition,
  type Join,
  type JoinEnd,
  mapLeaves,
  type SearchRequest,
  someLeaf,
} from '../search/language/search-request.ts'
import { escapeValue } from '../search/language/values.ts'
import { requireFewValues } from '../search/planner/key-count.ts'
import { parseVersion } from '../store/rows/rows.ts'
import type { SearchPage } from '../store/rows/version.ts'
import { expandCodeConditions } from './codes.ts'

/** Parses `If-None-Exist`, which may start with its type and a question mark. Errors: 400 for another type. */
export function parseCriteriaQuery(type: string, text: string): URLSearchParams {
  const [start = ''] = /^[^=]*\?/.exec(text) ?? []
  const named = start.slice(start.lastIndexOf('/') + 1, -1)
  if (named !== '' && named !== type) {
    throw badRequest(`If-None-Exist must search ${type}, not ${named.slice(0, 64)}`)
  }
  return readQuery(text.slice(start.length))
}

/** Parameters of a search response: a page would hide other matches from the condition. */
const OF_RESPONSE = /^_(?:offset|cursor|(?:rev)?include)(?::|$)/

/** Errors: 400 without criteria, which would match every resource of the type, and for one without a value. */
export function readCondition(
  asking: CallerContext,
  type: string,
  query: URLSearchParams,
): SearchRequest {
  if (type === 'Binary') throw badRequest('Cannot search on Binary resource type')
  for (const name of query.keys()) {
    if (OF_RESPONSE.test(name)) throw badRequest(`${name} does not apply to a condition`, name)
  }
  const condition = parseSearch(type, query, { ...callerOptions(asking), isCondition: true })
  if (condition.conditions.length === 0) throw badRequest('Search criteria are required')
  return condition
}

export async function readFullCondition(
  asking: CallerContext,
  type: string,
  query: URLSearchParams,
): Promise<SearchRequest> {
  return resolved(asking, readCondition(asking, type, query))
}

/** Parses a search with the Project's parameters. Errors: 400. */
export function parseCallerSearch(
  asking: CallerContext,
  type: string,
  query: URLSearchParams,
  handling: 'strict' | 'lenient',
): SearchRequest {
  return parseSearch(type, query, { ...callerOptions(asking), handling })
}

function callerOptions({ services, principal }: CallerContext) {
  const { id, parameters } = principal.project
  return { fhirUrls: fhirBases(services, id), own: parameters }
}

/** Errors: 400; under strict handling also for unknown elements. */
export async function readSearch(
  context: FhirContext,
  type: string,
  query: URLSearchParams,
): Promise<SearchRequest> {
  if (wantsStrict(context.request.headers.prefer)) requireElements([type], query)
  return readTypeSearch(context, type, query)
}

/** Parses one query as a search of each type; a named element must exist in one of them. Errors: 400. */
export async function readSearches(
  context: FhirContext,
  types: readonly string[],
  query: URLSearchParams,
): Promise<readonly SearchRequest[]> {
  if (wantsStrict(context.request.headers.prefer)) requireElements(types, query)
  requireFewValues(types, query)
  return Promise.all(types.map((type) => readTypeSearch(context, type, query)))
}

async function readTypeSearch(
  context: FhirContext,
  type: string,
  query: URLSearchParams,
): Promise<SearchRequest> {
  const { handling } = context.preferences
  const request = await resolved(context, parseCallerSearch(context, type, query, handling))
  const isCount = request.summary === 'count' || request.count === 0
  return isCount ? { ...request, count: 0, total: 'accurate' } : request
}

/** Expands codes and resolves joins to the registry. Errors: 400, 403. */
export async function resolved(
  asking: CallerContext,
  request: SearchRequest,
): Promise<SearchRequest> {
  const { type, conditions } = request
  const isCoded = conditions.some((criterion) => someLeaf(type, criterion, asksForCodes))
  return withRegistry(asking, isCoded ? await expandCodeConditions(asking, request) : request)
}

export async function searchByQuery(
  asking: CallerContext,
  type: string,
  query: URLSearchParams,
  { count, cursor }: { readonly count: number; readonly cursor?: string | undefined },
): Promise<SearchPage> {
  const request = await resolved(asking, parseCallerSearch(asking, type, query, 'strict'))
  const { services, principal } = asking
  return services.repository.search(principal, { ...request, count, cursor })
}

const MOST_VERSIONS = 50

/** Finds the resource of a canonical or of a literal reference in its place. */
export async function findCanonical(
  asking: CallerContext,
  type: string,
  canonical: string,
): Promise<Resource | undefined> {
  const { services, principal } = asking
  const literal = parseReference(canonical)
  if (literal !== undefined) {
    if (literal.type !== type) return undefined
    const [version] = await services.repository.readMany(principal, [literal])
    return version && parseVersion(version)
  }
  const query = new URLSearchParams({ url: escapeValue(canonicalUrl(canonical)) })
  const { versions } = await searchByQuery(asking, type, query, { count: MOST_VERSIONS })
  return chosen(versions.map(parseVersion), canonical)
}

// Joins between the registry and a Project, which share no keys: the far end is searched first, with the caller's
// rights, and the join is replaced by ids

/** Resources at the far end of one join; paging keeps few in memory. */
const MOST_FOUND = 10_000
const PAGE = 1000

/** Errors: 400 too-costly for too many at the far end, 403 for a hidden parameter there. */
async function withRegistry(asking: CallerContext, request: SearchRequest): Promise<SearchRequest> {
  const { type } = request
  if (!request.conditions.some((criterion) => someLeaf(type, criterion, crosses))) return request
  // For a super admin: the Project of the far end.
  const named = request.conditions.filter((one) => isCondition(one) && one.code === '_project')
  const joined = (criterion: Criterion) => joinedIn({ asking, named }, type, criterion)
  return { ...request, conditions: await Promise.all(request.conditions.map(joined)) }
}

function crosses(leaf: Criterion, type: string): boolean {
  return 'ends' in leaf && leaf.ends.some((end) => isFar(type, leaf, end))
}

/** A chain to an id alone does not need the other side. */
function isFar(type: string, { kind }: Join, end: JoinEnd): boolean {
  if (REGISTRY_TYPES.has(type) === REGISTRY_TYPES.has(end.type)) return false
  const { criterion } = end
  const isId = isCondition(criterion) && criterion.code === '_id' && !criterion.modifier
  return kind === 'has' || !isId
}

interface Scope {
  readonly asking: CallerContext
  readonly named: readonly Criterion[]
}

function joinedIn(scope: Scope, type: string, criterion: Criterion): Promise<Criterion> {
  return mapLeaves(criterion, async (leaf) =>
    'ends' in leaf && someLeaf(type, leaf, crosses) ? joinedEnds(scope, type, leaf) : leaf,
  )
}

async function joinedEnds(scope: Scope, type: string, join: Join): Promise<Criterion> {
  const ends = await Promise.all(
    join.ends.map(async (end) => ({
      ...end,
      isFar: isFar(type, join, end),
      criterion: await joinedIn(scope, end.type, end.criterion),
    })),
  )
  const near = ends.filter((end) => !end.isFar)
  const far = ends.filter((end) => end.isFar)
  const values = await Promise.all(far.map((end) => readJoinValues(scope, type, join, end)))
  const found: Condition =
    join.kind === 'chain'
      ? { code: join.code, type: 'reference', modifier: undefined, values: values.flat() }
      : { code: '_id', type: 'token', modifier: undefined, values: values.flat() }
  const kept: Join = { ...join, ends: near }
  if (near.length === 0) return found
  return found.values.length === 0 ? kept : { kind: 'or', criteria: [kept, found] }
}

async function readJoinValues(
  { asking, named }: Scope,
  searched: string,
  { kind, code }: Join,
  { type, criterion }: JoinEnd,
): Promise<readonly string[]> {
  const { services, principal } = asking
  if (!may(principal, type, 'search')) return []
  const own = principal.project.parameters
  const isThere: Condition = { code, type: 'reference', modifier: 'missing', values: ['false'] }
  const conditions = [...named, criterion, ...(kind === 'has' ? [isThere] : [])]
  let request: SearchRequest = { ...parseSearch(type, ''), conditions, count: PAGE }
  const values = new Set<string>()
  for (let seen = 0; ; seen += PAGE) {
    if (seen === MOST_FOUND) {
      throw tooCostly(`More than ${MOST_FOUND} resources of type ${type} are to be joined`, code)
    }
    const { versions, next } = await services.repository.search(principal, request)
    for (const version of versions) {
      if (kind === 'chain') values.add(`${type}/${version.id}`)
      else for (const id of idsIn(parseVersion(version), code, searched, own)) values.add(id)
    }
    if (next === undefined) return [...values]
    request = { ...request, cursor: next }
  }
}

/** Returns the ids of the `target` resources that a reference parameter refers to. */
function idsIn(
  resource: Resource,
  code: string,
  target: string,
  own: OwnParameters | undefined,
): readonly string[] {
  return referenceLiterals(resource, code, own).flatMap((literal) => {
    const reference = parseReference(literal)
    return reference?.type === target ? [reference.id] : []
  })
}

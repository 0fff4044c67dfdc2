/** Search of one or several types, or of a compartment. https://hl7.org/fhir/R4/http.html#search */
import { REGISTRY_TYPES } from '../access/policy.ts'
import { badRequest, forbidden, issue, outcome } from '../core/errors.ts'
import { type Link, type SearchEntry, searchBundle, searchEntry } from '../fhir/bundle.ts'
import {
  COMPARTMENTS,
  compartmentParams,
  isResourceType,
  resourceTypes,
} from '../fhir/definitions.ts'
import type { OwnParameters } from '../fhir/definitions-data.ts'
import { publishedBy } from '../fhir/published.ts'
import { referenceTo } from '../fhir/resource.ts'
import { parseView, type View } from '../fhir/view.ts'
import { readForm } from '../request/negotiate.ts'
import { absoluteUrl, textReply, versionText } from '../request/reply.ts'
import type { CallerContext, FhirContext, FhirReply } from '../request/request.ts'
import { MAX_OFFSET } from '../search/language/search.ts'
import {
  type Condition,
  type Criterion,
  isCondition,
  type SearchRequest,
  WORDS,
} from '../search/language/search-request.ts'
import { unescapeValue } from '../search/language/values.ts'
import { ownJobProgress } from '../store/rows/upkeep-jobs.ts'
import type { SearchPage, Version } from '../store/rows/version.ts'
import { readSearch, readSearches } from './criteria.ts'
import { type PageEntry, pageReply } from './interaction.ts'

/** `GET Type?…` and `POST Type/_search`; a search never returns 404. */
export async function search(context: FhirContext, type: string): Promise<FhirReply> {
  if (type === 'Binary') throw badRequest('Cannot search on Binary resource type')
  const query = readSearchQuery(context)
  if (isTrue(query, '_explain')) return explain(context, type, query)
  const { services, principal } = context
  const request = await readSearch(context, type, omitParameters(query, '_deleted'))
  const { repository } = services
  if (isTrue(query, '_deleted')) {
    const page = await repository.searchDeleted(principal, request)
    return searchReply(context, type, { query, request, page })
  }
  const page = await repository.search(principal, request, context.request.signal)
  const standard = await standardFor(context, request, page)
  return searchReply(context, type, { query, request, page, standard })
}

/** Returns matching standard definitions that the Project does not define itself. */
async function standardFor(
  context: FhirContext,
  request: SearchRequest,
  { versions }: SearchPage,
): Promise<readonly SearchEntry[]> {
  const { count, offset, cursor } = request
  if (versions.length > 0 || cursor !== undefined) return []
  const standard = standardDefinitions(context, request)
  if (standard.length === 0 || (count > 0 && offset === 0)) return standard
  const first = { ...request, offset: 0, count: 1, total: 'none' } as const
  const { services, principal, request: asked } = context
  const own = await services.repository.search(principal, first, asked.signal)
  return own.versions.length === 0 ? standard : []
}

/** Errors: 400 unless true, false or empty. */
function isTrue(query: URLSearchParams, name: '_deleted' | '_explain'): boolean {
  const value = query.get(name) || 'false'
  if (value === 'true' || value === 'false') return value === 'true'
  throw badRequest(`Invalid ${name}: ${value}; use true or false`, name)
}

/** Searches named types, or those that `_type:not` or common parameters leave. Errors: 400, 403. */
export async function searchSystem(context: FhirContext): Promise<FhirReply> {
  const query = readSearchQuery(context)
  const types = searchedTypes(query) ?? typesLeft(query)
  if (types === undefined) throw badRequest('No types specified', '_type')
  if (types.includes('Binary')) throw badRequest('Cannot search on Binary resource type', '_type')
  return searchTypes(context, '', types, { query, asked: omitParameters(query, '_type', OTHERS) })
}

/** `GET Patient/1/Observation?…`, `GET Patient/1/*?…` and their POST forms. */
export async function searchCompartment(
  context: FhirContext,
  { type, id, target }: { readonly type: string; readonly id: string; readonly target: string },
): Promise<FhirReply> {
  const compartment = COMPARTMENTS.find((name) => name === type)
  if (compartment === undefined) throw badRequest(`There is no ${type} compartment`)
  const query = readSearchQuery(context)
  const members = resourceTypes.filter(
    (member) => member === type || compartmentParams(compartment, member).length > 0,
  )
  const isOfAll = target === '*'
  const named = isOfAll ? searchedTypes(query) : [target]
  const outside = named?.find((name) => !members.includes(name))
  if (outside !== undefined) {
    const text = `${outside} is not in the ${type} compartment`
    throw badRequest(text, isOfAll ? '_type' : undefined)
  }
  return searchTypes(context, `${type}/${id}/${target}`, named ?? members, {
    query,
    asked: isOfAll ? omitParameters(query, '_type', OTHERS) : query,
    compartment: `${type}/${id}`,
  })
}

/** Returns the same query if it has none of the parameters: copying costs as much as parsing. */
function omitParameters(query: URLSearchParams, ...names: readonly string[]): URLSearchParams {
  if (!names.some((name) => query.has(name))) return query
  const rest = new URLSearchParams(query)
  for (const name of names) rest.delete(name)
  return rest
}

const OTHERS = '_type:not'
const COMMON = ['_id', '_lastUpdated', '_tag', '_profile', '_security', '_source', '_compartment']

/** Returns the types of a search without `_type`; undefined when nothing narrows them. */
function typesLeft(query: URLSearchParams): readonly string[] | undefined {
  const names = [...query.keys()].map((name) => name.split(':')[0] ?? '')
  if (!query.has(OTHERS) && !names.some((name) => COMMON.includes(name))) return undefined
  const excluded = namedBy(query, OTHERS)
  return resourceTypes.filter(
    (type) => type !== 'Binary' && !REGISTRY_TYPES.has(type) && !excluded.includes(type),
  )
}

interface TypesSearch {
  readonly query: URLSearchParams
  readonly asked: URLSearchParams
  readonly compartment?: string | undefined
}

async function searchTypes(
  context: FhirContext,
  path: string,
  types: readonly string[],
  { query, asked, compartment }: TypesSearch,
): Promise<FhirReply> {
  const { services, principal } = context
  if (isTrue(query, '_explain'))
    throw badRequest('_explain is for searches of one type', '_explain')
  const named = new URLSearchParams(asked)
  const parseAll = () => readSearches(context, types, named)
  const strict = await parseAll()
  // A parameter unknown to one type is ignored for all.
  const ignored = strict.flatMap((request) => request.ignored)
  for (const { name, value } of ignored) named.delete(name, value)
  const inside =
    compartment === undefined ? [] : [{ kind: 'compartment', reference: compartment } as const]
  const understood = ignored.length === 0 ? strict : await parseAll()
  const requests = understood.map((request) => ({
    ...request,
    conditions: [...inside, ...request.conditions],
    ignored,
  }))
  const [first] = requests
  if (first === undefined) throw badRequest('No types specified', '_type')
  const { signal } = context.request
  const page =
    requests.length === 1
      ? await services.repository.search(principal, first, signal)
      : await services.repository.searchTypes(principal, requests, signal)
  return searchReply(context, path, { query, request: first, page })
}

function readSearchQuery({ request }: FhirContext): URLSearchParams {
  if (request.method !== 'POST') return request.query
  return new URLSearchParams([...request.query, ...readForm(request)])
}

/** Returns undefined without `_type`. Errors: 400 for an unknown type. */
function searchedTypes(query: URLSearchParams): readonly string[] | undefined {
  const types = namedBy(query, '_type')
  return types.length === 0 ? undefined : types
}

function namedBy(query: URLSearchParams, parameter: string): readonly string[] {
  const names = query.getAll(parameter).flatMap((value) => value.split(','))
  const types = [...new Set(names.filter((name) => name !== ''))]
  const unknown = types.find((type) => !isResourceType(type))
  if (unknown !== undefined) throw badRequest(`Unknown resource type: ${unknown}`, parameter)
  return types
}

interface PageReply {
  readonly query: URLSearchParams
  readonly request: SearchRequest
  readonly page: SearchPage
  readonly standard?: readonly SearchEntry[] | undefined
}

function searchReply(
  context: FhirContext,
  path: string,
  { query, request, page, standard = [] }: PageReply,
): Promise<FhirReply> {
  const isWhole = request.summary === undefined && request.elements === undefined
  const views = new Map<string, View | undefined>()
  const viewFor = (type: string) => {
    if (isWhole) return undefined
    if (!views.has(type)) views.set(type, parseView(type, query))
    return views.get(type)
  }
  const toSearchEntry = (version: Version, mode: SearchEntry['mode']): PageEntry => ({
    content: version.content ?? '',
    write() {
      const text = versionText(context, version)
      const view = mode === 'match' ? viewFor(version.type) : undefined
      return searchEntry({
        fullUrl: absoluteUrl(context.services, `${version.type}/${version.id}`),
        resource: view === undefined ? text : view(text),
        mode,
        score: version.score,
      })
    },
  })
  const standardEntry = (entry: SearchEntry): PageEntry => ({
    content: entry.resource,
    write() {
      const view = viewFor(request.type)
      const resource = view === undefined ? entry.resource : view(entry.resource)
      return searchEntry({ ...entry, resource })
    },
  })
  const end = request.offset + request.count
  const shown = standard.slice(request.offset, end)
  const size = page.versions.length + shown.length
  const found = { ...page, size, isMore: standard.length > end }
  const links = searchLinks(context, path, { request, query }, found)
  const total = page.total === undefined ? undefined : page.total + standard.length
  return pageReply(context, { type: 'searchset', total, links }, [
    ...page.versions.map((version) => toSearchEntry(version, 'match')),
    ...shown.map(standardEntry),
    ...page.included.map((version) => toSearchEntry(version, 'include')),
    ...warnings(request, page),
  ])
}

/** Returns at most one entry, placed last. */
function warnings({ ignored }: SearchRequest, { isTruncated }: SearchPage): PageEntry[] {
  const texts = new Map(ignored.map(({ name, text }) => [`${name} ${text}`, { name, text }]))
  const issues = [...texts.values()].map(({ name, text }) =>
    issue('warning', 'not-supported', text, { expression: name }),
  )
  if (isTruncated) {
    const text = 'Not everything is included: there are too many resources or steps'
    issues.push(issue('warning', 'too-costly', text))
  }
  if (issues.length === 0) return []
  const resource = JSON.stringify(outcome(undefined, ...issues))
  return [{ content: '', write: () => searchEntry({ fullUrl: '', resource, mode: 'outcome' }) }]
}

type Found = Pick<SearchPage, 'next' | 'previous' | 'isTotalEstimated'> & {
  readonly size: number
  /** True when there are more matches without a cursor. */
  readonly isMore: boolean
}

/** Links contain the query as understood, sorted by parameter name. */
function searchLinks(
  context: FhirContext,
  path: string,
  { request, query }: Pick<PageReply, 'request' | 'query'>,
  page: Found,
): Link[] {
  const { count, offset, ignored } = request
  const understood = new URLSearchParams(query)
  for (const { name, value } of ignored) understood.delete(name, value)
  understood.delete('_')
  understood.sort()
  const unpaged = omitParameters(understood, '_cursor', '_offset')
  const linkTo = (relation: Link['relation'], asked: URLSearchParams): Link => {
    const text = asked.toString()
    const url = absoluteUrl(context.services, text === '' ? path : `${path}?${text}`)
    return { relation, url }
  }
  const link = (relation: Link['relation'], changes: Readonly<Record<string, string>>) => {
    const changed = new URLSearchParams(unpaged)
    for (const [name, value] of Object.entries(changes)) changed.set(name, value)
    changed.sort()
    return linkTo(relation, changed)
  }
  // It names the total that the page has; another page may ask for an accurate one.
  const isEstimate = page.isTotalEstimated === true && request.total === 'accurate'
  const self = linkTo('self', isEstimate ? estimated(understood) : understood)
  const links: Link[] = [self]
  if (count === 0 || page.size === 0) return links
  const isOffset = query.has('_offset')
  if (unpaged === understood) links.push(linkTo('first', understood))
  else links.push(link('first', isOffset ? { _offset: '0' } : {}))
  const end = offset + count
  // Beyond the largest offset, a cursor leads on.
  if (page.next !== undefined && !(isOffset && end <= MAX_OFFSET)) {
    links.push(link('next', { _cursor: page.next }))
  } else if (page.next !== undefined || page.isMore) {
    links.push(link('next', { _offset: String(end) }))
  }
  if (offset > 0) links.push(link('previous', { _offset: String(Math.max(0, offset - count)) }))
  if (page.previous !== undefined) links.push(link('previous', { _cursor: page.previous }))
  return links
}

function estimated(query: URLSearchParams): URLSearchParams {
  const changed = new URLSearchParams(query)
  changed.set('_total', 'estimate')
  return changed
}

/**
 * Returns the standard definitions, which no Project stores, that `StructureDefinition?url=…`, `SearchParameter?base=…`
 * and similar searches match, on all pages.
 */
function standardDefinitions(
  { services, principal }: CallerContext,
  request: SearchRequest,
): readonly SearchEntry[] {
  const { type, conditions } = request
  const asked = conditions.find((one): one is Condition => isNaming(type, one))
  if (asked === undefined) return []
  const named = asked.values.flatMap((value) => publishedBy(type, asked.code, unescapeValue(value)))
  const found = new Map(named.map((definition) => [String(definition.url), definition]))
  if (found.size === 0) return []
  const others = conditions.filter((criterion) => criterion !== asked)
  const isFound = services.repository.finder(principal, { ...request, conditions: others })
  return [...found.values()].filter(isFound).map((definition) => ({
    fullUrl: absoluteUrl(services, referenceTo(definition)),
    resource: JSON.stringify(definition),
    mode: 'match',
  }))
}

/** Types searchable by more than the url. */
const NAMING: ReadonlyMap<string, readonly string[]> = new Map([
  ['SearchParameter', ['_id', 'url', 'base', 'code']],
  ['StructureDefinition', ['_id', 'url', 'name', 'type']],
])

function isNaming(type: string, criterion: Criterion): criterion is Condition {
  if (!isCondition(criterion)) return false
  const { code, modifier } = criterion
  if (!(NAMING.get(type) ?? ['_id', 'url']).includes(code)) return false
  return modifier === undefined || modifier === 'exact'
}

/** Shows cost and index state instead of rows; the plan reveals more than the caller's data. Errors: 403. */
async function explain(
  context: FhirContext,
  type: string,
  query: URLSearchParams,
): Promise<FhirReply> {
  const { services, principal } = context
  if (!principal.isProjectAdmin && !principal.isSuperAdmin) throw forbidden()
  const unready = await unreadyIssues(context, type)
  const parameters = ready(principal.project.parameters)
  const asked = { ...principal, project: { ...principal.project, parameters } }
  const request = await readSearch({ ...context, principal: asked }, type, query)
  const { driver, sql, plan } = await services.repository.explain(asked, request)
  const text = `Found by ${driver ?? 'nothing'}`
  const plans = issue('information', 'informational', text, {
    diagnostics: [sql, ...plan].join('\n'),
  })
  const resource = JSON.stringify(outcome(undefined, plans, ...unready))
  const links: Link[] = [
    { relation: 'self', url: absoluteUrl(services, `${type}?${query.toString()}`) },
  ]
  const entries: SearchEntry[] = [{ fullUrl: '', resource, mode: 'outcome' }]
  return textReply(200, searchBundle({ type: 'searchset', links }, entries))
}

/** Includes parameters still being indexed, so that they can be explained. */
function ready(own: OwnParameters | undefined): OwnParameters | undefined {
  if (own === undefined) return undefined
  const types = [...own.types].map(([type, codes]) => {
    const all = [...codes].map(([code, one]) => [code, { ...one, isReady: true }] as const)
    return [type, new Map(all)] as const
  })
  return { ...own, types: new Map(types), fullText: own.fullText && 'ready' }
}

async function unreadyIssues({ services, principal }: FhirContext, type: string) {
  const { project } = principal
  const own = [...(project.parameters?.types.get(type)?.values() ?? [])]
  const unready = own.filter(({ isReady }) => !isReady).map(({ code }) => code)
  if (project.parameters?.fullText === 'indexing') unready.push(...WORDS)
  if (unready.length === 0) return []
  const job = await services.repository.withStore(({ connection }) =>
    ownJobProgress(connection, project.number),
  )
  const { seen = 0, total = 0 } = job ?? {}
  return unready.map((code) => {
    const text = `Search parameter ${code} is not ready: ${seen} of ${total} resources are indexed`
    return issue('warning', 'incomplete', text, { expression: code })
  })
}

/** Parses the entries of a batch or transaction. https://hl7.org/fhir/R4/http.html#transaction */
import { badRequest, badStructure, HttpError, tooCostly } from '../../core/errors.ts'
import { typeElements } from '../../fhir/definitions.ts'
import { isObject, isResource, type Resource } from '../../fhir/resource.ts'
import { readJson, readQuery, requireKept } from '../../request/negotiate.ts'
import { fhirBases, withoutBase } from '../../request/reply.ts'
import type { FhirContext, FindRoute, Route } from '../../request/request.ts'
import type { SearchRequest } from '../../search/language/search-request.ts'
import type { ConditionalReference } from '../conditional-references.ts'

export interface Entry {
  readonly index: number
  readonly method: string
  readonly path: string
  readonly query: URLSearchParams
  readonly route: Route
  readonly fullUrl: string | undefined
  readonly resource: Resource | undefined
  readonly headers: Readonly<Record<string, string>>
}

export interface BundleRequest {
  readonly type: 'batch' | 'transaction'
  /** In bundle order; an error stands for an invalid entry. */
  readonly entries: readonly (Entry | HttpError)[]
}

/** Errors: 415, 400 for anything other than a batch or transaction within the limits. */
export function readBundle(
  { request, services, principal }: FhirContext,
  findRoute: FindRoute,
): BundleRequest {
  const limits = services.config
  const bases = fhirBases(services, principal.project.id)
  const body = readJson(request)
  if (!isObject(body) || body.resourceType !== 'Bundle') throw badRequest('Not a bundle')
  requireMembers(body, '', 'Bundle')
  const { type, entry } = body
  if (type !== 'batch' && type !== 'transaction') {
    const found = typeof type === 'string' ? type.slice(0, 64) : typeof type
    throw badRequest(`Unrecognized bundle type: ${found}`, 'type')
  }
  if (!Array.isArray(entry) || entry.length === 0) throw badRequest('Missing bundle entries')
  if (entry.length > limits.maxBatchEntries) {
    throw tooCostly(`More than ${limits.maxBatchEntries} bundle entries`)
  }
  const entries = withKnownCriteria(
    withDistinctUrls(entry.map((item, index) => readEntry(item, index, bases, findRoute))),
  )
  const writes = entries.filter((item) => !(item instanceof HttpError) && item.method !== 'GET')
  if (type === 'transaction' && writes.length > limits.maxTransactionWrites) {
    throw tooCostly(`More than ${limits.maxTransactionWrites} writes in a transaction`)
  }
  return { type, entries }
}

/** Replaces entries that repeat a fullUrl: a reference to it could mean either resource. */
function withDistinctUrls(entries: readonly (Entry | HttpError)[]): (Entry | HttpError)[] {
  const urls = new Set<string>()
  return entries.map((entry) => {
    if (entry instanceof HttpError || entry.resource === undefined || !entry.fullUrl) return entry
    const { fullUrl, index } = entry
    if (!urls.has(fullUrl)) {
      urls.add(fullUrl)
      return entry
    }
    return badRequest('Another entry has the same fullUrl', entryPath(index, '.fullUrl'))
  })
}

/** The search comes before the other entry has an id, so it would match nothing, and each repeat would create again. */
function withKnownCriteria(entries: readonly (Entry | HttpError)[]): (Entry | HttpError)[] {
  const urns = new Set(
    entries.flatMap((entry) =>
      entry instanceof HttpError || entry.fullUrl === undefined ? [] : urnKey(entry.fullUrl),
    ),
  )
  return entries.map((entry) => {
    if (entry instanceof HttpError) return entry
    const criteria = entry.headers['if-none-exist'] ?? ''
    const isOpen = criteria.match(URN)?.some((urn) => urns.has(urnKey(urn))) === true
    if (!isOpen) return entry
    const place = entryPath(entry.index, '.request.ifNoneExist')
    return badRequest('ifNoneExist names another entry; use its identifier', place)
  })
}

/** Names of entries: `urn:uuid:…` and `urn:oid:…`, in a url with escaped colons. */
export const URN =
  /urn(?::|%3A)uuid(?::|%3A)[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}|urn(?::|%3A)oid(?::|%3A)[0-2](?:\.\d+)+/gi

/** Normalises a urn: percent signs decoded, lower case. */
export function urnKey(urn: string): string {
  return urn.replaceAll(/%3A/gi, ':').toLowerCase()
}

/** Errors: 400 for a member that FHIR does not define, such as a misspelt condition. */
function requireMembers(
  value: Readonly<Record<string, unknown>>,
  prefix: string,
  path: string,
): void {
  for (const name in value) {
    if (members().has(prefix + name.replace(/^_/, ''))) continue
    const member = name.slice(0, 64)
    throw badStructure(`Invalid additional property "${member}"`, `${path}.${member}`)
  }
}

let knownMembers: ReadonlySet<string> | undefined

/** Returns the paths of the elements of a Bundle. */
function members(): ReadonlySet<string> {
  knownMembers ??= new Set(['resourceType', ...typeElements('Bundle').map(({ path }) => path)])
  return knownMembers
}

/** FHIRPath of an entry. */
export function entryPath(index: number, below = ''): string {
  return `Bundle.entry[${index}]${below}`
}

function readEntry(
  entry: unknown,
  index: number,
  bases: readonly string[],
  findRoute: FindRoute,
): Entry | HttpError {
  try {
    return parseEntry(entry, index, bases, findRoute)
  } catch (error) {
    if (error instanceof HttpError) return error
    throw error
  }
}

function parseEntry(
  entry: unknown,
  index: number,
  bases: readonly string[],
  findRoute: FindRoute,
): Entry {
  const request = isObject(entry) ? entry.request : undefined
  if (!isObject(entry) || !isObject(request)) {
    throw badRequest('Missing Bundle entry request', entryPath(index, '.request'))
  }
  requireMembers(entry, 'entry.', entryPath(index))
  requireMembers(request, 'entry.request.', entryPath(index, '.request'))
  const { method, url } = request
  if (typeof method !== 'string') {
    throw badRequest('Missing Bundle entry request method', entryPath(index, '.request.method'))
  }
  if (typeof url !== 'string') {
    throw badRequest('Missing Bundle entry request url', entryPath(index, '.request.url'))
  }
  const { path, query } = splitUrl(url, bases)
  const route = findRoute(method, path)
  if (route.kind === 'bundle') {
    throw badRequest('Nested bundles are not allowed', entryPath(index, '.request.url'))
  }
  if (method !== 'POST' && /urn(:|%3a)uuid(:|%3a)/i.test(query.toString())) {
    throw badRequest(
      'A urn:uuid in a conditional url cannot be resolved',
      entryPath(index, '.request.url'),
    )
  }
  const headers = readHeaders(request, index)
  requireKept(method, route, headers, (header) => entryPath(index, conditionPath(header)))
  return {
    index,
    method,
    path,
    query,
    route,
    fullUrl: typeof entry.fullUrl === 'string' ? entry.fullUrl : undefined,
    resource: entryResource(entry.resource, route),
    headers,
  }
}

/** An operation may accept other bodies, such as a GraphQL query; it parses its own input. */
function entryResource(value: unknown, { kind }: Route): Resource | undefined {
  if (isResource(value)) return value
  return kind === 'operation' && isObject(value) ? (value as Resource) : undefined
}

function splitUrl(url: string, bases: readonly string[]): { path: string; query: URLSearchParams } {
  const mark = url.indexOf('?')
  const path = withoutBase(bases, mark < 0 ? url : url.slice(0, mark))
  return {
    // The look behind keeps a long run of slashes from being read once for each of them.
    path: path.replace(/^\/+|(?<!\/)\/+$/g, '').replaceAll('%24', '$'),
    query: readQuery(mark < 0 ? '' : url.slice(mark + 1)),
  }
}

const CONDITIONS = [
  ['ifMatch', 'if-match'],
  ['ifNoneMatch', 'if-none-match'],
  ['ifModifiedSince', 'if-modified-since'],
  ['ifNoneExist', 'if-none-exist'],
] as const

/** Errors: 400 for a condition that is not a string. */
function readHeaders(
  request: Readonly<Record<string, unknown>>,
  index: number,
): Record<string, string> {
  const headers: Record<string, string> = {}
  for (const [member, header] of CONDITIONS) {
    const value = request[member]
    if (value === undefined || value === '') continue
    if (typeof value !== 'string') {
      throw badStructure(`${member} must be a string`, entryPath(index, `.request.${member}`))
    }
    if (member === 'ifModifiedSince' && Number.isNaN(Date.parse(value))) {
      throw badStructure(`${member} must be an instant`, entryPath(index, `.request.${member}`))
    }
    headers[header] = value
  }
  return headers
}

function conditionPath(header: string): string {
  const [member] = CONDITIONS.find(([, name]) => name === header.toLowerCase()) ?? []
  return `.request.${member}`
}

// Processing order is fixed: https://hl7.org/fhir/R4/http.html#trules
const ORDER = ['DELETE', 'POST', 'PUT', 'PATCH', 'operation', 'search', 'GET'] as const

export type Stage = (typeof ORDER)[number]

export function groupByStage<T extends { readonly entry: Entry }>(
  items: readonly T[],
): readonly { readonly stage: Stage; readonly items: readonly T[] }[] {
  const stages = Map.groupBy(items, ({ entry }) => entryStage(entry))
  return ORDER.flatMap((stage) => {
    const found = stages.get(stage)
    return found === undefined ? [] : [{ stage, items: found }]
  })
}

function entryStage({ method, route }: Entry): Stage {
  if (route.kind === 'operation') return 'operation'
  if (route.kind === 'search' || route.kind === 'search-form') return 'search'
  return ORDER.find((stage) => stage === method) ?? 'GET'
}

export interface EntryPlan {
  readonly entry: Entry
  readonly key: string
  readonly condition: SearchRequest | undefined
  readonly references: readonly ConditionalReference[]
  readonly id?: string
}

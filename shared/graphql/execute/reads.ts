/** Store reads for fields: resources by id, and searches. */

import { may } from '../../access/policy.ts'
import type { Principal } from '../../access/principal.ts'
import { getOrInsert } from '../../core/cache.ts'
import { badRequest, forbidden, HttpError, notFound } from '../../core/errors.ts'
import { isResourceType } from '../../fhir/definitions.ts'
import { parseJson } from '../../fhir/json.ts'
import { isObject, isResource, parseReference, type Resource } from '../../fhir/resource.ts'
import { READ, SEARCH } from '../../request/quota.ts'
import { fhirBases, versionText, withoutBase } from '../../request/reply.ts'
import { parseCallerSearch as criteria, resolved } from '../../rest/criteria.ts'
import type { SearchRequest } from '../../search/language/search-request.ts'
import type { ReferenceSearch } from '../../search/per-reference.ts'
import { equals } from '../../store/lookups.ts'
import type { SearchPage, Version } from '../../store/rows/version.ts'
import { restQuery } from '../schema/arguments.ts'
import type { Given } from '../schema/elements.ts'
import type { Args } from './plan.ts'
import { type Pending, type ReferenceTarget, type Run, tooManySearches } from './run.ts'

interface Reference {
  readonly type: string
  readonly id: string
}

export interface Search {
  readonly type: string
  readonly args: Args
  readonly hasTotal: boolean
  readonly hasRows: boolean
  readonly hasNext: boolean
}

/** Cost of a resource, in list values. */
const RESOURCE_WORK = 50

/** Caches a search result, as visible to the Principal. */
export function rememberFound(run: Run, version: Version): void {
  const { principal } = run.config.interaction
  run.spend('characters', version.content?.length ?? 0)
  // Keeps text: parsed objects die young, while hundreds of retained ones would be copied by every collection.
  if (isSeenAlike(principal)) run.known.set(`${version.type}/${version.id}`, version)
}

export function parseFound(run: Run, version: Version): Resource {
  rememberFound(run, version)
  return parseShown(run, shownText(run, version))
}

/** Returns a version's text as visible to its Principal. */
export function shownText(run: Run, version: Version): string {
  run.turns.spend(RESOURCE_WORK)
  return versionText(run.config.interaction, version)
}

/** True when fields may read more of a resource than the members they name. */
export function isReadWhole({ config }: Run, text: string): boolean {
  // A `#` reference leads to a contained resource or to the resource itself. The single-character search is faster.
  return config.asksWhole || (text.includes('#') && text.includes('"#'))
}

export function readText({ config }: Run, text: string): unknown {
  return config.keepsDecimals ? parseJson(text) : JSON.parse(text)
}

export function parseShown(run: Run, text: string): Resource {
  // Our own text, validated when written.
  return readText(run, text) as Resource
}

/** True when search results and reads by id show the same content. */
function isSeenAlike({ rules, isSuperAdmin, project }: Principal): boolean {
  return rules === undefined && !isSuperAdmin && (project.linked ?? []).length === 0
}

export async function readRoot(run: Run, { type, id }: Reference): Promise<Resource> {
  const { services, principal } = run.config.interaction
  await run.account.charge(READ)
  const version = await services.repository.read(principal, type, id)
  run.account.add({ interaction: 'read', types: [type], count: 1 })
  return parseFound(run, version)
}

/** Errors: 403 for a type without read access, 404. */
export function read(run: Run, type: string, id: string): Version | Loading {
  if (!isResourceType(type)) throw notFound()
  const { principal } = run.config.interaction
  if (!may(principal, type, 'read')) throw forbidden(`no right to read ${type}`)
  return load(run, { type, id }) ?? throwNotFound()
}

type Loading = Pending<ReferenceTarget, Version | undefined>

export function isPending(value: object): value is Loading {
  return 'run' in value && 'item' in value
}

function load(run: Run, { type, id }: Reference): Version | undefined | Loading {
  const name = `${type}/${id}`
  if (run.known.has(name)) return run.known.get(name)
  const asked = run.asked.get(name)
  if (asked !== undefined) return asked
  const item = { type, id, name }
  const made: Loading = { key: 'read', item, run: (sought) => readMany(run, sought) }
  run.asked.set(name, made)
  return made
}

async function readMany(run: Run, sought: readonly ReferenceTarget[]) {
  const { known, account, config } = run
  const { services, principal, request } = config.interaction
  const distinct = [...new Set(sought)].filter(({ name }) => !known.has(name))
  const found = new Map<string, Version | undefined>()
  if (distinct.length > 0) {
    run.spend('resources', distinct.length)
    await account.charge(READ * distinct.length)
    const [only, another] = distinct
    const versions =
      only !== undefined && another === undefined
        ? [await readOne(run, only)]
        : await services.repository.readMany(principal, distinct, request.signal)
    const types = [...new Set(distinct.map(({ type }) => type))]
    const count = versions.filter((version) => version !== undefined).length
    account.add({ interaction: 'read', types, count })
    for (const [i, { name }] of distinct.entries()) found.set(name, versions[i])
  }
  return sought.map(({ name }) => () => {
    if (known.has(name)) return known.get(name)
    const version = found.get(name)
    run.spend('characters', version?.content?.length ?? 0)
    known.set(name, version)
    return version
  })
}

/** Like `readMany`, but batched with reads of other requests. */
async function readOne({ config }: Run, { type, id }: Reference): Promise<Version | undefined> {
  const { services, principal } = config.interaction
  try {
    return await services.repository.read(principal, type, id)
  } catch (error) {
    if (error instanceof HttpError && ABSENT.has(error.status)) return undefined
    throw error
  }
}

const ABSENT: ReadonlySet<number> = new Set([403, 404, 410])

/** Resolves a Reference; null for an unrequested type or without a literal reference. Errors: 404, unless optional. */
export function resolveReference(
  run: Run,
  source: unknown,
  owner: Resource | undefined,
  { type, optional }: Given,
): Resource | Version | null | Loading {
  const reference = isObject(source) ? source.reference : undefined
  const isWanted = (found: string) => typeof type !== 'string' || type === found
  if (typeof reference === 'string' && reference.startsWith('#')) {
    const resource = contained(owner, reference.slice(1))
    if (resource !== undefined) return isWanted(resource.resourceType) ? resource : null
  }
  if (typeof reference !== 'string') return null
  // Most references use the key of the cache.
  const isKnown = run.known.has(reference)
  const before = isKnown ? run.known.get(reference) : run.asked.get(reference)
  if (before !== undefined && typeof type !== 'string') return before
  const target = parseLocalReference(run, reference)
  if (target === undefined || !isResourceType(target.type)) {
    return optional === true ? null : throwNotFound()
  }
  if (!isWanted(target.type)) return null
  return load(run, target) ?? (optional === true ? null : throwNotFound())
}

export function throwNotFound(): never {
  throw notFound()
}

function parseLocalReference({ config }: Run, reference: string): Reference | undefined {
  const { services, principal } = config.interaction
  return parseReference(withoutBase(fhirBases(services, principal.project.id), reference))
}

function contained(owner: Resource | undefined, id: string): Resource | undefined {
  if (id === '') return owner
  const all: readonly unknown[] = Array.isArray(owner?.contained) ? owner.contained : []
  return all.filter(isResource).find((resource) => resource.id === id)
}

export function search(run: Run, wanted: Search): Pending<undefined, SearchPage> {
  const { services, principal, request } = run.config.interaction
  const { type, args } = wanted
  return {
    key: `search ${searchKey(wanted)}`,
    item: undefined,
    run: async (items) => {
      const searched = await cachedRequest(run, wanted)
      run.spend('searches', 1)
      await run.account.charge(SEARCH)
      const page = await services.repository.search(principal, searched, request.signal)
      run.spend('resources', page.versions.length)
      run.account.add({
        interaction: 'search-type',
        types: [type],
        query: `${type}?${restQuery(type, args.given)}`,
        count: page.versions.length,
      })
      return items.map(() => () => page)
    },
  }
}

/** Finds referring resources. Fields with equal arguments on one level share a statement. */
export function findReferring(
  run: Run,
  wanted: Search,
  reference: string,
): Pending<string, SearchPage> {
  return {
    key: `refer ${searchKey(wanted)}`,
    item: reference,
    run: (references) => searchReferring(run, wanted, references),
  }
}

async function searchReferring(run: Run, wanted: Search, references: readonly string[]) {
  const { type, args, hasTotal } = wanted
  const { principal, services, request } = run.config.interaction
  const searched = await cachedRequest(run, wanted)
  const distinct = [...new Set(references)]
  const left = run.limitFor('searches') - run.used.searches
  const allowed = distinct.slice(0, Math.max(0, left))
  run.used.searches += allowed.length
  await run.account.charge(SEARCH * allowed.length)
  const code = String(args.given._reference)
  const each = { request: searched, code, references: allowed }
  const pages = await searchPages(run, each)
  const rows = pages.reduce((sum, page) => sum + page.versions.length, 0)
  run.spend('resources', rows)
  const totals = hasTotal
    ? await services.repository.countPerReference(principal, each, request.signal)
    : undefined
  const query = `${type}?${restQuery(type, args.given)}`
  const parents = allowed.length
  run.account.add({ interaction: 'search-type', types: [type], query, parents, count: rows })
  const found = new Map(
    allowed.map((name, i) => [name, { ...(pages[i] ?? NO_ROWS), total: totals?.[i] }]),
  )
  return references.map((name) => () => {
    const page = found.get(name)
    if (page === undefined) throw tooManySearches()
    return page
  })
}

const NO_ROWS: SearchPage = {
  versions: [],
  total: undefined,
  next: undefined,
  previous: undefined,
  included: [],
  isTruncated: false,
}

async function searchPages(run: Run, wanted: ReferenceSearch): Promise<readonly SearchPage[]> {
  const { services, principal, request: http } = run.config.interaction
  const { request, code, references } = wanted
  if (request.count === 0) return references.map(() => NO_ROWS)
  if (request.cursor === undefined) {
    const maxRows = Math.max(0, run.limitFor('resources') - run.used.resources)
    return services.repository.searchPerReference(principal, wanted, maxRows, http.signal)
  }
  const [reference, second] = references
  if (reference === undefined) return []
  if (second !== undefined) throw badRequest('A cursor continues one list only', '_cursor')
  const conditions = [equals(code, 'reference', reference), ...request.conditions]
  const one = { ...request, conditions, total: 'none' } as const
  return [await services.repository.search(principal, one, http.signal)]
}

function cachedRequest(run: Run, wanted: Search): Promise<SearchRequest> {
  return getOrInsert(run.requests, searchKey(wanted), () => readRequest(run, wanted))
}

async function readRequest(
  { config: { interaction: context } }: Run,
  { type, args, hasTotal, hasRows, hasNext }: Search,
): Promise<SearchRequest> {
  if (type === 'Binary') throw badRequest('Cannot search on Binary resource type')
  const query = restQuery(type, args.given)
  const request = await resolved(context, criteria(context, type, query, 'strict'))
  const total = hasTotal ? 'accurate' : 'none'
  return { ...request, count: hasRows ? request.count : 0, total, hasNext }
}

function searchKey({ type, args, hasTotal, hasRows, hasNext }: Search): string {
  return `${type} ${hasTotal} ${hasRows} ${hasNext} ${args.text}`
}

/** What the resolvers of one request share: who asks, the levels, and what was used up. */

import { may } from '../access/policy.ts'
import { badRequest, forbidden, type HttpError, notFound, tooCostly } from '../errors.ts'
import { isResourceType } from '../fhir/definitions.ts'
import type { Resource } from '../fhir/resource.ts'
import type { SearchRequest } from '../query/search-request.ts'
import { READ, SEARCH } from '../request/quota.ts'
import type { Interaction } from '../request/request.ts'
import { parsed } from '../rest/search/criteria.ts'
import { resolved } from '../rest/search/rewrite.ts'
import type { SearchPage } from '../store/rows/version.ts'
import type { ReferenceSearch } from '../store/search/per-reference.ts'
import { openAccount } from './account.ts'
import { openLevels } from './levels.ts'
import { pageOf, parse } from './pages.ts'
import type { Given, GraphqlContext, Owners, ResourcePage } from './request-state.ts'
import { queryOf } from './schema/arguments.ts'

/** Of one request. */
const MOST = { searches: 5_000, resources: 20_000, evaluations: 10_000 } as const

const OWNER = Symbol('owner')

/** Kept in the parts, which were parsed for this request: thousands in a WeakMap keep the collector busy. */
const OWNERS: Owners = {
  get: (part: { [OWNER]?: Resource }) => part[OWNER],
  set: (part: { [OWNER]?: Resource }, owner) => {
    part[OWNER] = owner
  },
}

/** Its statements end when the signal of its request aborts. */
export function openContext(interaction: Interaction, keepsDecimals: boolean): GraphqlContext {
  const { signal } = interaction.request
  return {
    interaction,
    account: openAccount(interaction),
    levels: openLevels(() => signal?.throwIfAborted()),
    owners: OWNERS,
    used: { searches: 0, resources: 0, evaluations: 0 },
    requests: new Map(),
    loads: new Map(),
    required: new Map(),
    found: new Map(),
    slices: new Map(),
    keepsDecimals,
  }
}

/** Undefined for what is absent, deleted or not in sight. All of one level are one statement. */
export function load(
  context: GraphqlContext,
  type: string,
  id: string,
): Promise<Resource | undefined> {
  const { interaction, loads, levels, account } = context
  const name = `${type}/${id}`
  const known = loads.get(name)
  if (known !== undefined) return known
  const loading = levels.ask('read', { type, id }, async (references) => {
    spend(context, 'resources', references.length)
    await account.charge(READ * references.length)
    const { services, principal, request } = interaction
    const { repository } = services
    const versions = await repository.readMany(principal, references, request.signal)
    const types = [...new Set(references.map((reference) => reference.type))]
    const count = versions.filter((version) => version !== undefined).length
    account.add({ interaction: 'read', types, count })
    return versions.map((version) => () => version && parse(context, version))
  })
  loads.set(name, loading)
  return loading
}

/** As `load`; one promise for all that ask for the same. Errors: 404. */
export function loadRequired(context: GraphqlContext, type: string, id: string): Promise<Resource> {
  const { required } = context
  const name = `${type}/${id}`
  const known = required.get(name)
  if (known !== undefined) return known
  const loading = load(context, type, id).then((resource) => {
    if (resource === undefined) throw notFound()
    return resource
  })
  required.set(name, loading)
  return loading
}

/** Errors: 403 for a type that is not to be read, 404. */
export async function read(context: GraphqlContext, type: string, id: string): Promise<Resource> {
  if (!isResourceType(type)) throw notFound()
  if (!may(context.interaction.principal, type, 'read')) throw forbidden(`no right to read ${type}`)
  return loadRequired(context, type, id)
}

/** The resource that a document is about. Errors: 403, 404, 410. */
export async function readRoot(
  context: GraphqlContext,
  type: string,
  id: string,
): Promise<Resource> {
  const { services, principal } = context.interaction
  await context.account.charge(READ)
  const version = await services.repository.read(principal, type, id)
  context.account.add({ interaction: 'read', types: [type], count: 1 })
  return parse(context, version)
}

/** One search of a root field. Errors: those of a search. */
export async function search(
  context: GraphqlContext,
  type: string,
  given: Given,
  parts: Parts,
): Promise<ResourcePage> {
  const request = await requestOf(context, type, given, parts)
  const { services, principal } = context.interaction
  const { signal } = context.interaction.request
  return context.levels.ask(`search ${keyOf(type, given, parts)}`, request, async (requests) => {
    spend(context, 'searches', 1)
    await context.account.charge(SEARCH)
    const page = await services.repository.search(principal, request, signal)
    spend(context, 'resources', page.versions.length)
    context.account.add({
      interaction: 'search-type',
      types: [type],
      query: `${type}?${queryOf(type, given)}`,
      count: page.versions.length,
    })
    return requests.map(() => () => pageOf(context, page))
  })
}

/** What refers to a resource. All of equal arguments and one level are one statement. */
export async function searchReferring(
  context: GraphqlContext,
  type: string,
  reference: string,
  { _reference, ...given }: Given,
  parts: Parts,
): Promise<ResourcePage> {
  const code = String(_reference)
  const request = await requestOf(context, type, given, parts)
  const { services, principal } = context.interaction
  const { repository } = services
  const { signal } = context.interaction.request
  const key = `refer ${code} ${keyOf(type, given, parts)}`
  return context.levels.ask(key, reference, async (references) => {
    const distinct = [...new Set(references)]
    const left = mostOf(context, 'searches') - context.used.searches
    const allowed = distinct.slice(0, Math.max(0, left))
    context.used.searches += allowed.length
    await context.account.charge(SEARCH * allowed.length)
    const wanted = { request, code, references: allowed }
    const pages = await pagesOf(context, wanted)
    const rows = pages.reduce((sum, page) => sum + page.versions.length, 0)
    spend(context, 'resources', rows)
    const totals = parts.hasTotal
      ? await repository.countPerReference(principal, wanted, signal)
      : undefined
    context.account.add({
      interaction: 'search-type',
      types: [type],
      query: `${type}?${queryOf(type, given)}`,
      parents: allowed.length,
      count: rows,
    })
    const places = new Map(allowed.map((name, i) => [name, i]))
    return references.map((name) => () => {
      const place = places.get(name)
      const page = place === undefined ? undefined : pages[place]
      if (place === undefined || page === undefined) throw tooManySearches()
      return pageOf(context, { ...page, total: totals?.[place] })
    })
  })
}

/** Which parts of a page are asked for. */
export interface Parts {
  readonly hasTotal: boolean
  readonly hasRows: boolean
}

const NO_ROWS: SearchPage = {
  versions: [],
  total: undefined,
  next: undefined,
  previous: undefined,
  included: [],
  isCut: false,
}

async function pagesOf(
  { interaction, used }: GraphqlContext,
  wanted: ReferenceSearch,
): Promise<readonly SearchPage[]> {
  const { services, principal } = interaction
  const { signal } = interaction.request
  const { request, code, references } = wanted
  if (request.count === 0) return references.map(() => NO_ROWS)
  if (request.cursor === undefined) {
    const maxRows = Math.max(0, MOST.resources - used.resources)
    return services.repository.searchPerReference(principal, wanted, maxRows, signal)
  }
  const [reference, second] = references
  if (reference === undefined) return []
  if (second !== undefined) throw badRequest('A cursor continues one list only', '_cursor')
  const condition = { code, type: 'reference', modifier: undefined, values: [reference] } as const
  const conditions = [condition, ...request.conditions]
  const one = { ...request, conditions, total: 'none' } as const
  return [await services.repository.search(principal, one, signal)]
}

function requestOf(
  context: GraphqlContext,
  type: string,
  given: Given,
  parts: Parts,
): Promise<SearchRequest> {
  const key = keyOf(type, given, parts)
  const known = context.requests.get(key)
  if (known !== undefined) return known
  const made = readRequest(context, type, given, parts)
  context.requests.set(key, made)
  return made
}

async function readRequest(
  { interaction }: GraphqlContext,
  type: string,
  given: Given,
  { hasTotal, hasRows }: Parts,
): Promise<SearchRequest> {
  if (type === 'Binary') throw badRequest('Cannot search on Binary resource type')
  const request = await resolved(
    interaction,
    parsed(interaction, type, queryOf(type, given), 'strict'),
  )
  return {
    ...request,
    count: hasRows ? request.count : 0,
    total: hasTotal ? 'accurate' : 'none',
  }
}

function keyOf(type: string, given: Given, { hasTotal, hasRows }: Parts): string {
  return JSON.stringify([type, given, hasTotal, hasRows])
}

function spend(context: GraphqlContext, what: keyof GraphqlContext['used'], amount: number): void {
  const most = mostOf(context, what)
  context.used[what] += amount
  if (context.used[what] <= most) return
  throw what === 'searches' ? tooManySearches() : tooCostly(`More than ${most} ${what}`)
}

function mostOf({ interaction }: GraphqlContext, what: keyof GraphqlContext['used']): number {
  const { graphql } = interaction.principal.project
  return (what === 'searches' ? graphql?.searches : undefined) ?? MOST[what]
}

export function spendEvaluations(context: GraphqlContext, amount: number): void {
  spend(context, 'evaluations', amount)
}

function tooManySearches(): HttpError {
  return tooCostly('Maximum number of searches exceeded')
}

/** Searches as fields: lists and connections, at the root and of what refers to a resource. */
import type { GraphQLResolveInfo, SelectionSetNode } from 'graphql'
import type { Resource } from '../fhir/resource.ts'
import { search, searchReferring } from './context.ts'
import { publishedFor } from './published.ts'
import type { Given, GraphqlContext, ResourcePage } from './request-state.ts'

const LIST = { hasTotal: false, hasRows: true }
const DEFAULT_COUNT = 20
const MAX_COUNT = 1000

export async function listRoot(
  context: GraphqlContext,
  type: string,
  given: Given,
): Promise<readonly (Resource | Promise<Resource>)[]> {
  const { resources } = await search(context, type, given, LIST)
  const published = publishedFor(type, given)
  if (published.length === 0) return resources
  const own = await Promise.all(resources)
  const others = published.filter(({ url }) => own.every((resource) => resource.url !== url))
  return [...own, ...others].slice(0, sizeOf(given))
}

export async function listOfReferring(
  context: GraphqlContext,
  type: string,
  reference: string,
  given: Given,
): Promise<readonly (Resource | Promise<Resource>)[]> {
  return (await searchReferring(context, type, reference, given, LIST)).resources
}

export async function connectionRoot(
  context: GraphqlContext,
  type: string,
  given: Given,
  info: GraphQLResolveInfo,
): Promise<object> {
  return connection(await search(context, type, given, partsOf(info)), given)
}

export async function connectionOfReferring(
  context: GraphqlContext,
  type: string,
  reference: string,
  given: Given,
  info: GraphQLResolveInfo,
): Promise<object> {
  return connection(await searchReferring(context, type, reference, given, partsOf(info)), given)
}

/** Counting and fetching are left out when their fields are. */
function partsOf(info: GraphQLResolveInfo) {
  const selected = new Set<string>()
  for (const node of info.fieldNodes) collect(node.selectionSet, info, selected)
  const hasRows = ['edges', 'next', 'previous'].some((name) => selected.has(name))
  return { hasTotal: selected.has('count'), hasRows }
}

function collect(
  selections: SelectionSetNode | undefined,
  info: GraphQLResolveInfo,
  found: Set<string>,
): void {
  for (const selection of selections?.selections ?? []) {
    if (selection.kind === 'Field') found.add(selection.name.value)
    else if (selection.kind === 'InlineFragment') collect(selection.selectionSet, info, found)
    else collect(info.fragments[selection.name.value]?.selectionSet, info, found)
  }
}

/** https://hl7.org/fhir/R4/graphql.html#connection */
function connection(page: ResourcePage, given: Given): object {
  const size = sizeOf(given)
  return {
    count: page.total,
    offset: given._offset ?? 0,
    pageSize: size,
    pagesize: size,
    first: null,
    previous: page.previous,
    next: page.next,
    last: null,
    edges: page.resources.map(async (resource) => ({ mode: 'match', resource: await resource })),
  }
}

function sizeOf({ _count }: Given): number {
  return typeof _count === 'number' ? Math.min(_count, MAX_COUNT) : DEFAULT_COUNT
}

/** The search that a conditional interaction depends on. https://hl7.org/fhir/R4/http.html#cond-update */
import { badRequest } from '../../errors.ts'
import { chosen, parseReference, type Resource, urlOf } from '../../fhir/resource.ts'
import { parseSearch } from '../../query/search.ts'
import type { SearchRequest } from '../../query/search-request.ts'
import { escapeValue } from '../../query/values.ts'
import { readQuery } from '../../request/negotiate.ts'
import { absoluteUrl } from '../../request/reply.ts'
import type { Asking, Interaction } from '../../request/request.ts'
import { parseVersion } from '../../store/rows/rows.ts'
import type { SearchPage } from '../../store/rows/version.ts'
import { withCodes } from './codes.ts'
import { withRegistry } from './registry.ts'

/** The query of `If-None-Exist`, which may carry the type and a question mark before it. */
export function criteriaOf(text: string): URLSearchParams {
  return readQuery(text.replace(/^[^=]*\?/, ''))
}

/** Errors: 400 without any criteria, which would mean every resource of the type. */
export function readCondition(asking: Asking, type: string, query: URLSearchParams): SearchRequest {
  if (type === 'Binary') throw badRequest('Cannot search on Binary resource type')
  const condition = parsed(asking, type, query, 'strict')
  if (condition.conditions.length === 0) throw badRequest('Search criteria are required')
  return condition
}

/** The same with its ValueSets expanded. Errors: 400. */
export async function readFullCondition(
  asking: Asking,
  type: string,
  query: URLSearchParams,
): Promise<SearchRequest> {
  return resolved(asking, readCondition(asking, type, query))
}

/** A search with the parameters that the caller's Project knows. Errors: 400. */
export function parsed(
  { services, principal }: Asking,
  type: string,
  query: URLSearchParams,
  handling: 'strict' | 'lenient',
): SearchRequest {
  return parseSearch(type, query, {
    handling,
    fhirUrl: absoluteUrl(services, ''),
    own: principal.project.parameters,
  })
}

/** The search of a request, its ValueSets expanded. Errors: 400. */
export async function readSearch(
  interaction: Interaction,
  type: string,
  query: URLSearchParams,
): Promise<SearchRequest> {
  const { handling } = interaction.preferences
  const request = await resolved(interaction, parsed(interaction, type, query, handling))
  const isCount = request.summary === 'count' || request.count === 0
  return isCount ? { ...request, count: 0, total: 'accurate' } : request
}

/** Its codes are listed, and its joins are those of one place. Errors: 400, 403. */
export async function resolved(asking: Asking, request: SearchRequest): Promise<SearchRequest> {
  return withRegistry(asking, await withCodes(asking, request))
}

/** A page of what a query means, for an operation. Errors: 400, 403. */
export async function found(
  asking: Asking,
  type: string,
  query: URLSearchParams,
  { count, cursor }: { readonly count: number; readonly cursor?: string | undefined },
): Promise<SearchPage> {
  const request = await resolved(asking, parsed(asking, type, query, 'strict'))
  const { services, principal } = asking
  return services.repository.search(principal, { ...request, count, cursor })
}

const MOST_VERSIONS = 50

/** Finds what a canonical, or a literal reference in its place, names for the caller. */
export async function canonicalOf(
  asking: Asking,
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
  const query = new URLSearchParams({ url: escapeValue(urlOf(canonical)) })
  const { versions } = await found(asking, type, query, { count: MOST_VERSIONS })
  return chosen(versions.map(parseVersion), canonical)
}

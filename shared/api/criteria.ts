/** The search that a conditional interaction depends on. https://hl7.org/fhir/R4/http.html#cond-update */
import { badRequest } from '../errors.ts'
import { parseSearch, type SearchRequest } from '../fhir/search.ts'
import { absoluteUrl, type Interaction } from './interaction.ts'
import { readQuery } from './negotiate.ts'

/** The query of `If-None-Exist`, which may carry the type and a question mark before it. */
export function criteriaOf(text: string): URLSearchParams {
  return readQuery(text.replace(/^[^=]*\?/, ''))
}

/** Errors: 400 without any criteria, which would mean every resource of the type. */
export function readCondition(
  { services }: Interaction,
  type: string,
  query: URLSearchParams,
): SearchRequest {
  if (type === 'Binary') throw badRequest('Cannot search on Binary resource type')
  const condition = parseSearch(type, query, { fhirUrl: absoluteUrl(services, '') })
  if (condition.conditions.length === 0) throw badRequest('Search criteria are required')
  return condition
}

/** Interactions on whatever matches a search. https://hl7.org/fhir/R4/http.html#ccreate, #cond-update */
import { may } from '../access/policy.ts'
import { badRequest, forbidden, multipleMatches, notFound } from '../errors.ts'
import { allOk, type Issue, outcome } from '../fhir/outcome.ts'
import type { SearchRequest } from '../fhir/search.ts'
import { normalId } from '../store/context.ts'
import { afterDeletions } from './admin-writes.ts'
import { withLiteralReferences } from './conditional-references.ts'
import { criteriaOf, readFullCondition } from './criteria.ts'
import type { FhirReply } from './handle.ts'
import { acceptResource, type Interaction, writeReply } from './interaction.ts'
import { readJson } from './negotiate.ts'
import { writeOptions } from './preconditions.ts'
import { emptyReply, outcomeReply } from './reply.ts'
import { patch, withAccount } from './resources.ts'

/** More matches than this are never deleted by one request. */
const MAX_DELETIONS = 1000

/** `If-None-Exist`: 1 match is answered with 200, more with 412. */
export async function createConditional(
  interaction: Interaction,
  type: string,
  criteria: string,
): Promise<FhirReply> {
  const { services, principal, request } = interaction
  const condition = await readFullCondition(interaction, type, criteriaOf(criteria))
  const sent = withAccount(interaction, readJson(request))
  const body = await withLiteralReferences(interaction, sent)
  const { resource, warnings } = await acceptResource(interaction, type, body)
  const { repository } = services
  const written = await repository.createConditional(principal, resource, condition)
  const isMatch = written.outcome !== 'created'
  if (isMatch && typeof resource.id === 'string' && normalId(resource.id) !== written.id) {
    throw badRequest('Resource ID did not match resolved ID', `${type}.id`)
  }
  return writeReply(interaction, written, warnings)
}

export async function updateConditional(
  interaction: Interaction,
  type: string,
): Promise<FhirReply> {
  const { services, principal, request } = interaction
  const condition = await readFullCondition(interaction, type, request.query)
  const body = await withLiteralReferences(interaction, readJson(request))
  const { resource, warnings } = await acceptResource(interaction, type, body)
  const options = writeOptions(request)
  const { repository } = services
  const written = await repository.updateConditional(principal, resource, condition, options)
  return writeReply(interaction, written, warnings)
}

/** No match is 404, several are 412. */
export async function patchConditional(interaction: Interaction, type: string): Promise<FhirReply> {
  const { services, principal, request } = interaction
  const condition = await readFullCondition(interaction, type, request.query)
  if (!may(principal, type, 'update')) throw forbidden()
  const { versions } = await services.repository.search(principal, { ...condition, count: 2 })
  const [match, second] = versions
  if (match === undefined) throw notFound()
  if (second !== undefined) throw multipleMatches()
  return patch(interaction, type, match.id)
}

/** How many a conditional delete may delete: one, unless `_count` says otherwise. */
export function mostDeletions({ count }: SearchRequest, query: URLSearchParams): number {
  return query.has('_count') ? Math.min(count, MAX_DELETIONS) : 1
}

export async function deleteConditional(
  interaction: Interaction,
  type: string,
): Promise<FhirReply> {
  const { services, principal, request } = interaction
  const condition = await readFullCondition(interaction, type, request.query)
  const limit = mostDeletions(condition, request.query)
  const deleted = await services.repository.deleteConditional(principal, condition, limit)
  return deletedReply(interaction, await afterDeletions(interaction, deleted))
}

export function deletedReply(
  { preferences }: Interaction,
  warnings: readonly Issue[] = [],
): FhirReply {
  if (preferences.returned === 'minimal') return emptyReply(200)
  return outcomeReply(200, outcome(allOk.id, ...allOk.issue, ...warnings))
}

/** Conditional create, update, patch and delete. https://hl7.org/fhir/R4/http.html#ccreate, #cond-update */
import { may } from '../access/policy.ts'
import { unlinked } from '../access/project-context.ts'
import {
  allOk,
  forbidden,
  HttpError,
  type Issue,
  multipleMatches,
  notFound,
  outcome,
} from '../core/errors.ts'
import { singleValue } from '../core/query.ts'
import { LOST, retryOnConflict } from '../core/retry.ts'
import type { Resource } from '../fhir/resource.ts'
import { readJson, readPatchBody } from '../request/negotiate.ts'
import { demandsExistence, emptyReply, outcomeReply, writeOptions } from '../request/reply.ts'
import type { FhirContext, FhirReply } from '../request/request.ts'
import type { SearchRequest } from '../search/language/search-request.ts'
import { normalId } from '../store/rows/context.ts'
import type { Version, WriteOptions, WriteResult } from '../store/rows/version.ts'
import { requireMatchedId, requireUpdateAsCreate } from '../store/write/conditional.ts'
import { afterDeletion, afterDeletions, writeAudited } from './audited-writes.ts'
import { withLiteralReferences } from './conditional-references.ts'
import { parseCriteriaQuery, readFullCondition } from './criteria.ts'
import { acceptResource, finishWrite, mayAskBots } from './interaction.ts'
import { beforeDelete, beforeWrite } from './pre-commit.ts'
import { patchFrom, withAccount } from './write.ts'

const MAX_DELETIONS = 1000

/** `If-None-Exist`: returns 200 for one match, 412 for several. */
export async function createConditional(
  context: FhirContext,
  type: string,
  criteria: string,
): Promise<FhirReply> {
  const { principal, request } = context
  const condition = await readFullCondition(context, type, parseCriteriaQuery(type, criteria))
  const sent = withAccount(context, readJson(request))
  const body = await withLiteralReferences(context, sent)
  const { resource, warnings } = await acceptResource(context, type, body)
  return writeAudited(context, type, async (inside) => {
    const written = mayAskBots(context)
      ? await createAsking(inside, resource, condition)
      : await inside.services.repository.createConditional(principal, resource, condition)
    if (written.outcome !== 'created') requireMatchedId(resource.id, written)
    return finishWrite(inside, written, warnings)
  })
}

/** Runs bots only if a resource is created. */
async function createAsking(
  context: FhirContext,
  resource: Resource,
  condition: SearchRequest,
): Promise<WriteResult> {
  const { services, principal } = context
  if (!may(principal, condition.type, 'create')) throw forbidden()
  const match = await findMatch(context, condition)
  if (match !== undefined) return { ...match, outcome: 'unchanged' }
  const { id: _, ...fresh } = resource
  const next = await beforeWrite(context, 'create', fresh)
  const options = { keepId: next.id !== undefined, isMissing: true }
  return services.repository.createConditional(principal, next, condition, options)
}

/** Errors: 412 for several matches. */
async function findMatch(
  { services, principal }: FhirContext,
  condition: SearchRequest,
): Promise<Version | undefined> {
  const { versions } = await services.repository.search(unlinked(principal), {
    ...condition,
    count: 2,
  })
  if (versions.length > 1) throw multipleMatches()
  return versions[0]
}

export async function updateConditional(context: FhirContext, type: string): Promise<FhirReply> {
  const { principal, request } = context
  const condition = await readFullCondition(context, type, request.query)
  const body = await withLiteralReferences(context, readJson(request))
  const { resource, warnings } = await acceptResource(context, type, body)
  const options = { ...writeOptions(request), mustExist: demandsExistence(request) }
  const next = mayAskBots(context)
    ? await askedAbout(context, resource, condition, options)
    : resource
  return writeAudited(context, type, async (inside) => {
    const written = await inside.services.repository.updateConditional(principal, next, condition, {
      ...options,
      // The bots have seen the id of a new resource.
      keepId: next !== resource && resource.id === undefined,
    })
    return finishWrite(inside, written, warnings)
  })
}

/** Returns the resource to write if still nothing matches. */
async function askedAbout(
  context: FhirContext,
  resource: Resource,
  condition: SearchRequest,
  { ifMatch }: WriteOptions,
): Promise<Resource> {
  const match = await findMatch(context, condition)
  if (match === undefined) {
    if (resource.id !== undefined) requireUpdateAsCreate(context.principal)
    return beforeWrite(context, 'create', resource)
  }
  if (resource.id !== undefined && normalId(resource.id) !== match.id) return resource
  return beforeWrite(context, 'update', { ...resource, id: match.id }, ifMatch)
}

/** Errors: 404 without a match, also if the match changes meanwhile and matches no longer; 412 for several. */
export async function patchConditional(context: FhirContext, type: string): Promise<FhirReply> {
  const { principal, request } = context
  const condition = await readFullCondition(context, type, request.query)
  if (!may(principal, type, 'update')) throw forbidden()
  const match = await findMatch(context, condition)
  if (match === undefined) throw notFound()
  const check = checkMatch(context, condition, match)
  return patchFrom(context, { type, id: match.id, body: readPatchBody(request), check })
}

/** Returns the check of a version that is to be changed. Errors: `stale` for one that matches no longer. */
export function checkMatch(
  context: FhirContext,
  condition: SearchRequest,
  match: Version,
  stale: () => HttpError = notFound,
): WriteOptions['check'] {
  return async (live) => {
    if (live?.ver === match.ver) return
    const newest = await findMatch(context, condition)
    if (newest?.id !== match.id) throw stale()
  }
}

/** Deletes a match of a bundle, in a version that matches. Returns warnings; none if it matches no longer. */
export async function deleteMatch(
  context: FhirContext,
  condition: SearchRequest,
  match: Version,
): Promise<readonly Issue[]> {
  const { services, principal } = context
  const { repository } = services
  const { type, id } = match
  let newest: Version | undefined = match
  const attempt = async () => {
    if (newest === undefined) return []
    try {
      const deleted = await repository.delete(principal, type, id, { ifMatch: [newest.ver] })
      return await afterDeletion(context, deleted)
    } catch (error) {
      if (!(error instanceof HttpError) || error.status !== 412) throw error
      const page = await repository.search(unlinked(principal), { ...condition, sort: [] })
      newest = page.versions.find((version) => version.id === id)
      return LOST
    }
  }
  return retryOnConflict<readonly Issue[]>(attempt, { inTransaction: true })
}

/** Maximum of a conditional delete: `_count`, or one without it or its value. */
export function mostDeletions({ count }: SearchRequest, query: URLSearchParams): number {
  return singleValue(query, '_count') === undefined ? 1 : Math.min(count, MAX_DELETIONS)
}

export async function deleteConditional(context: FhirContext, type: string): Promise<FhirReply> {
  const { principal, request } = context
  const condition = await readFullCondition(context, type, request.query)
  const limit = mostDeletions(condition, request.query)
  if (mayAskBots(context)) await askAboutMatches(context, condition, limit)
  const warnings = await writeAudited(context, type, async (inside) => {
    const { repository } = inside.services
    const deleted = await repository.deleteConditional(principal, condition, limit)
    return afterDeletions(inside, deleted)
  })
  return deletedReply(context, warnings)
}

/** Sequential; more than the maximum is rejected anyway. */
async function askAboutMatches(
  context: FhirContext,
  condition: SearchRequest,
  limit: number,
): Promise<void> {
  const { services, principal } = context
  const asked = { ...condition, count: limit + 1 }
  const { versions } = await services.repository.search(unlinked(principal), asked)
  if (versions.length > limit) return
  for (const { type, id } of versions) await beforeDelete(context, type, id)
}

export function deletedReply(
  { preferences }: FhirContext,
  warnings: readonly Issue[] = [],
): FhirReply {
  if (preferences.returned === 'minimal') return emptyReply(200)
  return outcomeReply(200, outcome(allOk.id, ...allOk.issue, ...warnings))
}

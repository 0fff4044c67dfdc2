/** Runs one entry of a bundle like a separate request, within the bundle's deadline. */
import { may } from '../../access/policy.ts'
import type { Principal } from '../../access/principal.ts'
import {
  badRequest,
  forbidden,
  HttpError,
  issue,
  OffloadRequired,
  outcome,
  preconditionFailed,
  RaceLost,
  serverTimeout,
  tooCostly,
} from '../../core/errors.ts'
import type { ResponseEntry } from '../../fhir/bundle.ts'
import { parseBody } from '../../fhir/json.ts'
import type { Resource } from '../../fhir/resource.ts'
import { auditRefusal } from '../../request/admin-audit.ts'
import { isPatchType } from '../../request/negotiate.ts'
import { wholeBody } from '../../request/reply.ts'
import {
  type FhirContext,
  type FhirReply,
  type FhirRequest,
  withRepository,
} from '../../request/request.ts'
import type { Services } from '../../request/services.ts'
import type { Repository } from '../../store/repository.ts'
import { requireNoLive } from '../../store/write/conditional.ts'
import { writeAudited } from '../audited-writes.ts'
import { checkMatch, deletedReply, deleteMatch } from '../conditional.ts'
import { acceptResource, finishWrite } from '../interaction.ts'
import { beforeDelete, beforeWrite } from '../pre-commit.ts'
import { createFrom, patchFrom, updateFrom, withAccount } from '../write.ts'
import { type Entry, entryPath } from './entries.ts'
import { type Identity, replaceLinks, type Step, takeMatch } from './identities.ts'

/** The router, passed in because it imports this module. */
export type Respond = (
  services: Services,
  principal: Principal,
  request: FhirRequest,
) => Promise<FhirReply>

/** `isLocked`: the bundle's criteria are locked until it ends. */
export async function runEntry(
  outer: FhirContext,
  step: Step,
  respond: Respond,
  isLocked: boolean,
): Promise<ResponseEntry> {
  const context = entryInteraction(outer, step)
  const reply = await carryOut(context, step, respond, isLocked).catch((error: unknown) => {
    // A transaction is offloaded as a whole.
    if (!(error instanceof OffloadRequired) || isLocked) throw error
    return offloadEntry(context, step)
  })
  return toResponseEntry(step, { ...reply, body: await wholeBody(reply) })
}

/** Offloads an update or patch whose condition is already resolved. Errors: as the entry itself. */
async function offloadEntry(
  { request }: FhirContext,
  { entry, identity, identities }: Step,
): Promise<FhirReply> {
  if (request.offload === undefined) throw new OffloadRequired()
  const sent = requireEntryResource(entry)
  const isPatch = entry.method === 'PATCH'
  const body = replaceLinks(isPatch ? readEntryPatch(sent, entry) : sent, identities)
  const whole = identity === undefined || isPatch ? body : { ...sent, id: identity.id }
  const type = Array.isArray(body) ? 'application/json-patch+json' : 'application/fhir+json'
  return request.offload({
    ...request,
    ...(identity === undefined
      ? {}
      : { path: `${identity.type}/${identity.id}`, query: new URLSearchParams() }),
    headers: { ...request.headers, 'content-type': type },
    body: JSON.stringify(whole),
  })
}

export function entryInteraction(outer: FhirContext, { entry }: Step): FhirContext {
  return { ...outer, request: entryRequest(outer.request, entry) }
}

/** Splits a conditional delete into one task per match: tasks of a transaction share statements. */
export function deletions(context: FhirContext, { condition, matches }: Step) {
  if (condition === undefined) return []
  return matches.map((match) => async (repository: Repository) => {
    await deleteMatch(withRepository(context, repository), condition, match)
  })
}

async function carryOut(
  context: FhirContext,
  step: Step,
  respond: Respond,
  isLocked: boolean,
): Promise<FhirReply> {
  const { entry, identity, identities, isTwin, matches } = step
  const { route } = entry
  if (route.kind === 'conditional-delete' && (isLocked || matches.length < 2)) {
    return deleteOnly(context, step, route.type, isLocked)
  }
  if (identity === undefined || route.kind === 'delete') {
    const { services, principal, request } = context
    const { resource } = entry
    if (resource === undefined) return respond(services, principal, request)
    const body = JSON.stringify(replaceLinks(resource, identities))
    return respond(services, principal, { ...request, body })
  }
  const { type, id, condition, match } = identity
  const body = replaceLinks(requireEntryResource(entry), identities)
  // Entries of a batch are independent: an earlier one with the same criteria may have failed.
  const isMade = identity.isNew && !(isTwin && isLocked)
  const hasIfMatch = entry.headers['if-match'] !== undefined
  switch (route.kind) {
    case 'create':
      if (!isMade) return answerMatch(context, identity, body)
      return identity.condition === undefined || isLocked
        ? createFrom(context, type, body, id)
        : createMatched(context, step, identity, body)
    case 'conditional-update':
      if (!isMade || (isTwin && hasIfMatch)) {
        const check = checkUpdate(context, identity)
        return updateFrom(context, { type, id, body: { ...body, id }, check })
      }
      if (hasIfMatch) throw preconditionFailed()
      if (body.id !== undefined) return updateNamed(context, { type, id, body }, respond, isLocked)
      return isLocked
        ? createFrom(context, type, body, id)
        : createMatched(context, step, identity, body)
    case 'update':
      return updateFrom(context, { type, id, body })
    default:
      return patchFrom(context, {
        type,
        id,
        body: replaceLinks(readEntryPatch(body, entry), identities),
        check: condition && match && checkMatch(context, condition, match),
      })
  }
}

/** Creates under the id that the client has chosen, or restores the deleted resource of that id. */
function updateNamed(
  context: FhirContext,
  { type, id, body }: { readonly type: string; readonly id: string; readonly body: Resource },
  respond: Respond,
  isLocked: boolean,
): Promise<FhirReply> {
  const { services, principal, request } = context
  if (isLocked) {
    const check = requireNoLive(type, id)
    return updateFrom(context, { type, id, body: { ...body, id }, check })
  }
  return respond(services, principal, { ...request, body: JSON.stringify(body) })
}

/** A resource that matches no longer leaves the update without a target, which only a new request can find. */
function checkUpdate(context: FhirContext, { condition, match }: Identity) {
  return condition && match && checkMatch(context, condition, match, () => new RaceLost())
}

/** In a transaction, `deletions` deletes the matches. */
async function deleteOnly(
  context: FhirContext,
  { condition, matches }: Step,
  type: string,
  isLocked: boolean,
): Promise<FhirReply> {
  const { principal } = context
  if (!may(principal, type, 'delete')) throw forbidden()
  const [only] = isLocked ? [] : matches
  if (only === undefined || condition === undefined) return deletedReply(context)
  await beforeDelete(context, type, only.id)
  const warnings = await writeAudited(context, type, (inside) =>
    deleteMatch(inside, condition, only),
  )
  return deletedReply(context, warnings)
}

/** Errors: 400 for an entry without a resource. */
export function requireEntryResource({ resource, index }: Entry): Resource {
  if (resource !== undefined) return resource
  throw badRequest('Missing Bundle entry resource', entryPath(index, '.resource'))
}

/** Returns the existing match; the body must still be valid. */
async function answerMatch(
  context: FhirContext,
  { type, id, match }: Identity,
  body: Resource,
): Promise<FhirReply> {
  const { services, principal } = context
  if (!may(principal, type, 'create')) throw forbidden()
  await acceptResource(context, type, { ...body, id })
  const version = match ?? (await services.repository.read(principal, type, id))
  return finishWrite(context, { ...version, outcome: 'unchanged' })
}

/** Creates under the id that other entries refer to, unless another request has created a match. */
async function createMatched(
  context: FhirContext,
  { entry, identities }: Step,
  identity: Identity,
  body: Resource,
): Promise<FhirReply> {
  const { principal } = context
  const { type, id, condition } = identity
  if (condition === undefined) return createFrom(context, type, body, id)
  const sent = withAccount(context, { ...body, id })
  const { resource, warnings } = await acceptResource(context, type, sent)
  const next = await beforeWrite(context, 'create', resource)
  const options = { keepId: true, isMissing: true }
  return writeAudited(context, type, async (inside) => {
    const { repository } = inside.services
    const written = await repository.createConditional(principal, next, condition, options)
    if (written.id !== id) takeMatch(identity, identities, written)
    if (written.outcome === 'unchanged' && entry.route.kind === 'conditional-update') {
      return updateFrom(inside, { type, id: written.id, body: { ...body, id: written.id } })
    }
    return finishWrite(inside, written, warnings)
  })
}

/** A JSON Patch is sent as a Binary. https://hl7.org/fhir/R4/http.html#patch */
export function readEntryPatch(body: Resource, { index }: Entry): unknown {
  if (body.resourceType !== 'Binary') return body
  const { contentType } = body
  const isPatch = typeof contentType === 'string' && isPatchType(contentType)
  if (contentType !== undefined && !isPatch) {
    const path = entryPath(index, '.resource.contentType')
    throw badRequest('contentType of a patch must be application/json-patch+json', path)
  }
  if (typeof body.data !== 'string') {
    throw badRequest('Empty patch body', entryPath(index, '.resource.data'))
  }
  return parseBody(Buffer.from(body.data, 'base64'))
}

function entryRequest(outer: FhirRequest, entry: Entry): FhirRequest {
  const { prefer } = outer.headers
  return {
    ...outer,
    method: entry.method,
    path: entry.path,
    query: entry.query,
    queryText: undefined,
    headers: {
      // An entry contains resources: never the raw content of a Binary.
      accept: 'application/fhir+json',
      prefer,
      'x-medplum': outer.headers['x-medplum'],
      'content-type': 'application/fhir+json',
      ...entry.headers,
    },
    body: undefined,
    takesPieces: false,
  }
}

function toResponseEntry({ entry, identity }: Step, reply: FhirReply): ResponseEntry {
  const { status, headers, body, lastUpdated } = reply
  const text = body?.toString()
  const isOutcome = text?.startsWith('{"resourceType":"OperationOutcome"') ?? false
  const hasBody = text !== undefined && text !== '' && entry.method !== 'HEAD'
  return {
    status,
    location: status < 300 ? entryLocation(entry, identity) : undefined,
    etag: headers.ETag,
    lastModified: lastUpdated?.toISOString(),
    outcome: hasBody && isOutcome ? text : undefined,
    resource: hasBody && !isOutcome ? resourceText(text, headers['Content-Type']) : undefined,
  }
}

function entryLocation({ route }: Entry, identity: Identity | undefined): string | undefined {
  if (route.kind === 'delete') return undefined
  if (identity !== undefined) return `${identity.type}/${identity.id}`
  return route.kind === 'read' || route.kind === 'vread' ? `${route.type}/${route.id}` : undefined
}

/** Wraps the response of an operation in a Binary, unless it is a JSON object. */
function resourceText(text: string, contentType = 'application/octet-stream'): string {
  if (text.startsWith('{') && /[/+]json\b/.test(contentType)) return text
  const data = Buffer.from(text).toString('base64')
  return JSON.stringify({ resourceType: 'Binary', contentType, data })
}

/** Response of a failed batch entry; server errors are logged and shown without details. */
export function failedEntry(
  context: FhirContext,
  error: unknown,
  entry: Entry | HttpError | undefined,
): ResponseEntry {
  if (error instanceof HttpError) {
    const { services, principal, request } = context
    const { method, path } = entry instanceof HttpError || !entry ? request : entry
    auditRefusal(services, principal, { ...request, method, path }, error)
    return { status: error.status, outcome: JSON.stringify(error.outcome) }
  }
  const { services, request } = context
  services.log.error({ err: error, requestId: request.requestId }, 'bundle entry failed')
  const failure = outcome(undefined, issue('error', 'exception', 'Internal server error'))
  return { status: 500, outcome: JSON.stringify(failure) }
}

/**
 * Deadline of a batch or transaction: cancels searches, GraphQL and bots; a write ends by its statement timeout. For
 * asynchronous requests, `late` never aborts.
 */
export async function withDeadline<T>(
  outer: FhirContext,
  work: (inner: FhirContext, late: AbortSignal) => Promise<T>,
): Promise<T> {
  const { request, services } = outer
  const late = new AbortController()
  if (request.mayWait !== undefined) return await work(outer, late.signal)
  const timer = setTimeout(() => late.abort(serverTimeout()), services.config.batchTimeoutMs)
  const signals = [late.signal, ...(request.signal === undefined ? [] : [request.signal])]
  try {
    const signal = AbortSignal.any(signals)
    return await work({ ...outer, request: { ...request, signal } }, late.signal)
  } finally {
    clearTimeout(timer)
  }
}

/** Throws the reason when an accepted request is cancelled or over time. */
export function throwIfCancelled({ request }: FhirContext): void {
  if (request.signal?.reason instanceof HttpError) throw request.signal.reason
}

interface ResponseBudget {
  /** Errors: 400 too-costly once a response exceeded the size limit. */
  require(): void
  /** Adds the response of an entry. Errors: 400 too-costly above the size limit. */
  fill(step: Step, response: ResponseEntry): ResponseEntry
}

export function createResponseBudget(maxBytes: number): ResponseBudget {
  let left = maxBytes
  const require = () => {
    if (left < 0) throw tooCostly(`The entries of a bundle may read ${maxBytes} bytes`)
  }
  return {
    require,
    fill({ identity }, response) {
      if (identity === undefined) left -= response.resource?.length ?? 0
      require()
      return response
    },
  }
}

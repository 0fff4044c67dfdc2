/**
 * Routes FHIR requests. The web server, bundle entries and the bot client share this router, so that all three behave
 * the same.
 */

import { requireArea } from '../access/grant.ts'
import type { Principal } from '../access/principal.ts'
import { execute } from '../bots/execute.ts'
import { HttpError, OffloadRequired } from '../core/errors.ts'
import { handleExport } from '../export/status.ts'
import { isObject } from '../fhir/resource.ts'
import { handleImport } from '../import/jobs.ts'
import { acceptRequest } from '../jobs/async-requests.ts'
import { auditRefusal } from '../request/admin-audit.ts'
import { signAttachments } from '../request/binary/attachments.ts'
import { readContent, signedContent, signedUpload } from '../request/binary/read.ts'
import { readJson, readPreferences, requireKept, wantsPretty } from '../request/negotiate.ts'
import { scopedTo } from '../request/project-scope.ts'
import { charge, loadUnits } from '../request/quota.ts'
import { FHIR_JSON, failureReply, indented, namesBinary, withTracing } from '../request/reply.ts'
import {
  botCallDepth,
  type FhirContext,
  type FhirReply,
  type FhirRequest,
  forReads,
  type Handle,
  type Preferences,
  type Route,
} from '../request/request.ts'
import type { Services } from '../request/services.ts'
import { bundle, WRITES } from '../rest/bundle/bundle.ts'
import { readBundle } from '../rest/bundle/entries.ts'
import type { Respond } from '../rest/bundle/run.ts'
import {
  createConditional,
  deleteConditional,
  patchConditional,
  updateConditional,
} from '../rest/conditional.ts'
import { answerOnce, isIdempotent } from '../rest/idempotency.ts'
import { history, read, readHistory, vread } from '../rest/read.ts'
import { search, searchCompartment, searchSystem } from '../rest/search.ts'
import { create, patch, remove, update } from '../rest/write.ts'
import { handleJob, readAsyncJob } from './jobs.ts'
import { capabilities } from './metadata.ts'
import { operations } from './operations.ts'
import { findRoute, requireNoEffects } from './routes.ts'

/** Never throws for client errors: they are replies with an OperationOutcome. */
export const handle: Handle = (opened, principal, request) =>
  withErrorsAsReplies(request, () => {
    const services = scopedTo(opened, request.projectScope)
    const hasKey = request.headers['idempotency-key'] !== undefined
    const isOnce = hasKey && isIdempotent(request, principal)
    if (!isOnce) return orOffload(request, () => handleAudited(services, principal, request))
    // The caller may reconnect for the answer, so its disconnect does not cancel the work.
    const { signal: _, ...lasting } = request
    return orOffload(lasting, () =>
      answerOnce(services, principal, request, {
        answer: (inner) => handleAudited(inner, principal, lasting, services),
        failed: (error) => errorReply(request, error),
        isWhole: isWhole(request),
      }),
    )
  })

/** Offloads after the work's own transaction, whose locks and Idempotency-Key the other process needs. */
async function orOffload(request: FhirRequest, work: () => Promise<FhirReply>): Promise<FhirReply> {
  try {
    return await work()
  } catch (error) {
    if (!(error instanceof OffloadRequired) || request.offload === undefined) throw error
    return await request.offload(request)
  }
}

/** Inside a transaction, `outer` has services outside it: refusals are recorded even after a rollback. */
async function handleAudited(
  services: Services,
  principal: Principal,
  request: FhirRequest,
  outer = services,
): Promise<FhirReply> {
  try {
    const target = findTarget(request)
    const caller = withCause(principal, request)
    if (target.kind === 'job') {
      return withTracing(await target.answer(services, caller, request), request)
    }
    const reply = await chargeAndRun(services, caller, request, target)
    const signed = await withSigned(services, principal, target, reply)
    return isStored(target) ? signed : withTracing(signed, request)
  } catch (error) {
    auditRefusal(outer, principal, request, error)
    throw error
  }
}

/** True for writes of resources and transactions, which change nothing outside the Repository. */
function isWhole(request: FhirRequest): boolean {
  const { kind } = findTarget(request)
  if (kind !== 'bundle') return WRITES.has(kind)
  const sent = readJson(request)
  return isObject(sent) && sent.type === 'transaction' && !readPreferences(request).respondAsync
}

async function withErrorsAsReplies(request: FhirRequest, work: () => Promise<FhirReply>) {
  try {
    return await work()
  } catch (error) {
    if (!(error instanceof HttpError)) throw error
    return errorReply(request, error)
  }
}

function errorReply(request: FhirRequest, error: HttpError): FhirReply {
  const reply = withTracing(failureReply(error), request)
  return wantsPretty(request) ? indented(reply) : reply
}

/** Records the cause of a change, which its events carry. */
function withCause(principal: Principal, request: FhirRequest): Principal {
  const { method, requestId, traceId } = request
  if (method === 'GET') return principal
  return { ...principal, cause: { depth: botCallDepth(request), traceId, requestId } }
}

async function withSigned(
  services: Services,
  principal: Principal,
  route: Route,
  reply: FhirReply,
): Promise<FhirReply> {
  const { body } = reply
  // The answer of a bot goes out as it is.
  const isRun = route.kind === 'operation' && route.operation === execute
  if (isRun || typeof body !== 'string' || !namesBinary(body)) return reply
  return { ...reply, body: await signAttachments(services, principal, body) }
}

/** An outcome that is a resource, or that a bot has made, is given as it is. */
function isStored(route: Route): boolean {
  if (route.kind !== 'operation') return 'type' in route && route.type === 'OperationOutcome'
  return route.operation === execute || !operations.includes(route.operation)
}

interface Job {
  readonly kind: 'job'
  readonly below: string
  readonly answer: Handle
}

/** Paths of jobs: answered before the interactions, at no cost in load units. */
const JOBS: readonly Job[] = [
  { kind: 'job', below: 'job/', answer: handleJob },
  { kind: 'job', below: 'bulkdata/import/', answer: handleImport },
  { kind: 'job', below: 'bulkdata/', answer: handleExport },
]

function findTarget({ method, path }: FhirRequest): Route | Job {
  return JOBS.find(({ below }) => path.startsWith(below)) ?? findRoute(method, path)
}

/** Errors: HttpError for faults of the caller. */
async function chargeAndRun(
  services: Services,
  principal: Principal,
  request: FhirRequest,
  route: Route,
): Promise<FhirReply> {
  if (request.readsOnly) requireNoEffects(route)
  requireKept(request.method, route, request.headers)
  const item =
    principal.project.quota &&
    (await charge(services, principal, { request, units: loadUnits(route) }))
  const reply = await runRoute(services, principal, request, route)
  return item === undefined ? reply : { ...reply, headers: { RateLimit: item, ...reply.headers } }
}

async function runRoute(
  services: Services,
  principal: Principal,
  request: FhirRequest,
  route: Route,
): Promise<FhirReply> {
  if (route.kind === 'operation') {
    const { operation, type, id, rest } = route
    const asked = { operation, services, principal, request, type, id, rest }
    const call = operation.onlyReads ? await forReads(asked) : asked
    if (operation.area !== undefined) requireArea(principal, operation.area)
    if (operation.ownFormat) return operation.run(call)
    const preferences = readPreferences(request)
    return applyPreferences(await operation.run(call), preferences)
  }
  const asked = { services, principal, request }
  const hasReplicas = services.replicas !== undefined
  const asking = hasReplicas && ONLY_READ.has(route.kind) ? await forReads(asked) : asked
  if ('type' in route && route.type === 'Binary') {
    const content = await readContent(asking.services, principal, request, route)
    if (content !== undefined) return content
  }
  const preferences = readPreferences(request)
  const reply = await dispatch({ ...asking, preferences }, route)
  return applyPreferences(reply, preferences)
}

const SEARCHES = new Set<string>(['search', 'search-form', 'system-search', 'compartment-search'])
/** Routes that a replica may serve. */
const ONLY_READ = SEARCHES.union(
  new Set(['read', 'vread', 'history', 'type-history', 'system-history']),
)

/** The bundle charges the cost of its entries. */
const runEntry: Respond = (services, principal, request) =>
  runRoute(services, principal, request, findRoute(request.method, request.path))

async function dispatch(
  context: FhirContext,
  route: Exclude<Route, { readonly kind: 'operation' }>,
): Promise<FhirReply> {
  const { headers } = context.request
  if (context.preferences.respondAsync && SEARCHES.has(route.kind)) return acceptRequest(context)
  switch (route.kind) {
    case 'read':
      // Most AsyncJobs are not stored as such.
      if (route.type === 'AsyncJob') return readAsyncJob(context, route.id)
      return read(context, route.type, route.id)
    case 'vread':
      return vread(context, route.type, route.id, route.vid)
    case 'history':
      return history(context, route.type, route.id)
    case 'create': {
      const criteria = headers['if-none-exist']
      return criteria === undefined
        ? create(context, route.type)
        : createConditional(context, route.type, criteria)
    }
    case 'update':
      return update(context, route.type, route.id)
    case 'patch':
      return patch(context, route.type, route.id)
    case 'delete':
      return remove(context, route.type, route.id)
    case 'conditional-update':
      return updateConditional(context, route.type)
    case 'conditional-patch':
      return patchConditional(context, route.type)
    case 'conditional-delete':
      return deleteConditional(context, route.type)
    case 'search':
    case 'search-form':
      return search(context, route.type)
    case 'bundle': {
      const asked = readBundle(context, findRoute)
      if (context.preferences.respondAsync) return acceptRequest(context)
      return bundle(context, asked, runEntry)
    }
    case 'metadata':
      return capabilities(context)
    case 'system-search':
      return searchSystem(context)
    case 'type-history':
    case 'system-history':
      return readHistory(context, 'type' in route ? route.type : undefined)
    case 'compartment-search':
      return searchCompartment(context, route)
    default:
      return route satisfies never
  }
}

function applyPreferences(reply: FhirReply, preferences: Preferences): FhirReply {
  const { contentType, applied, pretty } = preferences
  const headers: Record<string, string> = { ...reply.headers }
  if (headers['Content-Type'] === FHIR_JSON) headers['Content-Type'] = contentType
  if (applied !== '') headers['Preference-Applied'] ??= applied
  return { ...(pretty ? indented(reply) : reply), headers }
}

/** Serves `storage/{id}/{vid}` with a signature in the query, without a Principal. */
export function handleSigned(services: Services, request: FhirRequest): Promise<FhirReply> {
  return withErrorsAsReplies(request, () => signedContent(services, request))
}

/** Stores the content that a signed address takes; `address` is that of the sender. */
export async function handleSignedUpload(
  services: Services,
  request: FhirRequest,
  address: string,
): Promise<FhirReply> {
  return await withErrorsAsReplies(request, async () => {
    const upload = await signedUpload(services, request, address)
    return await handle(services, upload.principal, upload.request)
  })
}

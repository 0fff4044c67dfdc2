/**
 * Routes FHIR requests. The web server, bundle entries and the bot client share this router, so that all three behave
 * the same.
 */
import { requireArea } from '../access/grant.ts'
import type { Principal } from '../access/principal.ts'
import { customOperation } from '../bots/custom.ts'
import {
  badStructure,
  HttpError,
  methodNotAllowed,
  notFound,
  OffloadRequired,
} from '../core/errors.ts'
import { handleExport } from '../export/status.ts'
import { isResourceType } from '../fhir/definitions.ts'
import { isObject } from '../fhir/resource.ts'
import { handleImport } from '../import/imports.ts'
import { acceptRequest } from '../jobs/async-requests.ts'
import { auditRefusal } from '../request/admin-audit.ts'
import { namesBinary, signAttachments } from '../request/binary/attachments.ts'
import { contentReply, signedContent, wantsContent } from '../request/binary/read.ts'
import { readJson, readPreferences, requireKept, wantsPretty } from '../request/negotiate.ts'
import { botCallDepth, charge, loadUnits } from '../request/quota.ts'
import { FHIR_JSON, failureReply, indented, withTracing } from '../request/reply.ts'
import {
  type FhirContext,
  type FhirReply,
  type FhirRequest,
  forReads,
  type Handle,
  type Operation,
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
import { history, readHistory } from '../rest/history.ts'
import { answerOnce, isIdempotent } from '../rest/idempotency.ts'
import { read, vread } from '../rest/resources.ts'
import { search, searchCompartment, searchSystem } from '../rest/search.ts'
import { create, patch, remove, update } from '../rest/write.ts'
import { isLegalId, normalId } from '../store/rows/context.ts'
import type { Version } from '../store/rows/version.ts'
import { handleJob, readAsyncJob } from './jobs.ts'
import { capabilities } from './metadata.ts'
import { operations } from './operations.ts'

/** Never throws for client errors: they are replies with an OperationOutcome. */
export const handle: Handle = (services, principal, request) =>
  answered(request, () => {
    const hasKey = request.headers['idempotency-key'] !== undefined
    const isOnce = hasKey && isIdempotent(request, principal)
    if (!isOnce) return answer(services, principal, request)
    // The caller may reconnect for the answer, so its disconnect does not cancel the work.
    const { signal: _, ...lasting } = request
    return answerOnce(services, principal, request, {
      answer: (inner) => answer(inner, principal, lasting, services),
      failed: (error) => failed(request, error),
      isWhole: isWhole(request),
    })
  })

/** Inside a transaction, `outer` has services outside it: refusals are recorded even after a rollback. */
async function answer(
  services: Services,
  principal: Principal,
  request: FhirRequest,
  outer = services,
): Promise<FhirReply> {
  const caller = withCause(principal, request)
  const reply = await respond(services, caller, request).catch((error: unknown) => {
    auditRefusal(outer, principal, request, error)
    throw error
  })
  const signed = await withSigned(services, principal, request, reply)
  return isStored(request.path) ? signed : withTracing(signed, request)
}

/** True for writes of resources and transactions, which change nothing outside the Repository. */
function isWhole(request: FhirRequest): boolean {
  if (JOB_PATHS.some(({ below }) => request.path.startsWith(below))) return false
  const { kind } = findRoute(request.method, request.path)
  if (kind !== 'bundle') return WRITES.has(kind)
  const sent = readJson(request)
  const isTransaction = isObject(sent) && sent.type === 'transaction'
  return isTransaction && !readPreferences(request).respondAsync
}

/** Serves `storage/{id}/{vid}` with a signature in the query, without a Principal. */
export function handleSigned(services: Services, request: FhirRequest): Promise<FhirReply> {
  return answered(request, () => signedContent(services, request))
}

async function answered(
  request: FhirRequest,
  answer: () => Promise<FhirReply>,
): Promise<FhirReply> {
  try {
    return await answer()
  } catch (error) {
    if (!(error instanceof HttpError)) throw error
    return failed(request, error)
  }
}

function failed(request: FhirRequest, error: HttpError): FhirReply {
  const reply = withTracing(failureReply(error), request)
  return wantsPretty(request) ? indented(reply) : reply
}

/** Records the cause of a change, which its events carry. */
function withCause(principal: Principal, request: FhirRequest): Principal {
  const { method, requestId, traceId } = request
  if (method === 'GET') return principal
  return { ...principal, cause: { depth: botCallDepth(request), traceId, requestId } }
}

function withSigned(
  services: Services,
  principal: Principal,
  { path }: FhirRequest,
  reply: FhirReply,
): FhirReply | Promise<FhirReply> {
  const { body } = reply
  // Bot replies are sent unchanged.
  const isSigned = typeof body === 'string' && namesBinary(body) && !/\$execute|^job\//.test(path)
  return isSigned ? signedReply(services, principal, { ...reply, body }) : reply
}

async function signedReply(
  services: Services,
  principal: Principal,
  reply: FhirReply & { readonly body: string },
): Promise<FhirReply> {
  const body = await signAttachments(services, principal, reply.body)
  return body === reply.body ? reply : { ...reply, body }
}

/** True for outcomes that are resources or bot results, sent unchanged. */
function isStored(path: string): boolean {
  const [, operation] = /\$([\w-]+)/.exec(path) ?? []
  if (operation === undefined) return path.startsWith('OperationOutcome')
  return operation === 'execute' || operations.every(({ name }) => name !== operation)
}

/** Job paths, answered before any other work and without load units. */
const JOB_PATHS: readonly { readonly below: string; readonly answer: Handle }[] = [
  { below: 'job/', answer: handleJob },
  { below: 'bulkdata/import/', answer: handleImport },
  { below: 'bulkdata/', answer: handleExport },
]

/** Types with resources outside the store. */
const READS: Readonly<Record<string, typeof readAsyncJob>> = { AsyncJob: readAsyncJob }

/** Errors: HttpError for client errors. */
export async function respond(
  services: Services,
  principal: Principal,
  request: FhirRequest,
): Promise<FhirReply> {
  const job = JOB_PATHS.find(({ below }) => request.path.startsWith(below))
  if (job !== undefined) return job.answer(services, principal, request)
  const route = findRoute(request.method, request.path)
  if (request.isHead) checkHead(route)
  requireKept(request.method, route, request.headers)
  const item =
    principal.project.quota &&
    (await charge(services, principal, { request, units: loadUnits(route) }))
  const reply = await answerRoute(services, principal, request, route).catch((error: unknown) => {
    if (!(error instanceof OffloadRequired) || request.offload === undefined) throw error
    return request.offload(request)
  })
  return item === undefined ? reply : { ...reply, headers: { RateLimit: item, ...reply.headers } }
}

async function answerRoute(
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
    return finish(await operation.run(call), preferences)
  }
  const asked = { services, principal, request }
  const hasReplicas = services.replicas !== undefined
  const asking = hasReplicas && ONLY_READ.has(route.kind) ? await forReads(asked) : asked
  const version = await versionWithContent(asking.services, principal, request, route)
  if (version !== undefined) return contentReply(asking.services, request, version)
  const preferences = readPreferences(request)
  const reply = await run({ ...asking, preferences }, route)
  return finish(reply, preferences)
}

/** Routes that a replica may serve. */
const ONLY_READ: ReadonlySet<string> = new Set([
  ...['read', 'vread', 'history', 'type-history', 'system-history'],
  ...['search', 'search-form', 'system-search', 'compartment-search'],
])

/** The bundle charges the cost of its entries. */
const answerEntry: Respond = (services, principal, request) =>
  answerRoute(services, principal, request, findRoute(request.method, request.path))

/** For content, Accept names its media type and is not parsed by `readPreferences`. */
function versionWithContent(
  { repository }: Services,
  principal: Principal,
  request: FhirRequest,
  route: Route,
): Promise<Version> | undefined {
  if (!('type' in route) || route.type !== 'Binary' || !wantsContent(request)) return undefined
  if (route.kind === 'read') return repository.read(principal, route.type, route.id)
  if (route.kind !== 'vread') return undefined
  return repository.readVersion(principal, route.type, route.id, route.vid)
}

type InteractionRoute = Exclude<Route, { readonly kind: 'operation' }>

async function run(context: FhirContext, route: InteractionRoute): Promise<FhirReply> {
  const { headers } = context.request
  switch (route.kind) {
    case 'read':
      return READS[route.type]?.(context, route.id) ?? read(context, route.type, route.id)
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
      if (context.preferences.respondAsync) return acceptRequest(context)
      return search(context, route.type)
    case 'bundle': {
      const { request, services } = context
      const asked = readBundle(readJson(request), services.config, findRoute)
      if (context.preferences.respondAsync) return acceptRequest(context)
      return bundle(context, asked, answerEntry)
    }
    case 'metadata':
      return capabilities(context)
    case 'system-search':
      if (context.preferences.respondAsync) return acceptRequest(context)
      return searchSystem(context)
    case 'type-history':
      return readHistory(context, route.type)
    case 'system-history':
      return readHistory(context, undefined)
    case 'compartment-search':
      if (context.preferences.respondAsync) return acceptRequest(context)
      return searchCompartment(context, route)
    default:
      return route satisfies never
  }
}

function finish(reply: FhirReply, preferences: Preferences): FhirReply {
  const { contentType, applied, pretty } = preferences
  const headers: Record<string, string> = { ...reply.headers }
  if (headers['Content-Type'] === FHIR_JSON) headers['Content-Type'] = contentType
  if (applied !== '') headers['Preference-Applied'] ??= applied
  return { ...(pretty ? indented(reply) : reply), headers }
}

/** Errors: 404 unknown path or operation, 400 unknown resource type, 405 with Allow. */
function findRoute(method: string, path: string): Route {
  const segments = path.split('/').filter((segment) => segment !== '')
  const [first, second, third, fourth] = segments
  if (first === undefined) return pick(method, { GET: 'system-search', POST: 'bundle' }, {})
  if (first.startsWith('$')) return operationRoute(method, segments, {})
  if (segments.length === 1 && first === 'metadata') return pick(method, { GET: 'metadata' }, {})
  if (segments.length === 1 && first === '_history') {
    return pick(method, { GET: 'system-history' }, {})
  }
  if (segments.length === 1 && first === '_search') {
    return pick(method, { POST: 'system-search' }, {})
  }
  if (!/^[A-Za-z]+$/.test(first) || first === 'job') throw notFound()
  if (!isResourceType(first)) throw badStructure('Unknown resource type')
  const type = first
  if (second === undefined) return pick(method, TYPE_ROUTES, { type })
  if (second.startsWith('$')) return operationRoute(method, segments.slice(1), { type })
  if (segments.length === 2 && second === '_search') {
    return pick(method, { POST: 'search-form' }, { type })
  }
  if (segments.length === 2 && second === '_history') {
    return pick(method, { GET: 'type-history' }, { type })
  }
  if (!isLegalId(second)) throw notFound()
  const id = normalId(second)
  if (third === undefined) return pick(method, INSTANCE_ROUTES, { type, id })
  if (third.startsWith('$')) return operationRoute(method, segments.slice(2), { type, id })
  if (third === '_history' && segments.length === 3) {
    return pick(method, { GET: 'history' }, { type, id })
  }
  if (third === '_history' && segments.length === 4) {
    return pick(method, { GET: 'vread' }, { type, id, vid: fourth ?? '' })
  }
  const isSearch = segments.length === 3 || (segments.length === 4 && fourth === '_search')
  if (!isSearch || !/^([A-Za-z]+|\*)$/.test(third)) throw notFound()
  if (third !== '*' && !isResourceType(third)) throw badStructure('Unknown resource type')
  const search = fourth === undefined ? 'GET' : 'POST'
  return pick(method, { [search]: 'compartment-search' }, { type, id, target: third })
}

const TYPE_ROUTES = {
  GET: 'search',
  POST: 'create',
  PUT: 'conditional-update',
  PATCH: 'conditional-patch',
  DELETE: 'conditional-delete',
} as const

const INSTANCE_ROUTES = { GET: 'read', PUT: 'update', PATCH: 'patch', DELETE: 'delete' } as const

function pick(
  method: string,
  kinds: Readonly<Record<string, Route['kind']>>,
  target: Readonly<Record<string, string>>,
): Route {
  const kind = kinds[method === 'HEAD' ? 'GET' : method]
  if (kind === undefined || !Object.hasOwn(kinds, method === 'HEAD' ? 'GET' : method)) {
    throw methodNotAllowed(allowed(Object.keys(kinds)))
  }
  // Each table above pairs a kind with its target.
  return { kind, ...target } as Route
}

/** Errors: 405 for a GET with effects, which HEAD must not start. */
function checkHead(route: Route): void {
  if (route.kind === 'operation' && route.operation.acts) throw notAllowed(route.operation)
}

function notAllowed({ methods, acts }: Operation): HttpError {
  return methodNotAllowed(acts ? methods.join(', ') : allowed(methods))
}

function allowed(methods: readonly string[]): string {
  const all = methods.includes('GET') ? ['HEAD', ...methods] : methods
  return [...all].sort().join(', ')
}

function operationRoute(
  method: string,
  segments: readonly string[],
  target: { readonly type?: string; readonly id?: string },
): Route {
  const name = segments[0]?.slice(1) ?? ''
  const level = target.id !== undefined ? 'instance' : target.type === undefined ? 'system' : 'type'
  const known = operations.find(
    (candidate) =>
      candidate.name === name &&
      candidate.on.some((on) => on.level === level && (on.type ?? target.type) === target.type),
  )
  const operation = known ?? customOperation(name)
  // Unknown names are 404 for every method.
  if (known === undefined && !operation.methods.includes(method)) throw notFound()
  if (!operation.methods.includes(method)) throw notAllowed(operation)
  const rest = segments.slice(1).join('/')
  return { kind: 'operation', operation, type: target.type, id: target.id, rest }
}

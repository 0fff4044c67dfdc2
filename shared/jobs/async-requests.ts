/**
 * `Prefer: respond-async` for searches, bundles and some operations: a worker stores the response as a Binary. Also
 * `$reindex` and `$expunge`. https://hl7.org/fhir/R4/async.html
 */
import { randomUUID } from 'node:crypto'
import { type ProjectContext, profileReference, servicePrincipal } from '../access/principal.ts'
import { system } from '../access/project-context.ts'
import {
  finishAsyncJob,
  isJobFinished,
  type JobEnd,
  jobReply,
  startAsyncJob,
  storeAsyncJob,
} from '../bots/async-jobs.ts'
import {
  allOk,
  badRequest,
  forbidden,
  forbiddenByPlatform,
  HttpError,
  issue,
  outcome,
  tooManyRequests,
  unavailable,
} from '../core/errors.ts'
import { COMPARTMENTS } from '../fhir/definitions.ts'
import { decodeText } from '../fhir/json.ts'
import { actingSession } from '../identity/principals.ts'
import { wakeWorkers } from '../redis/wakes.ts'
import { omitPreference } from '../request/negotiate.ts'
import { readInputs } from '../request/parameters.ts'
import { absoluteUrl, FHIR_JSON, outcomeReply } from '../request/reply.ts'
import type {
  FhirContext,
  FhirReply,
  FhirRequest,
  Handle,
  Operation,
  OperationCall,
} from '../request/request.ts'
import { DEPTH_HEADER } from '../request/request.ts'
import type { Services } from '../request/services.ts'
import {
  addUpkeepJob,
  jobRunLease,
  removeJob,
  type UpkeepInput,
  type UpkeepKind,
} from '../store/rows/upkeep-jobs.ts'
import { platformMeta } from '../store/rows/version.ts'
import {
  addRequest,
  type LeasedRequest,
  offerRequest,
  type StoredRequest,
} from '../store/write/requests.ts'
import { expungeResource, purge, reindexResource } from './upkeep/maintenance.ts'

/** Waiting requests per Project: bundles are large and stored in the database. */
const MOST_WAITING = 100
const RETRY_SECONDS = 5

/** 202 with the status URL. Errors: 429 with too many waiting requests, 403 for internal work. */
export async function acceptRequest(context: FhirContext): Promise<FhirReply> {
  const { services, principal, request, preferences } = context
  const { membershipId, scope, patient, profile, profileDisplay, clientId, project } = principal
  if (membershipId === undefined) throw forbidden()
  // The worker restores the limits of a Bot from the profile.
  if (principal.declared !== undefined && profile?.startsWith('Bot/') !== true) {
    throw forbiddenByPlatform('A Bot that names its secrets or hosts starts nothing as its caller')
  }
  const id = randomUUID()
  const stored: StoredRequest = {
    projectId: project.id,
    membershipId,
    scope,
    patient,
    profile,
    profileDisplay,
    clientId,
    method: request.method,
    path: request.path,
    ...(request.projectScope === undefined ? {} : { projectScope: request.projectScope }),
    query: request.query.toString(),
    headers: keptHeaders(request.headers),
    body: bodyText(request),
    requestId: request.requestId,
    traceId: request.traceId,
  }
  const isAdded = await addRequest(services.database, {
    id,
    project: project.number,
    request: stored,
    most: MOST_WAITING,
  })
  if (!isAdded) throw tooManyRequests(RETRY_SECONDS)
  const url = absoluteUrl(services, request.path)
  await storeAsyncJob(services, principal, { runId: id, status: 'accepted', request: url })
  if (!(await offerRequest(services.database, id))) throw unavailable('Database')
  await wakeWorkers(services.bus, 'requests')
  const applied = [preferences.applied, 'respond-async'].filter((item) => item !== '').join(', ')
  return jobReply(services, id, { 'Preference-Applied': applied })
}

/** Errors: 400 for bytes that are not UTF-8, and for NUL, which JSON in PostgreSQL cannot hold. */
function bodyText({ body = '' }: FhirRequest): string {
  const text = decodeText(body)
  if (text.includes('\0')) throw badRequest('Null bytes are not allowed')
  return text
}

/** Headers that affect the response; others, such as credentials, are not stored. */
function keptHeaders(
  headers: Readonly<Record<string, string | undefined>>,
): Record<string, string> {
  const kept: Record<string, string> = {}
  for (const name of ['accept', 'content-type', 'x-medplum', DEPTH_HEADER] as const) {
    const value = headers[name]
    if (value !== undefined) kept[name] = value
  }
  const prefer = omitPreference(headers.prefer ?? '', 'respond-async')
  return prefer === '' ? kept : { ...kept, prefer }
}

/** Runs a request while its lease is held. A batch may stop half-way; a late cancel does not affect a finished one. */
export async function runRequest(
  services: Services,
  leased: LeasedRequest,
  signal: AbortSignal,
  handle: Handle,
): Promise<void> {
  const { id, request: stored } = leased
  await endRequest(services, leased, async (project) => {
    await startAsyncJob(services, project, stored.profile, id)
    return await runStoredRequest(services, { id, stored }, signal, handle)
  })
}

/** Ends a request that a crashed worker had begun. */
export async function endLostRequest(services: Services, lost: LeasedRequest): Promise<void> {
  const text = 'The request was interrupted; a batch may be done in part'
  const end = failedWith(outcome(undefined, issue('error', 'exception', text)))
  await endRequest(services, lost, async () => end)
}

/** Stores the end that `work` returns in the AsyncJob, and removes the request. */
async function endRequest(
  services: Services,
  leased: LeasedRequest,
  work: (project: ProjectContext) => Promise<JobEnd>,
): Promise<void> {
  const { id, request } = leased
  const project = await services.principals.project(request.projectId)
  try {
    if (project !== undefined) {
      const end = { ...(await work(project)), lease: jobRunLease(leased) }
      await finishAsyncJob(services, project, { author: request.profile, runId: id, end })
    }
  } catch (error) {
    // Cancelled or deleted. Upkeep retries other failures.
    if (!isJobFinished(error)) throw error
  }
  await removeJob(services.database, leased)
}

async function runStoredRequest(
  services: Services,
  { id, stored }: { readonly id: string; readonly stored: StoredRequest },
  signal: AbortSignal,
  handle: Handle,
): Promise<JobEnd> {
  try {
    const reply = await answer(services, stored, signal, handle)
    if (reply.status >= 400 && signal.aborted) return { status: 'cancelled' }
    if (reply.status >= 400) return failedWith(JSON.parse(String(reply.body)))
    const reference = await storeResult(services, { id, ...stored }, reply, handle)
    return {
      status: 'completed',
      parameter: [
        { name: 'results', valueReference: { reference } },
        { name: 'outcome', resource: allOk },
      ],
    }
  } catch (error) {
    if (error instanceof HttpError) return failedWith(error.outcome)
    services.log.error({ err: error, requestId: stored.requestId }, 'An accepted request failed')
    return failedWith(outcome(undefined, issue('error', 'exception', 'Internal server error')))
  }
}

function failedWith(resource: unknown): JobEnd {
  return { status: 'error', parameter: [{ name: 'outcome', resource }] }
}

async function answer(
  services: Services,
  stored: StoredRequest,
  signal: AbortSignal,
  handle: Handle,
): Promise<FhirReply> {
  const { profile, profileDisplay, clientId } = stored
  const session = await actingSession(services.principals, stored)
  if (session === undefined) throw forbidden()
  const isActing = session.principal.profile !== profile
  const member = isActing ? profileReference(session.principal) : undefined
  const principal = { ...session.principal, profile, profileDisplay, onBehalfOf: member, clientId }
  const { method, path, projectScope, query, headers, body, requestId, traceId } = stored
  const request = { method, path, headers, body, requestId, traceId, signal, mayWait: signal }
  return handle(services, principal, {
    ...request,
    query: new URLSearchParams(query),
    ...(projectScope === undefined ? {} : { projectScope }),
  })
}

async function storeResult(
  services: Services,
  { id, projectId, profile, requestId, traceId }: StoredRequest & { readonly id: string },
  reply: FhirReply,
  handle: Handle,
): Promise<string> {
  const project = await services.principals.project(projectId)
  if (project === undefined) throw forbidden()
  const data = Buffer.from(reply.body ?? '').toString('base64')
  const stored = await handle(services, servicePrincipal(project, { profile }), {
    method: 'POST',
    path: 'Binary',
    query: new URLSearchParams(),
    headers: { 'content-type': 'application/fhir+json' },
    body: JSON.stringify({
      resourceType: 'Binary',
      contentType: (reply.headers['Content-Type'] ?? FHIR_JSON).split(';')[0],
      // Only the caller and administrators can read the job, and so its result.
      securityContext: { reference: `AsyncJob/${id}` },
      data,
    }),
    requestId,
    traceId,
  })
  const location = /Binary\/[^/]+/.exec(stored.headers.Location ?? '')?.[0]
  if (location === undefined) throw new Error(`The result was answered ${stored.status}`)
  return location
}

/** `projectId` is the target Project. Errors: 403 without a membership. */
export async function startUpkeep(
  { services, principal, request, type, id }: Omit<OperationCall, 'operation'>,
  kind: UpkeepKind,
  projectId: string,
  work: Pick<UpkeepInput, 'filter' | 'dryRun'> = {},
): Promise<FhirReply> {
  const { database } = services
  const { project, profile, membershipId, scope, patient } = principal
  if (membershipId === undefined) throw forbidden()
  const jobId = randomUUID()
  const url = absoluteUrl(services, request.path)
  await storeAsyncJob(services, principal, { runId: jobId, status: 'accepted', request: url })
  const asked = { homeId: project.id, requester: profile, membershipId, scope, patient }
  const input = { ...asked, projectId, type, id, ...work }
  await addUpkeepJob(database, jobId, { project: project.number, kind, input })
  return jobReply(services, jobId)
}

/** Returns a completed AsyncJob for work that is already done. */
export async function completedJob({
  services,
  principal,
  request,
}: Pick<OperationCall, 'services' | 'principal' | 'request'>): Promise<FhirReply> {
  const jobId = randomUUID()
  await storeAsyncJob(services, principal, {
    runId: jobId,
    status: 'completed',
    request: absoluteUrl(services, request.path),
    transactionTime: new Date().toISOString(),
    output: { resourceType: 'Parameters', parameter: [{ name: 'outcome', resource: allOk }] },
  })
  return jobReply(services, jobId)
}

const KEPT_MS = 7 * 24 * 3_600_000

/** Removes jobs after 7 days, with the stored responses; returns the number of jobs. */
export async function removeOldJobs({ repository }: Services): Promise<number> {
  const before = new Date(Date.now() - KEPT_MS)
  return await repository.withStore((store) => purge(store, system, 'AsyncJob', before))
}

/** Reindexes one resource immediately (admins), or a type or all types by a worker (super admins). */
export const reindex: Operation = {
  name: 'reindex',
  on: [{ level: 'system' }, { level: 'type' }, { level: 'instance' }],
  methods: ['POST'],
  text: {
    summary: 'Reindex',
    description: 'Returns 202 for more than one resource.',
    answer: 'OperationOutcome',
  },
  area: 'administration',
  async run(call) {
    const { services, principal, type = '', id } = call
    if (id === undefined) {
      if (!principal.isSuperAdmin) throw forbidden()
      return startUpkeep(call, 'reindex', principal.project.id)
    }
    await services.repository.withStore((store) => reindexResource(store, principal, type, id))
    return outcomeReply(200, allOk)
  },
}

export const expunge: Operation = {
  name: 'expunge',
  on: [{ level: 'instance' }],
  methods: ['POST'],
  inputs: { everything: 'flag: Also the resources of its compartment' },
  text: {
    summary: 'Delete permanently',
    description: 'Includes the history.',
    answer: 'OperationOutcome',
  },
  area: 'administration',
  async run(call) {
    const { services, principal, type = '', id = '' } = call
    const { repository } = services
    const everything = readInputs(call).flag('everything')
    if (type !== 'Project' && !everything) {
      await repository.withStore((store) => expungeResource(store, principal, type, id))
      return outcomeReply(200, allOk)
    }
    if (!principal.isProjectAdmin) throw forbidden()
    if (type === 'Project') {
      if (!principal.isSuperAdmin) throw forbidden()
      await repository.read(principal, type, id)
      if (id === principal.project.id) throw badRequest('This Project cannot be expunged')
      return startUpkeep(call, 'expunge', id)
    }
    if (!COMPARTMENTS.some((name) => name === type)) {
      throw badRequest(`${type} has no compartment; only ${COMPARTMENTS.join(', ')} have`)
    }
    const { project } = platformMeta(await repository.read(principal, type, id))
    return startUpkeep(call, 'expunge', project ?? principal.project.id)
  },
}

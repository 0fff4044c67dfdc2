/**
 * `Prefer: respond-async` with a bundle: accepted here, carried out by a worker, its answer stored as a
 * Binary that the AsyncJob names. https://hl7.org/fhir/R4/async.html
 */
import { randomUUID } from 'node:crypto'
import { profileReference } from '../access/principal.ts'
import {
  finishAsyncJob,
  type JobEnd,
  JobFinished,
  jobPrincipal,
  startAsyncJob,
  storeAsyncJob,
} from '../bots/async-jobs.ts'
import {
  accepted,
  allOk,
  forbidden,
  HttpError,
  issue,
  outcome,
  tooManyRequests,
} from '../errors.ts'
import { actingSession } from '../identity/principals.ts'
import { DEPTH_HEADER } from '../request/quota.ts'
import { absoluteUrl, FHIR_JSON, outcomeReply } from '../request/reply.ts'
import type { FhirReply, Handle, Interaction } from '../request/request.ts'
import type { Services } from '../services.ts'
import {
  addRequest,
  claimRequest,
  removeRequest,
  type StoredRequest,
} from '../store/write/async-requests.ts'

/** Requests of one Project: bundles are large, and rows of a database are no place to pile them up. */
const MOST_WAITING = 100
const RETRY_SECONDS = 5

/** 202 with the status URL. Errors: 429 when many of the Project wait, 403 for the service's own work. */
export async function acceptRequest(interaction: Interaction): Promise<FhirReply> {
  const { services, principal, request, preferences } = interaction
  const { membershipId, scope, patient, profile, profileDisplay, clientId, project } = principal
  if (membershipId === undefined) throw forbidden()
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
    query: request.query.toString(),
    headers: keptHeaders(request.headers),
    body: request.body?.toString() ?? '',
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
  await services.queues.addRequest(id)
  const statusUrl = absoluteUrl(services, `job/${id}/status`)
  const applied = [preferences.applied, 'respond-async'].filter((item) => item !== '').join(', ')
  return outcomeReply(202, accepted(statusUrl), {
    'Content-Location': statusUrl,
    'Preference-Applied': applied,
    'Retry-After': '1',
  })
}

/** Headers that shape the answer; the rest, credentials among it, is not stored. */
function keptHeaders(
  headers: Readonly<Record<string, string | undefined>>,
): Record<string, string> {
  const kept: Record<string, string> = {}
  for (const name of ['accept', 'content-type', 'x-medplum', DEPTH_HEADER] as const) {
    const value = headers[name]
    if (value !== undefined) kept[name] = value
  }
  const prefer = (headers.prefer ?? '')
    .split(',')
    .filter((item) => !/^\s*respond-async\b/i.test(item))
    .join(',')
  return prefer.trim() === '' ? kept : { ...kept, prefer }
}

/**
 * Carries out a request that waits; does nothing for one that does not. A batch may end half done; one
 * that is done before a cancel arrives is completed.
 */
export async function runRequest(
  services: Services,
  id: string,
  signal: AbortSignal,
  handle: Handle,
): Promise<void> {
  const stored = await claimRequest(services.database, id)
  if (stored === undefined) return
  const project = await services.principals.project(stored.projectId)
  try {
    if (project !== undefined) {
      await startAsyncJob(services, project, stored.profile, id)
      const end = await endOf(services, stored, signal, handle)
      await finishAsyncJob(services, project, { author: stored.profile, runId: id, end })
    }
  } catch (error) {
    // Cancelled or deleted: nobody waits for the end. Other failures leave it to the upkeep.
    const isGone = error instanceof HttpError && error.status < 500
    if (!isGone && !(error instanceof JobFinished)) throw error
  }
  await removeRequest(services.database, id)
}

async function endOf(
  services: Services,
  stored: StoredRequest,
  signal: AbortSignal,
  handle: Handle,
): Promise<JobEnd> {
  try {
    const reply = await answer(services, stored, signal, handle)
    if (reply.status >= 400 && signal.aborted) return { status: 'cancelled' }
    if (reply.status >= 400) return failedWith(JSON.parse(String(reply.body)))
    const reference = await storeResult(services, stored, reply, handle)
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

/** Rights are those that the member has now, within the scope of the request. */
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
  const onBehalfOf = isActing ? profileReference(session.principal) : undefined
  const principal = { ...session.principal, profile, profileDisplay, onBehalfOf, clientId }
  const { method, path, query, headers, body, requestId, traceId } = stored
  const request = { method, path, headers, body, requestId, traceId, signal, mayWait: signal }
  return handle(services, principal, { ...request, query: new URLSearchParams(query) })
}

async function storeResult(
  services: Services,
  { projectId, profile, requestId, traceId }: StoredRequest,
  reply: FhirReply,
  handle: Handle,
): Promise<string> {
  const project = await services.principals.project(projectId)
  if (project === undefined) throw forbidden()
  const data = Buffer.from(reply.body ?? '').toString('base64')
  const stored = await handle(services, jobPrincipal(project, profile), {
    method: 'POST',
    path: 'Binary',
    query: new URLSearchParams(),
    headers: { 'content-type': 'application/fhir+json' },
    body: JSON.stringify({ resourceType: 'Binary', contentType: FHIR_JSON.split(';')[0], data }),
    requestId,
    traceId,
  })
  const location = /Binary\/[^/]+/.exec(stored.headers.Location ?? '')?.[0]
  if (location === undefined) throw new Error(`The result was answered ${stored.status}`)
  return location
}

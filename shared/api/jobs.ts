/** Status, result and cancellation of an AsyncJob, visible to its creator and to admins. */
import { type Principal, systemPrincipal } from '../access/principal.ts'
import { scopeIn } from '../access/scopes.ts'
import { finishAsyncJob, isOpenJob, JobFinished, jobStatusUrl } from '../bots/async-jobs.ts'
import {
  accepted,
  allOk,
  badRequest,
  conflict,
  HttpError,
  methodNotAllowed,
  notFound,
} from '../core/errors.ts'
import { exportAsJob } from '../export/announce.ts'
import { cancelJob as cancelExport, findExport } from '../export/status.ts'
import { isObject, type Resource } from '../fhir/resource.ts'
import { coversScope } from '../identity/principals.ts'
import { endImport, findImport, importAsJob } from '../import/jobs.ts'
import { FHIR_JSON, jsonReply, outcomeReply } from '../request/reply.ts'
import type { FhirContext, FhirReply, FhirRequest, Operation } from '../request/request.ts'
import type { Services } from '../request/services.ts'
import { replyWith } from '../rest/read.ts'
import { platformMeta } from '../store/rows/version.ts'
import { isAcceptedRequest } from '../store/write/requests.ts'

const UNSCOPED = { scope: '', patient: undefined }

interface Job {
  readonly resource: Resource
  readonly author: string | undefined
}

/** `POST AsyncJob/:id/$cancel`: 200; a finished job is 400. */
export const cancel: Operation = {
  name: 'cancel',
  on: [{ type: 'AsyncJob', level: 'instance' }],
  methods: ['POST'],
  text: { summary: 'Cancel a job', answer: 'OperationOutcome' },
  async run({ services, principal, id }) {
    await cancelJob(services, principal, id ?? '')
    return outcomeReply(200, allOk)
  },
}

const PATH = /^job\/([^/]+)\/(status|result)$/

/** `job/:id/status` and `job/:id/result`. Errors: 404, 405, 409 while it runs. */
export async function handleJob(
  services: Services,
  principal: Principal,
  request: FhirRequest,
): Promise<FhirReply> {
  const [, id, what] = PATH.exec(request.path) ?? []
  if (id === undefined) throw notFound()
  if (what === 'result') {
    if (request.method !== 'GET') throw methodNotAllowed('GET')
    return result(await readJob(services, principal, id))
  }
  const url = jobStatusUrl(services, id)
  if (request.method === 'DELETE') {
    await cancelJob(services, principal, id)
    return outcomeReply(202, accepted(url), { 'Content-Location': url })
  }
  if (request.method !== 'GET') throw methodNotAllowed('GET, DELETE')
  const { resource } = await readJob(services, principal, id)
  if (!isOpenJob(resource)) return jsonReply(200, resource)
  return jsonReply(202, resource, { 'Content-Location': url, 'Retry-After': '1' })
}

async function readJob({ repository }: Services, principal: Principal, id: string): Promise<Job> {
  const reader = systemPrincipal(principal.project)
  const version = await repository.read(reader, 'AsyncJob', id)
  const { project, author } = platformMeta(version)
  if (version.content === undefined) throw notFound()
  const resource = JSON.parse(version.content) as Resource
  const isAuthor = author?.reference !== undefined && author.reference === principal.profile
  const isOwn =
    isAuthor && coversScope(principal, scopeIn({ extension: resource.extension }) ?? UNSCOPED)
  const isHere = project === principal.project.id
  const maySee = principal.isSuperAdmin || (isHere && (isOwn || principal.isProjectAdmin))
  if (!maySee) throw notFound()
  return { resource, author: author?.reference }
}

async function cancelJob(services: Services, principal: Principal, id: string): Promise<void> {
  const job = await unless404(() => readJob(services, principal, id))
  if (job === undefined) {
    const found = await findImport(services, principal, id)
    if (found !== undefined) return endImport(services, principal, found.job)
    return cancelExport(services, principal, await findExport(services, principal, id))
  }
  const { resource, author } = job
  if (!isOpenJob(resource)) throw notCancellable(resource.status)
  // The worker ends started requests, as it knows whether the work is done.
  const isRequest = await isAcceptedRequest(services.database, id)
  const onlyIf = isRequest ? ({ onlyIf: 'accepted' } as const) : {}
  try {
    await finishAsyncJob(services, principal.project, {
      author,
      runId: id,
      end: {
        status: 'cancelled',
        ...onlyIf,
      },
    })
  } catch (error) {
    if (!(error instanceof JobFinished)) throw error
    if (!isRequest || error.status !== 'active') throw notCancellable(error.status)
  }
  await services.queues.cancel(id, principal.project.id)
}

async function unless404<T>(read: () => Promise<T>): Promise<T | undefined> {
  try {
    return await read()
  } catch (error) {
    if (error instanceof HttpError && error.status === 404) return undefined
    throw error
  }
}

/** Returns a stored AsyncJob, or an export or import in its form. Errors: 404. */
export async function readAsyncJob(context: FhirContext, id: string): Promise<FhirReply> {
  const { services, principal } = context
  const stored = await unless404(() => services.repository.read(principal, 'AsyncJob', id))
  if (stored !== undefined) return replyWith(context, stored)
  const found = await findImport(services, principal, id)
  const version =
    found === undefined
      ? await exportAsJob(services, await findExport(services, principal, id))
      : importAsJob(services, found)
  return replyWith(context, version)
}

function notCancellable(status: unknown): HttpError {
  return badRequest(
    `AsyncJob cannot be cancelled if status is not 'accepted', job had status '${status}'`,
  )
}

function result({ resource }: Job): FhirReply {
  if (isOpenJob(resource)) throw conflict('The job is still running')
  if (resource.status === 'cancelled') throw badRequest('The job was cancelled')
  const status = resource.status === 'completed' ? 200 : 400
  const parameters = outputParameters(resource.output)
  const contentType = parameters.find(({ name }) => name === 'contentType')?.valueString
  const outcome = parameters.find(({ name }) => name === 'outcome')?.resource
  const body = parameters.find(({ name }) => name === 'responseBody')
  const runId = parameters.find(({ name }) => name === 'runId')?.valueString
  return {
    status,
    headers: {
      'Content-Type': typeof contentType === 'string' ? contentType : FHIR_JSON,
      ...(typeof runId === 'string' ? { 'X-Bot-Run-Id': runId } : {}),
    },
    body:
      outcome === undefined
        ? String(body?.valueString ?? body?.valueBoolean ?? '')
        : JSON.stringify(outcome),
  }
}

function outputParameters(output: unknown): readonly Record<string, unknown>[] {
  if (!isObject(output) || !Array.isArray(output.parameter)) return []
  return output.parameter.filter(isObject)
}

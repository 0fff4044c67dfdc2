/**
 * AsyncJob of a bot run: created when the caller gets a status URL, and finished exactly once. Its author is the
 * caller.
 */

import {
  type Principal,
  type ProjectContext,
  type RunLease,
  systemPrincipal,
} from '../access/principal.ts'
import { scopeExtension } from '../access/scopes.ts'
import { allOk, HttpError } from '../core/errors.ts'
import { isObject, type Resource } from '../fhir/resource.ts'
import type { ExecuteJob, ExecuteReply } from '../queue/jobs.ts'
import type { Services } from '../request/services.ts'
import type { WritePart } from '../store/rows/context.ts'
import { encodeReply } from './execute-reply.ts'
import { addPendingRun, removePendingRun } from './pending-runs.ts'

export interface NewJob {
  readonly runId: string
  readonly status: 'accepted' | 'active'
  readonly request: string
  /** The queue job as JSON text, if the run may be started from it again. */
  readonly job: string | undefined
}

/** Stores the AsyncJob and the row that survives a loss of Redis. */
export async function createAsyncJob(
  services: Services,
  caller: Principal,
  { job, ...made }: NewJob,
): Promise<void> {
  await addPendingRun(services.database, {
    id: made.runId,
    projectId: caller.project.id,
    home: services.queues.home,
    job,
  })
  await storeAsyncJob(services, caller, made)
}

export async function storeAsyncJob(
  { repository }: Services,
  caller: Principal,
  { runId, status, request }: Omit<NewJob, 'job'>,
): Promise<void> {
  const resource: Resource = {
    resourceType: 'AsyncJob',
    id: runId,
    status,
    request,
    requestTime: new Date().toISOString(),
    ...scopeExtension(caller),
  }
  await repository.create(jobPrincipal(caller.project, caller.profile), resource, { keepId: true })
}

export type JobEnd =
  | { readonly status: 'completed' | 'error'; readonly parameter: readonly unknown[] }
  | { readonly status: 'cancelled'; readonly onlyIf?: 'accepted' }

export class JobFinished extends Error {
  readonly status: string

  constructor(status: string) {
    super(`The job is ${status}`)
    this.status = status
  }
}

export async function startAsyncJob(
  { repository }: Services,
  project: ProjectContext,
  author: string | undefined,
  runId: string,
): Promise<void> {
  await repository.patch(
    jobPrincipal(project, author),
    { type: 'AsyncJob', id: runId },
    (current) => {
      if (current.status !== 'accepted') throw new JobFinished(String(current.status))
      return { ...current, status: 'active' }
    },
  )
}

export interface FinishedJob {
  readonly author: string | undefined
  readonly runId: string
  readonly end: JobEnd & { readonly lease?: RunLease | undefined }
}

/** Errors: JobFinished when already finished or when `onlyIf` fails; 404 without such a job. */
export async function finishAsyncJob(
  { repository }: Pick<Services, 'repository'>,
  project: ProjectContext,
  { author, runId, end: { lease, ...end } }: FinishedJob,
): Promise<void> {
  const principal = { ...jobPrincipal(project, author), lease }
  await repository.patch(principal, { type: 'AsyncJob', id: runId }, (current) => {
    const isRight = !('onlyIf' in end) || current.status === end.onlyIf
    if (!isOpen(current) || !isRight) throw new JobFinished(String(current.status))
    const { output: _, ...rest } = current
    return {
      ...rest,
      status: end.status,
      transactionTime: new Date().toISOString(),
      ...(end.status === 'cancelled'
        ? {}
        : { output: { resourceType: 'Parameters', parameter: end.parameter } }),
    }
  })
}

/** Removes the row of the run in the write that ends its AsyncJob. */
export const pendingRunPart: WritePart<true> = {
  types: new Set(['AsyncJob']),
  buildRow: ({ stored, resource }) => {
    const hasEnded = !isOpen(resource) && stored !== undefined && isOpen(stored)
    return hasEnded ? true : undefined
  },
  sql(ended, bind) {
    const numbers = bind(`{${ended.map(({ n }) => n).join(',')}}`, 'int[]')
    const remove = `pr as (delete from pending_run p using w where w.n = any(${numbers}) and p.id = w.id)`
    return { name: 'ended', sql: [remove] }
  },
}

function isOpen({ status }: Resource): boolean {
  return status === 'accepted' || status === 'active'
}

/** Finishes an AsyncJob with a reply; ignores a finished or missing job. Errors: RunLost. */
export async function settleAsyncJob(
  services: Services,
  job: Pick<ExecuteJob, 'projectId' | 'requester' | 'contentType' | 'lease'>,
  reply: ExecuteReply,
): Promise<void> {
  const project = await services.principals.project(job.projectId)
  if (project === undefined) return
  const asked = { headers: { 'content-type': job.contentType }, wantsContent: false }
  const { headers } = await encodeReply(reply, asked, async () => undefined)
  const end = {
    lease: job.lease,
    status: reply.status === 'ok' ? ('completed' as const) : ('error' as const),
    parameter: [
      ...resultParameters(reply),
      { name: 'contentType', valueString: headers['Content-Type'] },
      { name: 'runId', valueString: reply.runId },
    ],
  }
  try {
    await finishAsyncJob(services, project, { author: job.requester, runId: reply.runId, end })
  } catch (error) {
    const isLost = error instanceof HttpError && (error.status === 404 || error.status === 410)
    if (!isLost && !(error instanceof JobFinished)) throw error
    await removePendingRun(services.database, reply.runId)
  }
}

function resultParameters({ status, kind, body = '' }: ExecuteReply): readonly unknown[] {
  if (kind === 'undefined') {
    return [{ name: 'outcome', resource: allOk }]
  }
  if (kind === 'json' && (body === 'true' || body === 'false')) {
    return [{ name: 'responseBody', valueBoolean: body === 'true' }]
  }
  if (status === 'error' || kind === 'outcome' || body.includes('"OperationOutcome"')) {
    const resource = outcomeIn(body)
    if (resource !== undefined) return [{ name: 'outcome', resource }]
  }
  // FHIR has no empty strings, so an empty result has no parameter.
  return body === '' ? [] : [{ name: 'responseBody', valueString: body }]
}

function outcomeIn(text: string): unknown {
  try {
    const value: unknown = JSON.parse(text)
    return isObject(value) && value.resourceType === 'OperationOutcome' ? value : undefined
  } catch {
    return undefined
  }
}

/** Returns the service's rights with the caller as author. */
export function jobPrincipal(project: ProjectContext, author: string | undefined): Principal {
  return { ...systemPrincipal(project), profile: author }
}

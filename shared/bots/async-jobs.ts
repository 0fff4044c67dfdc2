/**
 * AsyncJob of a bot run: created when the caller gets a status URL, and finished exactly once. Its author is the
 * caller.
 */
import {
  type Principal,
  type ProjectContext,
  type RunLease,
  servicePrincipal,
} from '../access/principal.ts'
import { scopeExtension } from '../access/scopes.ts'
import { accepted, allOk, attempt, isAbsent } from '../core/errors.ts'
import { isDeeper, MAX_DEPTH, mapStrings, toStorable } from '../fhir/json.ts'
import { isObject, type Resource, toObjects } from '../fhir/resource.ts'
import {
  isFree,
  type LeaseTable,
  leaseRow,
  releaseLeased,
  updateLeased,
} from '../postgres/leases.ts'
import { arrayLiteral, type Connection } from '../postgres/statement.ts'
import type { ExecuteJob, ExecuteReply } from '../queue/jobs.ts'
import { absoluteUrl, outcomeReply } from '../request/reply.ts'
import type { FhirReply } from '../request/request.ts'
import type { Services } from '../request/services.ts'
import type { WritePart } from '../store/rows/context.ts'
import { buryPendingSql, outcomeText } from './dead-runs.ts'
import { encodeReply } from './execute-reply.ts'

interface StoredJob {
  readonly runId: string
  readonly status: 'accepted' | 'active' | 'completed'
  readonly request: string
  readonly transactionTime?: string
  readonly output?: Resource
}

interface NewJob extends StoredJob {
  /** The queue job as JSON text, if the run may be started from it again. */
  readonly job: string | undefined
}

/** Stores the AsyncJob and the row that survives a loss of Redis. */
export async function createAsyncJob(
  services: Services,
  caller: Principal,
  { job, ...made }: NewJob,
): Promise<void> {
  const { database, queues } = services
  await database.query({
    name: 'pending-run-add',
    text: `insert into pending_run (id, project, home, job) values ($1, $2, $3, $4)
      on conflict do nothing`,
    values: [made.runId, caller.project.id, queues.home, job ?? null],
  })
  await storeAsyncJob(services, caller, made)
}

export async function storeAsyncJob(
  { repository }: Services,
  caller: Principal,
  { runId, ...job }: StoredJob,
): Promise<void> {
  const resource = {
    resourceType: 'AsyncJob',
    id: runId,
    ...job,
    requestTime: new Date().toISOString(),
    ...scopeExtension(caller),
  }
  await repository.create(servicePrincipal(caller.project, { profile: caller.profile }), resource, {
    keepId: true,
  })
}

export function jobStatusUrl(services: Services, id: string): string {
  return absoluteUrl(services, `job/${id}/status`)
}

/** 202 with the status URL. The SDK reads the header, then `diagnostics`; both hold the URL. */
export function jobReply(
  services: Services,
  id: string,
  headers: Readonly<Record<string, string>> = {},
): FhirReply {
  const url = jobStatusUrl(services, id)
  return outcomeReply(202, accepted(url), {
    'Content-Location': url,
    'Retry-After': '1',
    ...headers,
  })
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
    servicePrincipal(project, { profile: author }),
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
  const principal = { ...servicePrincipal(project, { profile: author }), lease }
  await repository.patch(principal, { type: 'AsyncJob', id: runId }, (current) => {
    const isRight = !('onlyIf' in end) || current.status === end.onlyIf
    if (!isOpenJob(current) || !isRight) throw new JobFinished(String(current.status))
    const { output: _, ...rest } = current
    return {
      ...rest,
      status: end.status,
      transactionTime: new Date().toISOString(),
      ...(end.status === 'cancelled'
        ? {}
        : {
            output: {
              resourceType: 'Parameters',
              parameter: mapStrings(end.parameter, toStorable),
            },
          }),
    }
  })
}

/** Opens the AsyncJob of a failed run again, or makes another one with its id. */
export async function reopenAsyncJob(
  { repository, config }: Pick<Services, 'repository' | 'config'>,
  project: ProjectContext,
  { runId, botId, requester }: Pick<ExecuteJob, 'runId' | 'botId' | 'requester'>,
): Promise<void> {
  const principal = servicePrincipal(project, { profile: requester })
  try {
    await repository.patch(principal, { type: 'AsyncJob', id: runId }, (current) => {
      const { output: _, transactionTime: __, ...rest } = current
      return { ...rest, status: 'accepted' }
    })
  } catch (error) {
    if (!isJobFinished(error)) throw error
    const request = `${config.baseUrl}fhir/R4/Bot/${botId}/$execute`
    const requestTime = new Date().toISOString()
    const resource = {
      resourceType: 'AsyncJob',
      id: runId,
      status: 'accepted',
      request,
      requestTime,
    }
    await repository.create(principal, resource, { keepId: true })
  }
}

/** True when a change of an AsyncJob failed because it is finished, deleted or missing. */
export function isJobFinished(error: unknown): boolean {
  return isAbsent(error) || error instanceof JobFinished
}

interface EndedRun {
  /** The text of a failure. */
  readonly error: string | undefined
  readonly isDead: boolean
}

/** Removes the row of the run in the write that ends its AsyncJob; a failed one becomes a dead run. */
export const pendingRunPart: WritePart<EndedRun> = {
  types: new Set(['AsyncJob']),
  buildRow: ({ stored, resource }) => {
    const hasEnded = !isOpenJob(resource) && stored !== undefined && isOpenJob(stored)
    if (!hasEnded) return undefined
    return { isDead: resource.status === 'error', error: failureText(resource) }
  },
  sql(ended, bind) {
    const numbers = bind(arrayLiteral(ended.map(({ n }) => n)), 'int[]')
    const remove = `pr as (delete from pending_run p using w
      where w.n = any(${numbers}) and p.id = w.id returning p.*, w.n)`
    const dead = ended.filter(({ item }) => item.isDead)
    if (dead.length === 0) return { name: 'ended', sql: [remove] }
    const failed = bind(
      dead.map(({ n }) => n),
      'int[]',
    )
    const errors = bind(
      dead.map(({ item }) => item.error ?? null),
      'text[]',
    )
    return { name: 'ended-dead', sql: [remove, `pd as (${buryPendingSql('pr', failed, errors)})`] }
  },
}

function failureText({ output }: Resource): string | undefined {
  const parameters = isObject(output) ? toObjects(output.parameter) : []
  const outcome = parameters.find(({ name }) => name === 'outcome')
  return outcomeText(outcome?.resource)
}

export function isOpenJob({ status }: Resource): boolean {
  return status === 'accepted' || status === 'active'
}

/** Finishes an AsyncJob with a reply; ignores a finished or missing job. Errors: LeaseLost. */
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
    if (!isJobFinished(error)) throw error
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
    const resource = attempt<unknown>(() => JSON.parse(body))
    const isOutcome = isObject(resource) && resource.resourceType === 'OperationOutcome'
    // Deep ones stay texts.
    if (isOutcome && !isDeeper(resource, MAX_DEPTH)) return [{ name: 'outcome', resource }]
  }
  // FHIR has no empty strings, so an empty result has no parameter.
  return body === '' ? [] : [{ name: 'responseBody', valueString: body }]
}

// Durable rows of asynchronous bot runs, from acceptance until the AsyncJob is finished.

const FOREIGN_MS = 30 * 60_000

/** Younger runs may be on their way into the queue. */
const OLDER_THAN_MS = 10_000

export interface PendingRun {
  readonly id: string
  /** Id of the Project its AsyncJob lives in. */
  readonly projectId: string
  /** The job as JSON text; null for a run that must not start again. */
  readonly job: string | null
  readonly hadEffect: boolean
}

/** The lease is shorter than the lock of the run's job. */
export const PENDING_RUNS: LeaseTable = {
  name: 'pending_run',
  key: { id: 'uuid' },
  token: 'takes',
  expiresAt: 'held',
  leaseMs: 10_000,
}

/** `attempt` and `hadEffect` only where the row has them. */
export interface LeasedRow {
  readonly token: number
  readonly attempt?: number
  readonly hadEffect?: boolean
}

/** Returns undefined once the AsyncJob is finished, or while another worker that is not `isGone` has the run. */
export async function leasePendingRun(
  database: Connection,
  id: string,
  isGone: boolean,
): Promise<LeasedRow | undefined> {
  const [leased] = await database.query<LeasedRow>({
    name: 'pending-run-lease',
    text: `update pending_run x set ${leaseRow(PENDING_RUNS, 'x')}
      where id = $1 and ($2 or ${isFree(PENDING_RUNS, 'x')})
      returning takes as token, takes - returned as attempt, effect as "hadEffect"`,
    values: [id, isGone],
  })
  return leased
}

/**
 * Releases a run that has not begun or, with `isAnew`, is to be repeated regardless of effects. False when the lease
 * was lost.
 */
export async function releasePendingRun(
  database: Connection,
  id: string,
  token: number,
  isAnew: boolean,
): Promise<boolean> {
  return await releaseLeased(
    database,
    PENDING_RUNS,
    { key: [id], token },
    {
      name: 'pending-run-release',
      // An expired lease counts as an attempt; a released or unstarted one does not.
      set: 'held = null, effect = effect and not $3, returned = returned + 1 + (not $3)::int',
      values: [isAnew],
    },
  )
}

/** Notes that the run is about to have an effect. False when the lease was lost. */
export async function recordPendingEffect(
  database: Connection,
  id: string,
  token: number,
): Promise<boolean> {
  return await updateLeased(
    database,
    PENDING_RUNS,
    { key: [id], token },
    {
      name: 'pending-run-effect',
      set: 'effect = true',
    },
  )
}

export async function removePendingRun(database: Connection, id: string): Promise<void> {
  await database.query({
    name: 'pending-run-remove',
    text: 'delete from pending_run where id = $1',
    values: [id],
  })
}

/**
 * Returns at most `count` runs without a worker that were accepted some time ago, in id order after `after`. Runs of
 * another Redis are included much later: during a migration between two Redis servers workers of both read this table.
 */
export async function pendingRuns(
  database: Connection,
  home: string,
  after: string,
  count: number,
): Promise<readonly PendingRun[]> {
  return await database.query<PendingRun>({
    name: 'pending-runs',
    text: `
      select id, project as "projectId", job, effect as "hadEffect" from pending_run x
      where id > $1::uuid and ${isFree(PENDING_RUNS, 'x')}
        and added < clock_timestamp() - case when home = $2 then $3::float8 else $4::float8 end * interval '1 ms'
      order by id limit $5`,
    values: [after, home, OLDER_THAN_MS, FOREIGN_MS, count],
  })
}

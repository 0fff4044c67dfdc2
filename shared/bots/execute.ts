/** `Bot/$execute`: request → job on the queue → reply, or 202 with a status URL. */
import { randomUUID } from 'node:crypto'
import type { Config } from '../core/config/config.ts'
import { accepted, badRequest, HttpError, issue, outcome } from '../core/errors.ts'
import type { Acting } from '../identity/principals.ts'
import type { ExecuteJob, ExecuteReply } from '../queue/jobs.ts'
import { interrupted } from '../queue/replies.ts'
import { readBinaryContent, readWhole } from '../request/binary/content.ts'
import { botCallDepth, MAX_DEPTH } from '../request/quota.ts'
import { outcomeReply } from '../request/reply.ts'
import type { FhirReply, Operation, OperationCall } from '../request/request.ts'
import { createAsyncJob, settleAsyncJob } from './async-jobs.ts'
import { botLimits, type FoundBot, findBot, maxQueueMs, resolveRunAs } from './bot.ts'
import { encodeReply, readInput, visibleHeaders } from './execute-reply.ts'

const LONGEST_WAIT_S = 110

export const execute: Operation = {
  name: 'execute',
  on: [
    { type: 'Bot', level: 'type' },
    { type: 'Bot', level: 'instance' },
  ],
  methods: ['GET', 'POST'],
  acts: true,
  ownFormat: true,
  async run(call) {
    const found = await findBot(call)
    const acting = await resolveRunAs(call.services, call.principal, found)
    return await runBot(call, createJob(call, found, acting), found)
  },
}

export interface RunCall
  extends Pick<OperationCall, 'services' | 'principal' | 'request' | 'rest'> {
  /** A webhook's caller is not a FHIR client: a Binary is returned as its content. */
  readonly isWebhook?: true
}

/** Returns the run's reply, or 202 depending on the caller's preference and the run's duration. */
export async function runBot(call: RunCall, job: ExecuteJob, found: FoundBot): Promise<FhirReply> {
  const prefer = readPrefer(call.request.headers.prefer)
  if (prefer.respondAsync && prefer.waitMs === undefined) return await runLater(call, job)
  return await runNow(call, found, job, prefer)
}

/** Errors: 400 for an unreadable body and for call chains that are too deep. */
export function createJob(call: RunCall, found: FoundBot, acting: Acting): ExecuteJob {
  const { principal, request, rest } = call
  const { kind, text } = readInput(request)
  const depth = botCallDepth(request)
  if (depth > MAX_DEPTH) throw badRequest('Bots call each other more than 10 deep')
  const added = Date.now()
  return {
    runId: randomUUID(),
    projectId: principal.project.id,
    botId: found.bot.id,
    botProjectId: found.projectId,
    botVersion: found.version,
    ...acting,
    requester: principal.profile,
    contentType: request.headers['content-type'],
    inputKind: kind,
    input: text,
    headers: visibleHeaders(request.headers, found.bot.runAsUser === true),
    ...(rest === '' ? {} : { path: rest }),
    traceId: request.traceId,
    requestId: request.requestId,
    depth,
    ...(principal.lease === undefined ? {} : { lease: principal.lease }),
    ...(request.isPreCommitted ? { isPreCommit: true } : {}),
    added,
    deadline: added + maxQueueMs(found.bot),
  }
}

async function runNow(
  call: RunCall,
  found: FoundBot,
  job: ExecuteJob,
  prefer: Prefer,
): Promise<FhirReply> {
  const { services, principal, request } = call
  const { config, queues } = services
  const waitMs = prefer.waitMs ?? config.executeWaitMs
  const mayBeLate = config.executeDeadline === 'accept' || prefer.respondAsync
  const reply =
    (await queues
      .execute(job, { waitMs, signal: request.signal, mayBeLate })
      .catch((error: unknown) => interruptedIfKeyed(call, job, error))) ??
    (await sendAway(call, found, job, prefer))
  if ('headers' in reply) return reply
  const wantsContent = call.isWebhook === true || request.method === 'GET'
  const encoded = await encodeReply(
    reply,
    { headers: request.headers, wantsContent },
    async (id) => {
      const version = await services.repository.read(principal, 'Binary', id).catch(() => undefined)
      if (version === undefined) return undefined
      return await readWhole(services, readBinaryContent(version), config.botResultMaxBytes)
    },
  )
  const headers = {
    ...encoded.headers,
    ...runHeaders(job, preferenceApplied({ ...prefer, respondAsync: false })),
  }
  return { ...encoded, headers }
}

/** After a loss of Redis the run may have been made, and a repeat under the same key must not make another. */
function interruptedIfKeyed({ request }: RunCall, job: ExecuteJob, error: unknown): ExecuteReply {
  const isLost = error instanceof HttpError && error.status === 503 && error.cause !== undefined
  if (isLost && request.headers['idempotency-key'] !== undefined) return interrupted(job.runId)
  throw error
}

/** At the end of the wait, continues the run under a status URL, or cancels it when 202 is not wanted. */
async function sendAway(
  call: RunCall,
  found: FoundBot,
  job: ExecuteJob,
  prefer: Prefer,
): Promise<FhirReply | ExecuteReply> {
  const { services, principal, request } = call
  const { config, queues } = services
  if (config.executeDeadline === 'fail' && !prefer.respondAsync) {
    await queues.cancel(job.runId, job.projectId)
    const seconds = Math.min(
      prefer.waitMs ?? config.executeWaitMs,
      botLimits(found.bot, config).wallMs,
    )
    const text = `Bot timed out after ${seconds / 1000} s`
    const body = outcome(undefined, issue('error', 'timeout', text, { diagnostics: job.runId }))
    throw new HttpError(400, body, { headers: runHeaders(job, '') })
  }
  const url = requestUrl(config, request)
  await createAsyncJob(services, principal, {
    runId: job.runId,
    status: 'active',
    request: url,
    job: undefined,
  })
  const reply = await queues.late(job)
  if (reply === undefined) return acceptedReply(config, job, prefer)
  await settleAsyncJob(services, job, reply)
  return reply
}

async function runLater(call: RunCall, job: ExecuteJob): Promise<FhirReply> {
  const { services, principal, request } = call
  const stored: ExecuteJob = { ...job, asynchronous: true }
  await services.queues.enqueue(stored, () =>
    createAsyncJob(services, principal, {
      runId: job.runId,
      status: 'accepted',
      request: requestUrl(services.config, request),
      job: JSON.stringify(stored),
    }),
  )
  return acceptedReply(services.config, job, { respondAsync: true, waitMs: undefined })
}

/** The SDK reads the header, then `diagnostics`; both hold the URL. */
function acceptedReply(config: Config, job: ExecuteJob, prefer: Prefer): FhirReply {
  const url = `${config.baseUrl}fhir/R4/job/${job.runId}/status`
  return outcomeReply(202, accepted(url), {
    'Content-Location': url,
    'Retry-After': '1',
    ...runHeaders(job, preferenceApplied(prefer)),
  })
}

function runHeaders(job: ExecuteJob, applied: string): Record<string, string> {
  return {
    'X-Bot-Run-Id': job.runId,
    ...(applied === '' ? {} : { 'Preference-Applied': applied }),
  }
}

function preferenceApplied({ respondAsync, waitMs }: Prefer): string {
  const wait = waitMs === undefined ? [] : [`wait=${waitMs / 1000}`]
  return [...(respondAsync ? ['respond-async'] : []), ...wait].join(', ')
}

function requestUrl({ baseUrl }: Config, { path, query }: RunCall['request']): string {
  const search = query.toString()
  return `${baseUrl}fhir/R4/${path}${search === '' ? '' : `?${search}`}`
}

interface Prefer {
  readonly respondAsync: boolean
  readonly waitMs: number | undefined
}

/** Parses preferences with parameters: https://www.rfc-editor.org/rfc/rfc7240#section-2 */
function readPrefer(header: string | undefined): Prefer {
  const items = (header ?? '').split(/[,;]/).map((item) => item.trim().toLowerCase())
  const waits = items.flatMap((item) => /^wait\s*=\s*"?(\d{1,9})"?$/.exec(item)?.[1] ?? [])
  const [wait] = waits
  return {
    respondAsync: items.includes('respond-async'),
    waitMs: wait === undefined ? undefined : Math.min(Number(wait), LONGEST_WAIT_S) * 1000,
  }
}

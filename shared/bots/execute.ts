/** `Bot/$execute`: request → job on the queue → reply, or 202 with a status URL. */
import { randomUUID } from 'node:crypto'
import { Readable } from 'node:stream'
import { badRequest, HttpError, issue, outcome } from '../core/errors.ts'
import type { Acting } from '../identity/principals.ts'
import type { ExecuteJob, ExecuteReply } from '../queue/jobs.ts'
import { interrupted } from '../queue/replies.ts'
import { StreamedAnswer } from '../queue/streams.ts'
import { readBinaryContent, readWhole } from '../request/binary/content.ts'
import { acceptedRanges, type Prefer, readPrefer } from '../request/negotiate.ts'
import { absoluteUrl } from '../request/reply.ts'
import {
  botCallDepth,
  type FhirReply,
  MAX_DEPTH,
  type Operation,
  type OperationCall,
} from '../request/request.ts'
import type { Services } from '../request/services.ts'
import { createAsyncJob, jobReply, settleAsyncJob } from './async-jobs.ts'
import {
  botLimits,
  type FoundBot,
  findBot,
  findLabel,
  maxQueueMs,
  resolveRunAs,
  runLabel,
} from './bot.ts'
import { type ExecuteInput, encodeReply, readInput, visibleHeaders } from './execute-reply.ts'
import { readPace } from './pace.ts'

const LONGEST_WAIT_MS = 110_000

export const execute: Operation = {
  name: 'execute',
  on: [
    { type: 'Bot', level: 'type' },
    { type: 'Bot', level: 'instance' },
  ],
  methods: ['GET', 'POST'],
  text: {
    summary: 'Run a bot',
    description:
      'The body is its input as it comes: JSON, HL7v2 (`x-application/hl7-v2+er7`), a form, text or bytes. The answer is what the bot returns; 202 where it takes longer than EXECUTE_WAIT_MS, or by `Prefer: respond-async`. With `Accept: text/event-stream` a bot with `streamingEnabled` may stream its answer.',
    query: {
      label:
        'text: Runs the code of this label; default: the live code, or by the shares of labels',
    },
    body: '*/*',
    answer: '*/*',
  },
  acts: true,
  ownFormat: true,
  run: (call) => executeBot({ ...call, label: call.request.query.get('label') ?? undefined }),
}

export interface BotCall extends OperationCall, BotInput {
  /** Absent: live, or by the shares of labels. */
  readonly label?: string | undefined
}

interface BotInput {
  /** Replaces that of the request. */
  readonly input?: ExecuteInput
  /** JSON of `event.parameters`. */
  readonly parameters?: string | undefined
}

/** Runs the Bot of a call. Errors: 400 for an unknown label, 404 without the Bot, 429 and 503 when it cannot run now. */
export async function executeBot(call: BotCall): Promise<FhirReply> {
  const found = findLabel(await findBot(call), call.label)
  const acting = await resolveRunAs(call.services, call.principal, found)
  const takesStream = mayStream(call, found)
  return await runBot({ ...call, takesStream }, createJob(call, found, acting), found)
}

export interface RunCall
  extends Pick<OperationCall, 'services' | 'principal' | 'request' | 'rest'>,
    BotInput {
  /** A webhook's caller is not a FHIR client: a Binary is returned as its content. */
  readonly isWebhook?: true
  readonly takesStream?: boolean
  /** The caller has no use for a status URL: a run that takes longer than its wait is cancelled. */
  readonly mustAnswer?: true
}

/** Not inside bundles and bots, nor with a key: the answer of a repeat is stored as a whole. */
function mayStream({ request }: OperationCall, { bot }: FoundBot): boolean {
  if (bot.streamingEnabled !== true || request.takesPieces !== true) return false
  return acceptedRanges(request.headers.accept).includes('text/event-stream')
}

/** Returns the run's reply, or 202 depending on the caller's preference and the run's duration. */
export async function runBot(
  call: RunCall,
  unpaced: ExecuteJob,
  found: FoundBot,
): Promise<FhirReply> {
  const job = { ...unpaced, ...readPace(found, unpaced) }
  const prefer = readRunPreferences(call.request.headers.prefer)
  if (prefer.respondAsync && prefer.waitMs === undefined) return await runLater(call, job)
  return await runNow(call, found, job, prefer)
}

/** Errors: 400 for an unreadable body and for call chains that are too deep. */
export function createJob(call: RunCall, found: FoundBot, acting: Acting): ExecuteJob {
  const { principal, request, rest } = call
  const { kind, text } = call.input ?? readInput(request)
  const depth = botCallDepth(request)
  if (depth > MAX_DEPTH) throw badRequest('Bots call each other more than 10 deep')
  const runId = randomUUID()
  const added = Date.now()
  return {
    runId,
    projectId: principal.project.id,
    botId: found.bot.id,
    botProjectId: found.projectId,
    botVersion: found.version,
    ...runLabel(found, runId),
    ...acting,
    requester: principal.profile,
    contentType: request.headers['content-type'],
    inputKind: kind,
    input: text,
    headers: visibleHeaders(request.headers, found.bot.runAsUser === true),
    ...(rest === '' ? {} : { path: rest }),
    ...(call.parameters === undefined ? {} : { parameters: call.parameters }),
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
  prefer: RunPreferences,
): Promise<FhirReply> {
  const { services, principal, request, takesStream = false } = call
  const { config, queues } = services
  const waitMs = prefer.waitMs ?? config.executeWaitMs
  const mayBeLate = mayDetachCaller(call, prefer)
  const wait = { waitMs, signal: request.signal, mayBeLate }
  const running = takesStream ? queues.executeStreaming(job, wait) : queues.execute(job, wait)
  const reply =
    (await running.catch((error: unknown) => interruptedIfKeyed(call, job, error))) ??
    (await detachCaller(call, found, job, prefer))
  if (reply instanceof StreamedAnswer) return streamReply(reply, job)
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

function streamReply(answer: StreamedAnswer, job: ExecuteJob): FhirReply {
  const { status, headers } = answer.head
  return {
    status,
    headers: {
      'Cache-Control': 'no-store',
      // Disables nginx's buffering.
      'X-Accel-Buffering': 'no',
      ...headers,
      ...runHeaders(job, ''),
    },
    body: undefined,
    open: async () => Readable.from(answer.chunks(), { objectMode: false, highWaterMark: 1 }),
  }
}

function mayDetachCaller(
  { services, mustAnswer }: RunCall,
  { respondAsync }: RunPreferences,
): boolean {
  return respondAsync || (!mustAnswer && services.config.executeDeadline === 'accept')
}

/** After a loss of Redis the run may have been made, and a repeat under the same key must not make another. */
function interruptedIfKeyed({ request }: RunCall, job: ExecuteJob, error: unknown): ExecuteReply {
  const isLost = error instanceof HttpError && error.status === 503 && error.cause !== undefined
  if (isLost && request.headers['idempotency-key'] !== undefined) return interrupted(job.runId)
  throw error
}

/** At the end of the wait, continues the run under a status URL, or cancels it when 202 is not wanted. */
async function detachCaller(
  call: RunCall,
  found: FoundBot,
  job: ExecuteJob,
  prefer: RunPreferences,
): Promise<FhirReply | ExecuteReply> {
  const { services, principal, request } = call
  const { config, queues } = services
  if (!mayDetachCaller(call, prefer)) {
    await queues.cancel(job.runId, job.projectId)
    const seconds = Math.min(
      prefer.waitMs ?? config.executeWaitMs,
      botLimits(found.bot, config).wallMs,
    )
    const text = `Bot timed out after ${seconds / 1000} s`
    const body = outcome(undefined, issue('error', 'timeout', text, { diagnostics: job.runId }))
    throw new HttpError(400, body, { headers: runHeaders(job, '') })
  }
  const url = requestUrl(services, request)
  await createAsyncJob(services, principal, {
    runId: job.runId,
    status: 'active',
    request: url,
    job: undefined,
  })
  const reply = await queues.late(job)
  if (reply === undefined) return acceptedReply(services, job, prefer)
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
      request: requestUrl(services, request),
      job: JSON.stringify(stored),
    }),
  )
  return acceptedReply(services, job, { respondAsync: true, waitMs: undefined })
}

function acceptedReply(services: Services, job: ExecuteJob, prefer: RunPreferences): FhirReply {
  return jobReply(services, job.runId, runHeaders(job, preferenceApplied(prefer)))
}

function runHeaders(job: ExecuteJob, applied: string): Record<string, string> {
  return {
    'X-Bot-Run-Id': job.runId,
    ...(applied === '' ? {} : { 'Preference-Applied': applied }),
  }
}

function preferenceApplied({ respondAsync, waitMs }: RunPreferences): string {
  const wait = waitMs === undefined ? [] : [`wait=${waitMs / 1000}`]
  return [...(respondAsync ? ['respond-async'] : []), ...wait].join(', ')
}

function requestUrl(services: Services, { path, query }: RunCall['request']): string {
  const search = query.toString()
  return absoluteUrl(services, search === '' ? path : `${path}?${search}`)
}

type RunPreferences = Pick<Prefer, 'respondAsync' | 'waitMs'>

function readRunPreferences(header: string | undefined): RunPreferences {
  const { respondAsync, waitMs } = readPrefer(header)
  const limited = waitMs === undefined ? undefined : Math.min(waitMs, LONGEST_WAIT_MS)
  return { respondAsync, waitMs: limited }
}

/** A message of an agent's channel → the run of the channel's Bot → the answer to the device. */
import { randomUUID } from 'node:crypto'
import type { Principal } from '../../shared/access/principal.ts'
import { findBot, resolveRunAs } from '../../shared/bots/bot.ts'
import { createJob, execute, runBot } from '../../shared/bots/execute.ts'
import { readInput } from '../../shared/bots/execute-reply.ts'
import { HttpError } from '../../shared/core/errors.ts'
import { type Resource, targetIn, toObjects } from '../../shared/fhir/resource.ts'
import { agentAddress, recordAgentMessage } from '../../shared/operations/agents/presence.ts'
import type { ExecuteJob } from '../../shared/queue/jobs.ts'
import { mediaType } from '../../shared/request/negotiate.ts'
import { charge, SEARCH } from '../../shared/request/quota.ts'
import { failureReply } from '../../shared/request/reply.ts'
import type { FhirReply, FhirRequest, OperationCall } from '../../shared/request/request.ts'
import type { Services } from '../../shared/request/services.ts'
import { parseVersion } from '../../shared/store/rows/rows.ts'
import { toHttpError } from '../middleware/failures.ts'
import type { TransmitFrame } from './frames.ts'

/** A mistake of the agent, answered by `agent:error` with this message. */
export class AgentError extends Error {}

interface Sender {
  readonly principal: Principal
  readonly agentId: string
  /** Address of the connected agent, of `agentAddress`. */
  readonly agent: string
  /** The agent's address, not the device's. */
  readonly address: string
  readonly forwardedFor: string | undefined
  /** Aborts when the agent is disconnected. */
  readonly signal: AbortSignal
}

interface TransmitAnswer {
  readonly contentType: string
  readonly statusCode: 200 | 400
  readonly body: string
}

/** A hospital's senders give up after 30 s to 60 s. */
const WAIT = 'wait=110'
const HL7 = 'x-application/hl7-v2+er7'

/**
 * Reads the Agent again, since a channel may have changed. A failed run is an answer with status 400. Errors:
 * AgentError.
 */
export async function transmit(
  services: Services,
  sender: Sender,
  frame: TransmitFrame,
): Promise<TransmitAnswer> {
  const started = performance.now()
  const { channel, body } = frame
  if (channel === undefined) throw new AgentError('Missing channel')
  if (body === undefined) throw new AgentError('Missing body')
  const ran: { bot?: string; runId?: string } = {}
  const answer = await runChannel(services, sender, { ...frame, channel, body }, ran).catch(
    (error: unknown) => {
      if (error instanceof AgentError) throw error
      return failedAnswer(services, sender, error)
    },
  )
  recordAgentMessage(services.redis, sender.agent, {
    at: Date.now(),
    direction: 'in',
    channel,
    remote: frame.remote,
    contentType: frame.contentType,
    bytes: Buffer.byteLength(body),
    statusCode: answer.statusCode,
    durationMs: Math.round(performance.now() - started),
    bot: ran.bot,
    runId: ran.runId,
  })
  return answer
}

type Message = TransmitFrame & { readonly channel: string; readonly body: string }

async function runChannel(
  services: Services,
  sender: Sender,
  message: Message,
  ran: { bot?: string; runId?: string },
): Promise<TransmitAnswer> {
  const { principal, agentId, signal } = sender
  const agent = await readAgent(services, principal, agentId)
  // The token of the message may be of another Project, which may have an Agent with the same id.
  if (agentAddress(agent) !== sender.agent) throw new AgentError('Not connected')
  const id = findBotId(agent, message.channel)
  ran.bot = id
  const call = executeCall(services, sender, id, message.contentType)
  await charge(services, principal, { request: { mayWait: signal }, units: SEARCH })
  const found = await findBot(call)
  const acting = await resolveRunAs(services, principal, found)
  const job: ExecuteJob = {
    ...createJob(call, found, acting),
    ...toInput(call.request, message.body),
    answersLog: true,
    agent: {
      reference: `Agent/${agentId}`,
      ...(typeof agent.name === 'string' ? { display: agent.name } : {}),
      channel: message.channel,
      remote: message.remote,
      remoteAddress: sender.address,
      ...(sender.forwardedFor === undefined ? {} : { forwardedFor: sender.forwardedFor }),
    },
  }
  ran.runId = job.runId
  return toAnswer(await runBot({ ...call, mustAnswer: true }, job, found))
}

/** Errors: AgentError for an Agent that the client may not read; HttpError for an outage. */
export async function readAgent(
  { repository }: Pick<Services, 'repository'>,
  principal: Principal,
  agentId: string,
): Promise<Resource> {
  try {
    return parseVersion(await repository.read(principal, 'Agent', agentId))
  } catch (error) {
    if (error instanceof HttpError && error.status < 500) throw new AgentError(error.message)
    throw error
  }
}

function findBotId(agent: Resource, name: string): string {
  const channel = toObjects(agent.channel).find((one) => one.name === name)
  if (channel === undefined) throw new AgentError('Channel not found')
  const target = targetIn(channel.targetReference)
  if (target?.type !== 'Bot') throw new AgentError('Channel has no Bot as its target')
  return target.id
}

function executeCall(
  services: Services,
  { principal, signal }: Sender,
  id: string,
  contentType: string,
): OperationCall {
  const request: FhirRequest = {
    method: 'POST',
    path: `Bot/${id}/$execute`,
    query: new URLSearchParams(),
    headers: { 'content-type': contentType, prefer: WAIT },
    body: undefined,
    requestId: randomUUID(),
    traceId: randomUUID(),
    signal,
  }
  return { operation: execute, services, principal, request, type: 'Bot', id, rest: '' }
}

/** HL7v2 and JSON are parsed for the bot; everything else is text. */
function toInput(request: FhirRequest, body: string): Pick<ExecuteJob, 'inputKind' | 'input'> {
  const type = mediaType(request.headers['content-type'])
  if (type !== HL7 && type !== 'application/json' && type !== 'application/fhir+json') {
    return { inputKind: 'text', input: body }
  }
  const { kind, text } = readInput({ ...request, body })
  return { inputKind: kind, input: text }
}

function toAnswer({ status, headers, body }: FhirReply): TransmitAnswer {
  const isOk = status === 200
  return {
    contentType: isOk ? mediaType(headers['Content-Type']) : 'application/json',
    statusCode: isOk ? 200 : 400,
    body: body?.toString() ?? '',
  }
}

function failedAnswer(
  { log }: Services,
  { agentId, signal }: Sender,
  error: unknown,
): TransmitAnswer {
  const failure = toHttpError(error)
  if (failure.status >= 500 && failure.status !== 503 && !signal.aborted) {
    log.error({ err: failure.cause ?? failure, agent: agentId }, 'A message of an agent failed')
  }
  return toAnswer(failureReply(failure))
}

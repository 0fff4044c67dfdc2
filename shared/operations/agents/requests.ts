/**
 * Requests of the service to an agent. The agent is connected to one web process: a request goes over the bus to the
 * address of its connection, and the answer to the address of the request's callback. Nothing is kept for an agent that
 * is away, and an answer that is lost in an outage of Redis ends in a timeout.
 */
import { randomUUID } from 'node:crypto'
import { badRequest, HttpError, issue, outcome, unavailable } from '../../core/errors.ts'
import { INLINE_BYTES } from '../../queue/jobs.ts'
import { messageKind } from '../../redis/bus.ts'
import type { Redis } from '../../redis/redis.ts'
import { PREFIX } from '../../redis/script.ts'
import type { Services } from '../../request/services.ts'
import { readAgentState } from './presence.ts'

/** Without callback and token, which `askAgent` and the connection add. */
export type AgentRequest =
  | {
      readonly type: 'agent:transmit:request'
      readonly remote: string
      readonly contentType: string
      readonly body: string
      readonly returnAck?: string
    }
  | { readonly type: 'agent:reloadconfig:request' | 'agent:stats:request' }
  | { readonly type: 'agent:upgrade:request'; readonly version?: string; readonly force?: boolean }
  | { readonly type: 'agent:logs:request'; readonly limit?: number; readonly before?: string }

/** A frame of the agent as it came; `sent` confirms a request without a waiting caller. */
export type AgentAnswer = Readonly<Record<string, unknown>> & { readonly type: string }

/** A text, or the Redis key of a large one: Redis disconnects subscribers with much unread. */
interface Carried {
  readonly text?: string
  readonly key?: string
}

/** To the connection with the address: a request, or `replaced` by a newer connection. */
export type ToConnection =
  | { readonly callback: string; readonly isAwaited: boolean; readonly request: Carried }
  | 'replaced'

export const TO_CONNECTION = messageKind<ToConnection>('agent')
const ANSWER = messageKind<Carried>('agent-answer')

const CARRIED_MS = 60_000
const carriedKey = (id: string) => `${PREFIX}:agent-text:${id}`
/** Time for the process of the connection to confirm that it has sent a request. */
const SENT_MS = 5000

export const NOT_CONNECTED = 'Agent is not currently connected'

interface Asking {
  readonly waitMs: number
  /** False: the answer is `sent` as soon as the request is on its way to the agent. */
  readonly isAwaited: boolean
  readonly signal?: AbortSignal | undefined
}

type Messaging = Pick<Services, 'bus' | 'redis'>

/** Returns the answer of the agent with this address. Errors: 400 not connected, timeout, error of the agent; 503. */
export async function askAgent(
  services: Messaging,
  agent: string,
  request: AgentRequest,
  asking: Asking,
): Promise<AgentAnswer> {
  const { connection } = await failAs503(readAgentState(services.redis, agent))
  if (connection === undefined) throw notConnected()
  const answer = await failAs503(exchange(services, connection, request, asking))
  if (answer === undefined) throw timeout()
  if (answer.type !== 'agent:error') return answer
  const text = typeof answer.body === 'string' ? answer.body : 'The agent reported an error'
  throw badRequest(text)
}

async function exchange(
  { bus, redis }: Messaging,
  connection: string,
  request: AgentRequest,
  { waitMs, isAwaited, signal }: Asking,
): Promise<AgentAnswer | undefined> {
  const callback = randomUUID()
  const { promise, resolve } = Promise.withResolvers<Carried | undefined>()
  const listening = await bus.listen(ANSWER, resolve, callback)
  const timer = setTimeout(() => resolve(undefined), isAwaited ? waitMs : SENT_MS)
  const onAbort = () => resolve(undefined)
  signal?.addEventListener('abort', onAbort, { once: true })
  try {
    const carried = await carry(redis, JSON.stringify(request))
    const receivers = await bus.publish(
      TO_CONNECTION,
      { callback, isAwaited, request: carried },
      connection,
    )
    if (receivers === 0) throw notConnected()
    const answer = await promise
    return answer && (JSON.parse(await unpack(redis, answer)) as AgentAnswer)
  } finally {
    clearTimeout(timer)
    signal?.removeEventListener('abort', onAbort)
    listening.close().catch(() => undefined)
  }
}

/** Publishes the answer to the request with this callback. Errors: those of Redis. */
export async function answerRequest(
  { bus, redis }: Messaging,
  callback: string,
  answer: AgentAnswer,
): Promise<void> {
  await bus.publish(ANSWER, await carry(redis, JSON.stringify(answer)), callback)
}

async function carry(redis: Redis, text: string): Promise<Carried> {
  if (Buffer.byteLength(text) <= INLINE_BYTES) return { text }
  const key = carriedKey(randomUUID())
  await redis.set(key, text, 'PX', CARRIED_MS)
  return { key }
}

/** Errors: the text has expired; those of Redis. */
export async function unpack(redis: Redis, { text, key = '' }: Carried): Promise<string> {
  const found = text ?? (await redis.getdel(key))
  if (found === null) throw new Error('A message of an agent has expired')
  return found
}

function notConnected(): HttpError {
  return badRequest(NOT_CONNECTED)
}

function timeout(): HttpError {
  return new HttpError(400, outcome(undefined, issue('error', 'timeout', 'Timeout')))
}

async function failAs503<T>(work: Promise<T>): Promise<T> {
  try {
    return await work
  } catch (error) {
    if (error instanceof HttpError) throw error
    throw unavailable('Redis', error)
  }
}

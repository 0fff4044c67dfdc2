/** The service's requests to one agent: from the bus to its socket, and its answers back. */
import type { WebSocket } from 'ws'
import { isObject } from '../../shared/fhir/resource.ts'
import {
  type AgentMessageRecord,
  recordAgentMessage,
} from '../../shared/operations/agents/presence.ts'
import {
  type AgentAnswer,
  answerRequest,
  NOT_CONNECTED,
  type ToConnection,
  unpack,
} from '../../shared/operations/agents/requests.ts'
import type { Services } from '../../shared/request/services.ts'

/** Unread by the agent; a request to a slower one fails. */
const MOST_BUFFERED = 32 * 1024 * 1024
/** Above the longest wait; later answers are ignored. */
const FORGOTTEN_MS = 60_000

interface Awaited {
  readonly at: number
  readonly isAwaited: boolean
  /** The message to a device, which is recorded with its answer. */
  readonly message: Pick<AgentMessageRecord, 'remote' | 'contentType' | 'bytes'> | undefined
}

type Request = Exclude<ToConnection, 'replaced'>

export class AwaitedRequests {
  readonly #services: Services
  readonly #webSocket: WebSocket
  /** Address of the agent. */
  readonly #agent: string
  readonly #awaited = new Map<string, Awaited>()

  constructor(services: Services, webSocket: WebSocket, agent: string) {
    this.#services = services
    this.#webSocket = webSocket
    this.#agent = agent
  }

  /** Errors: those of Redis; the text has expired. */
  async send({ callback, isAwaited, request }: Request): Promise<void> {
    const { redis } = this.#services
    const parsed: unknown = JSON.parse(await unpack(redis, request))
    if (!isObject(parsed)) return
    if (this.#webSocket.readyState !== this.#webSocket.OPEN) {
      const answer = { type: 'agent:error', body: NOT_CONNECTED }
      return await answerRequest(this.#services, callback, answer)
    }
    if (this.#webSocket.bufferedAmount > MOST_BUFFERED) {
      const answer = { type: 'agent:error', body: 'Agent does not read its messages' }
      return await answerRequest(this.#services, callback, answer)
    }
    this.#forgetOld()
    this.#awaited.set(callback, { at: Date.now(), isAwaited, message: toMessage(parsed) })
    this.#webSocket.send(JSON.stringify({ ...parsed, callback }))
    if (!isAwaited) await answerRequest(this.#services, callback, { type: 'sent' })
  }

  /** False for a callback of no request to this agent. Errors: those of Redis. */
  async answered(callback: string, answer: AgentAnswer): Promise<boolean> {
    const found = this.#awaited.get(callback)
    if (found === undefined) return false
    this.#awaited.delete(callback)
    const { at, isAwaited, message } = found
    if (message !== undefined) {
      recordAgentMessage(this.#services.redis, this.#agent, {
        ...message,
        at: Date.now(),
        direction: 'out',
        channel: undefined,
        statusCode: toStatus(answer),
        durationMs: Date.now() - at,
        bot: undefined,
        runId: undefined,
      })
    }
    if (isAwaited) await answerRequest(this.#services, callback, answer)
    return true
  }

  #forgetOld(): void {
    const oldest = Date.now() - FORGOTTEN_MS
    for (const [callback, { at }] of this.#awaited) {
      if (at >= oldest) break
      this.#awaited.delete(callback)
    }
  }
}

function toMessage({ type, remote, contentType, body }: Record<string, unknown>) {
  if (type !== 'agent:transmit:request') return undefined
  const bytes = Buffer.byteLength(String(body))
  return { remote: String(remote), contentType: String(contentType), bytes }
}

function toStatus({ type, statusCode }: AgentAnswer): number {
  if (type === 'agent:error') return 400
  return typeof statusCode === 'number' ? statusCode : 200
}

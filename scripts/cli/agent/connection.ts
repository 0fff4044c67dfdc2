/** The agent's end of the protocol: one web socket, opened again when it closes. */
import { randomUUID } from 'node:crypto'
import { once } from 'node:events'
import { setTimeout as delay } from 'node:timers/promises'
import type { MedplumClient } from '@medplum/core'
import { WebSocket } from 'ws'
import { note } from '../print.ts'

interface Transmitted {
  readonly statusCode: number
  readonly body: string
}

export interface ServiceRequest {
  readonly type: string
  readonly callback?: string
  readonly [name: string]: unknown
}

interface Message {
  readonly channel: string
  readonly remote: string
  readonly contentType: string
  readonly body: string
}

interface Waiting {
  readonly message: Message
  readonly resolve: (answer: Transmitted | undefined) => void
}

interface ConnectionOptions {
  readonly medplum: MedplumClient
  readonly agentId: string
  readonly version: string
  /** Answers a request of the service; its exceptions become `agent:error`. */
  handle(request: ServiceRequest): Promise<object>
}

const PAUSE_MS = 500
const LONGEST_PAUSE_MS = 15_000
const RETRY_MS = 1000
/** The service sends a heartbeat every 10 s. */
const SILENCE_MS = 35_000
const REPLACED = 'Replaced by a newer connection of this agent'
/** Codes of outcomes that another attempt may not have. */
const TRANSIENT = /"code":"(transient|throttled)"/
const RETRIED = [
  'Not connected',
  'Invalid access token',
  'A required service is unavailable, try again',
]

export class AgentConnection {
  readonly #options: ConnectionOptions
  readonly #waiting = new Map<string, Waiting>()
  readonly #stopping = new AbortController()
  #webSocket: WebSocket | undefined
  #isLive = false

  constructor(options: ConnectionOptions) {
    this.#options = options
  }

  get waiting(): number {
    return this.#waiting.size
  }

  /** Connects again and again until `stop`. Errors: the service rejects the agent, or another one replaced it. */
  async run(): Promise<void> {
    const { signal } = this.#stopping
    let pause = PAUSE_MS
    while (!signal.aborted) {
      const wasLive = await this.#connect().catch((error: Error) => {
        if (error instanceof Rejected) throw error
        note('yellow', `The service is not available: ${error.message}`)
        return false
      })
      pause = wasLive ? PAUSE_MS : Math.min(pause * 2, LONGEST_PAUSE_MS)
      await delay(pause * (0.5 + Math.random() / 2), undefined, { signal }).catch(() => undefined)
    }
  }

  stop(): void {
    this.#stopping.abort()
    this.#webSocket?.close()
    for (const { resolve } of this.#waiting.values()) resolve(undefined)
  }

  /**
   * Resolves with the answer. Sends again after a lost connection and after failures that may pass; undefined once
   * aborted.
   */
  async transmit(message: Message, signal: AbortSignal): Promise<Transmitted | undefined> {
    const callback = randomUUID()
    const { promise, resolve } = Promise.withResolvers<Transmitted | undefined>()
    const onAbort = () => resolve(undefined)
    signal.addEventListener('abort', onAbort, { once: true })
    this.#waiting.set(callback, { message, resolve })
    if (this.#isLive) void this.#send(callback)
    try {
      return await promise
    } finally {
      this.#waiting.delete(callback)
      signal.removeEventListener('abort', onAbort)
    }
  }

  /** Resolves when the socket has closed; true if the agent was connected. */
  async #connect(): Promise<boolean> {
    const { medplum, agentId } = this.#options
    await medplum.refreshIfExpired()
    const url = new URL('ws/agent', medplum.getBaseUrl().replace(/^http/, 'ws'))
    const webSocket = new WebSocket(url, { handshakeTimeout: SILENCE_MS })
    this.#webSocket = webSocket
    const silence = setTimeout(() => webSocket.terminate(), SILENCE_MS)
    const state: { wasLive: boolean; rejection?: Rejected } = { wasLive: false }
    webSocket.on('message', (data) => {
      silence.refresh()
      const frame: ServiceRequest = JSON.parse(String(data))
      if (frame.type === 'agent:connect:response') {
        state.wasLive = true
        this.#becomeLive()
      } else if (frame.type === 'agent:error' && frame.callback === undefined) {
        const isFinal = frame.body === REPLACED || !(state.wasLive || isRetried(frame.body))
        if (isFinal) state.rejection = new Rejected(String(frame.body))
        else note('yellow', String(frame.body))
        webSocket.close()
      } else this.#receive(frame)
    })
    try {
      await once(webSocket, 'open')
      webSocket.on('error', (error) => note('yellow', error.message))
      const accessToken = medplum.getAccessToken()
      webSocket.send(JSON.stringify({ type: 'agent:connect:request', accessToken, agentId }))
      if (webSocket.readyState !== WebSocket.CLOSED) await once(webSocket, 'close')
    } finally {
      this.#isLive = false
      clearTimeout(silence)
    }
    if (state.rejection !== undefined) throw state.rejection
    return state.wasLive
  }

  #becomeLive(): void {
    this.#isLive = true
    note('green', `agent ${this.#options.agentId} is connected`)
    for (const callback of this.#waiting.keys()) void this.#send(callback)
  }

  async #send(callback: string): Promise<void> {
    const { medplum } = this.#options
    await medplum.refreshIfExpired().catch(() => undefined)
    const waiting = this.#waiting.get(callback)
    const accessToken = medplum.getAccessToken()
    if (waiting === undefined) return
    this.#say({ type: 'agent:transmit:request', accessToken, callback, ...waiting.message })
  }

  #receive(frame: ServiceRequest): void {
    const { type, callback } = frame
    if (type === 'agent:heartbeat:request') {
      this.#say({ type: 'agent:heartbeat:response', version: this.#options.version })
    } else if (type === 'agent:transmit:response' || type === 'agent:error') {
      const statusCode = type === 'agent:error' ? 400 : Number(frame.statusCode ?? 200)
      this.#settle(String(callback), { statusCode, body: String(frame.body) })
    } else if (type.endsWith(':request')) void this.#answer(frame)
  }

  #settle(callback: string, answer: Transmitted): void {
    const mayPass =
      answer.statusCode !== 200 && (isRetried(answer.body) || TRANSIENT.test(answer.body))
    if (!mayPass) {
      this.#waiting.get(callback)?.resolve(answer)
      return
    }
    setTimeout(() => {
      if (this.#isLive) void this.#send(callback)
    }, RETRY_MS)
  }

  async #answer(request: ServiceRequest): Promise<void> {
    const { callback, type } = request
    try {
      const answer = await this.#options.handle(request)
      this.#say({ type: type.replace(/request$/, 'response'), callback, ...answer })
    } catch (error) {
      this.#say({ type: 'agent:error', callback, body: (error as Error).message })
    }
  }

  #say(frame: object): void {
    if (this.#webSocket?.readyState === WebSocket.OPEN) this.#webSocket.send(JSON.stringify(frame))
  }
}

class Rejected extends Error {}

function isRetried(body: unknown): boolean {
  return RETRIED.includes(String(body))
}

/**
 * The web socket of one agent: its identity, its messages to bots, and the service's requests to it. The types of the
 * protocol are those of Medplum's agent, 5.1.
 */
import { randomUUID } from 'node:crypto'
import { setTimeout as delay } from 'node:timers/promises'
import type { Principal } from '../../shared/access/principal.ts'
import { HttpError } from '../../shared/core/errors.ts'
import type { Resource } from '../../shared/fhir/resource.ts'
import { narrowSession } from '../../shared/identity/principals.ts'
import {
  agentAddress,
  enterAgent,
  leaveAgent,
  renewAgent,
} from '../../shared/operations/agents/presence.ts'
import { TO_CONNECTION, type ToConnection } from '../../shared/operations/agents/requests.ts'
import type { Services } from '../../shared/request/services.ts'
import type { Metrics } from '../http/metrics.ts'
import { productVersion } from '../http/version.ts'
import {
  CLOSE,
  type Connection,
  type OpenedSocket,
  type SocketProtocol,
} from '../http/web-sockets.ts'
import { sessionFor } from '../middleware/authenticate.ts'
import { AwaitedRequests } from './awaited.ts'
import { Flow } from './flow.ts'
import { type ConnectFrame, type Frame, readFrame, type TransmitFrame } from './frames.ts'
import { AgentError, readAgent, transmit } from './transmit.ts'

interface SocketOptions extends OpenedSocket {
  readonly services: Services
  readonly metrics: Metrics
  /** The sockets of this process with a known agent. */
  readonly connected: Set<AgentSocket>
}

/** The agent of a connected socket. */
interface Link {
  readonly agentId: string
  /** The result of `agentAddress`. */
  readonly address: string
  /** Address on the bus. */
  readonly connection: string
  readonly requests: AwaitedRequests
  readonly listening: { close(): Promise<void> }
}

/** The largest message of a feed, such as a report with a scanned document, in JSON. */
const MOST_BYTES = 16 * 1024 * 1024
/** Runs that have begun may end, so that their answers go out. */
const PATIENCE_MS = 7000
const LIMITS = { messages: 256, bytes: 32 * 1024 * 1024 }
const MOST_MALFORMED = 20
const MOST_CONNECTS = 20
/** Unread by the agent. */
const MOST_BUFFERED = 64 * 1024 * 1024
/** Time for messages in flight at a shutdown; less than the protocol's patience. */
const FINISH_MS = 5000
const INVALID_TOKEN = 'Invalid access token'
const VERSION = productVersion()

export function agentProtocol(services: Services, metrics: Metrics): SocketProtocol {
  const connected = new Set<AgentSocket>()
  metrics.watchAgents(() => connected.size)
  // A Redis that lost its data does not know the connections.
  const gaps = services.bus.onGap(() => {
    for (const socket of connected) socket.renew()
  })
  return {
    path: 'ws/agent',
    mostBytes: MOST_BYTES,
    patienceMs: PATIENCE_MS,
    open: (opened) => new AgentSocket({ ...opened, services, metrics, connected }),
    close: () => gaps.close(),
  }
}

class AgentSocket implements Connection {
  readonly closed: Promise<void>
  readonly #options: SocketOptions
  readonly #flow: Flow
  readonly #gone = new AbortController()
  #link: Link | undefined
  /** The caller of the latest valid token. */
  #caller: Principal | undefined
  #version: string | undefined
  /** Settles after the connect requests so far. */
  #connecting: Promise<void> = Promise.resolve()
  #malformed = 0
  /** Connect requests without an answer. */
  #connects = 0
  #isAnswering = true

  constructor(options: SocketOptions) {
    this.#options = options
    const { webSocket, services } = options
    this.#flow = new Flow(webSocket, LIMITS)
    webSocket.on('message', (data, isBinary) => {
      this.#isAnswering = true
      const text = isBinary ? '' : data.toString()
      try {
        this.#receive(readFrame(text), text.length)
      } catch (error) {
        // Thrown out of a listener, it would stop the process.
        services.log.error({ cause: error }, 'An agent message could not be handled')
        webSocket.close(CLOSE.internalError)
      }
    })
    webSocket.on('pong', () => {
      this.#isAnswering = true
    })
    // A protocol violation, or too large a message, closes it with the matching code.
    webSocket.on('error', (error) => services.log.debug({ reason: error.message }, 'Web socket'))
    const ended = new Promise<void>((resolve) => webSocket.once('close', () => resolve()))
    this.closed = ended.then(() => this.#end())
  }

  beat(): void {
    const { webSocket } = this.#options
    // A paused socket does not read the answer.
    if (!this.#isAnswering && !this.#flow.isPaused) {
      webSocket.terminate()
      return
    }
    this.#isAnswering = false
    webSocket.ping()
    if (this.#link === undefined) return
    this.#send({ type: 'agent:heartbeat:request' })
    this.#checkRights()
    this.renew()
  }

  /** Renews the entry of this connection in Redis; closes if the agent has another connection. */
  renew(): void {
    const { services, webSocket } = this.#options
    const link = this.#link
    // While it closes, it cannot send anything to the agent.
    if (link === undefined || webSocket.readyState !== webSocket.OPEN) return
    renewAgent(services.redis, link.address, link.connection, this.#version).then(
      (isCurrent) => {
        if (!isCurrent) this.#replaced()
      },
      (error: Error) => services.log.debug({ reason: error.message }, 'Agent was not renewed'),
    )
  }

  close(code: number): void {
    const { webSocket } = this.#options
    const limit = delay(FINISH_MS, undefined, { ref: false })
    void Promise.race([this.#flow.stop(), limit]).then(() => {
      webSocket.resume()
      webSocket.close(code)
    })
  }

  terminate(): void {
    this.#options.webSocket.terminate()
  }

  #receive(frame: Frame | undefined, bytes: number): void {
    switch (frame?.kind) {
      case undefined:
        this.#malformed += 1
        this.#fail('Message is not a JSON object')
        if (this.#malformed >= MOST_MALFORMED) this.#options.webSocket.close(CLOSE.policy)
        return
      case 'connect':
        this.#connects += 1
        if (this.#connects > MOST_CONNECTS) {
          this.#options.webSocket.close(CLOSE.policy)
          return
        }
        this.#connecting = this.#connecting.then(() => this.#connect(frame))
        return
      case 'transmit': {
        const key = JSON.stringify([frame.channel, frame.remote])
        this.#flow.add(key, bytes, this.#connecting, () => this.#transmit(frame))
        return
      }
      case 'beat':
        // Anonymous clients may not learn the version.
        this.#send({
          type: 'agent:heartbeat:response',
          version: this.#link === undefined ? 'unknown' : VERSION,
        })
        return
      case 'alive':
        // Redis is renewed at each heartbeat anyway.
        if (frame.version === undefined || frame.version === this.#version) return
        this.#version = frame.version
        this.renew()
        return
      case 'answer':
        this.#answered(frame)
        return
      case 'unknown':
        this.#fail(`Unknown message type: ${frame.type}`, frame.callback)
    }
  }

  async #connect({ accessToken, agentId }: ConnectFrame): Promise<void> {
    try {
      const caller = await this.#authenticate(accessToken)
      if (agentId === undefined) throw new AgentError('Missing agent ID')
      const agent = await readAgent(this.#options.services, caller, agentId)
      this.#options.proven()
      this.#caller = caller
      if (this.#link?.address !== agentAddress(agent)) await this.#enter(agent)
      this.#send({ type: 'agent:connect:response' })
    } catch (error) {
      if (error instanceof AgentError) return this.#fail(error.message)
      this.#options.services.log.warn({ cause: error }, 'An agent could not be connected')
      this.#fail('A required service is unavailable, try again')
      this.#options.webSocket.close(CLOSE.tryAgainLater)
    } finally {
      this.#connects -= 1
    }
  }

  /** Errors: AgentError; HttpError for an outage. */
  async #authenticate(accessToken: string | undefined): Promise<Principal> {
    if (accessToken === undefined) throw new AgentError('Missing access token')
    const { services, address, certificate } = this.#options
    const authorization = `Bearer ${accessToken}`
    const credentials = { authorization, onBehalfOf: '', ip: address, certificate }
    try {
      const { principal } = await sessionFor(services, credentials)
      if (principal.allowsAddress?.(address) === false) throw new AgentError(INVALID_TOKEN)
      return principal
    } catch (error) {
      if (error instanceof HttpError && error.status < 500) throw new AgentError(INVALID_TOKEN)
      throw error
    }
  }

  /** Listens before it becomes the agent's connection, so that no request is lost in between. */
  async #enter(agent: Resource): Promise<void> {
    await this.#leave()
    const { id: agentId = '' } = agent
    const address = agentAddress(agent)
    const { services, webSocket, connected } = this.#options
    const { bus, redis } = services
    const connection = randomUUID()
    const requests = new AwaitedRequests(services, webSocket, address)
    const listening = await bus.listen(
      TO_CONNECTION,
      (message) => this.#deliver(requests, message),
      connection,
    )
    this.#link = { agentId, address, connection, requests, listening }
    connected.add(this)
    const before = await enterAgent(redis, address, connection)
    if (before !== undefined) await bus.publish(TO_CONNECTION, 'replaced', before)
  }

  async #leave(): Promise<void> {
    const link = this.#link
    if (link === undefined) return
    const { services, connected } = this.#options
    this.#link = undefined
    connected.delete(this)
    link.listening.close().catch(() => undefined)
    // Redis forgets it anyway when it is not renewed.
    await leaveAgent(services.redis, link.address, link.connection).catch(() => undefined)
  }

  async #end(): Promise<void> {
    this.#gone.abort()
    await this.#connecting
    await this.#leave()
    await this.#flow.finished()
  }

  #deliver(requests: AwaitedRequests, message: ToConnection): void {
    if (message === 'replaced') {
      this.#replaced()
      return
    }
    requests.send(message).catch((error: Error) => {
      this.#options.services.log.warn({ reason: error.message }, 'A request to an agent was lost')
    })
  }

  #replaced(): void {
    this.#fail('Replaced by a newer connection of this agent')
    this.#options.webSocket.close(CLOSE.policy, 'Replaced')
  }

  #answered({ callback, answer }: Extract<Frame, { kind: 'answer' }>): void {
    const { services } = this.#options
    const agent = this.#link?.agentId
    if (callback === undefined) {
      services.log.info({ agent, type: answer.type }, 'An agent sent an answer without callback')
      return
    }
    this.#link?.requests.answered(callback, answer).catch((error: Error) => {
      services.log.warn({ agent, reason: error.message }, 'An answer of an agent was lost')
    })
  }

  async #transmit(frame: TransmitFrame): Promise<void> {
    const { services, metrics, address, forwardedFor } = this.#options
    const { channel, remote, callback } = frame
    const started = performance.now()
    try {
      if (this.#link === undefined) throw new AgentError('Not connected')
      const { agentId, address: agent } = this.#link
      const principal = await this.#authenticate(frame.accessToken)
      this.#caller = principal
      const signal = this.#gone.signal
      const sender = { principal, agentId, agent, address, forwardedFor, signal }
      const answer = await transmit(services, sender, frame)
      const type = 'agent:transmit:response'
      this.#send({ type, channel, remote, callback, ...answer })
      metrics.transmitted(answer.statusCode, (performance.now() - started) / 1000)
    } catch (error) {
      if (error instanceof AgentError) return this.#fail(error.message, callback)
      services.log.warn({ cause: error }, 'A message of an agent was not handled')
      this.#fail('A required service is unavailable, try again', callback)
    }
  }

  /** Closes when the login has ended, or its rights to the Agent. An outage ends nothing. */
  #checkRights(): void {
    const { services } = this.#options
    this.#hasRights().then(
      (hasRights) => {
        if (hasRights) return
        this.#fail(INVALID_TOKEN)
        this.#options.webSocket.close(CLOSE.policy, INVALID_TOKEN)
      },
      (error: Error) => services.log.debug({ reason: error.message }, 'Agent was not checked'),
    )
  }

  async #hasRights(): Promise<boolean> {
    const { services, address } = this.#options
    const [link, caller] = [this.#link, this.#caller]
    if (link === undefined || caller?.loginId === undefined) return true
    const session = await services.principals.forLogin(caller.loginId)
    if (session === undefined) return false
    const { principal } = narrowSession(session, caller)
    if (principal.allowsAddress?.(address) === false) return false
    try {
      const agent = await readAgent(services, principal, link.agentId)
      return agentAddress(agent) === link.address
    } catch (error) {
      if (error instanceof AgentError) return false
      throw error
    }
  }

  #fail(body: string, callback?: string): void {
    this.#send({ type: 'agent:error', callback, body })
  }

  #send(message: Readonly<Record<string, unknown>>): void {
    const { webSocket } = this.#options
    if (webSocket.readyState !== webSocket.OPEN) return
    webSocket.send(JSON.stringify(message))
    if (webSocket.bufferedAmount > MOST_BUFFERED) webSocket.close(CLOSE.tryAgainLater)
  }
}

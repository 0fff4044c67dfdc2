/** One web socket of a client: what it says, and what it is bound to. */

import type { WebSocket } from 'ws'
import type { Services } from '../../shared/services.ts'
import { createSocketSubscriptions } from '../../shared/subscriptions/store-socket-subscriptions.ts'
import type { Metrics } from '../metrics.ts'
import { type Binding, bind } from './binding.ts'
import type { Hub, Listener } from './hub.ts'
import { type ClientMessage, handshake, heartbeat, PONG, readMessage, refusal } from './messages.ts'

const MOST_BINDINGS = 100
const MOST_MALFORMED = 20
/** Messages that are not answered yet. */
const MOST_WAITING = 200
const MOST_BUFFERED = 4 * 1024 * 1024
const BAD_TOKEN = 'Token failed to validate. Check token expiry.'

/** https://www.rfc-editor.org/rfc/rfc6455#section-7.4.1 and the registry of close codes */
export const CLOSE = { goingAway: 1001, policy: 1008, tryAgainLater: 1013 } as const

export interface SocketOptions {
  readonly services: Services
  readonly metrics: Metrics
  readonly hub: Hub
  readonly webSocket: WebSocket
  /** The address of the client. */
  readonly address: string
  /** Called when a token has bound the socket. */
  readonly proven: () => void
}

type Kind = Parameters<Metrics['message']>[0]

export class Socket {
  /** Resolves when it is closed and nothing is left of it. */
  readonly closed: Promise<void>
  readonly #options: SocketOptions
  readonly #bound = new Map<string, Listener>()
  #malformed = 0
  #isAnswering = true
  #waiting = 0
  #working = Promise.resolve()

  constructor(options: SocketOptions) {
    this.#options = options
    const { webSocket, services, hub } = options
    webSocket.on('message', (data, isBinary) => {
      this.#isAnswering = true
      this.#receive(isBinary ? undefined : readMessage(data.toString()))
    })
    webSocket.on('pong', () => {
      this.#isAnswering = true
    })
    // A violation of the protocol closes it, with the code for that.
    webSocket.on('error', (error) => services.log.debug({ reason: error.message }, 'Web socket'))
    const ended = new Promise<void>((resolve) => webSocket.once('close', () => resolve()))
    this.closed = ended.then(() => this.#next(() => hub.remove([...this.#bound.values()])))
  }

  /** Sends a sign of life; a client that has not answered the one before is cut off. */
  beat(): void {
    const { webSocket } = this.#options
    if (!this.#isAnswering) {
      webSocket.terminate()
      return
    }
    this.#isAnswering = false
    webSocket.ping()
    if (this.#bound.size > 0) this.#send('heartbeat', heartbeat([...this.#bound.keys()]))
  }

  close(code: number): void {
    this.#options.webSocket.close(code)
  }

  terminate(): void {
    this.#options.webSocket.terminate()
  }

  #send(kind: Kind, text: string): void {
    const { webSocket, metrics } = this.#options
    if (webSocket.readyState !== webSocket.OPEN) return
    webSocket.send(text)
    metrics.message(kind)
    if (webSocket.bufferedAmount > MOST_BUFFERED) webSocket.close(CLOSE.tryAgainLater)
  }

  #receive(message: ClientMessage | undefined): void {
    const { webSocket, services } = this.#options
    if (message === undefined) {
      this.#malformed += 1
      services.log.info({ malformed: this.#malformed }, 'A message of a web socket is ignored')
      if (this.#malformed >= MOST_MALFORMED) webSocket.close(CLOSE.policy)
    } else if (message.type === 'ping') this.#send('pong', PONG)
    else if (this.#waiting >= MOST_WAITING) webSocket.close(CLOSE.policy)
    else {
      const { type, token } = message
      void this.#next(() =>
        type === 'bind-with-token' ? this.#bindWith(token) : this.#unbindWith(token),
      )
    }
  }

  async #bindWith(token: string): Promise<void> {
    const { services, webSocket, hub, address, proven } = this.#options
    const claims = await services.tokens.verify(token)
    if (claims === undefined || claims === 'expired') return this.#refuse(BAD_TOKEN)
    const { subscriptionId } = claims
    if (subscriptionId === undefined) {
      this.#refuse('Token is of no subscription')
      webSocket.close(CLOSE.policy)
      return
    }
    if (!this.#bound.has(subscriptionId)) {
      if (this.#bound.size >= MOST_BINDINGS) {
        return this.#refuse(`A socket has at most ${MOST_BINDINGS} subscriptions`)
      }
      const binding = await bind(services, claims, subscriptionId, address)
      if (typeof binding === 'string') return this.#refuse(binding)
      proven()
      const listener = this.#listen(subscriptionId, binding)
      await hub.add(listener)
      this.#bound.set(subscriptionId, listener)
    }
    // Further messages need not wait for it.
    void services.repository
      .feature(createSocketSubscriptions)
      .watched()
      .then(() => {
        if (this.#bound.has(subscriptionId)) this.#send('handshake', handshake(subscriptionId))
      })
  }

  #listen(id: string, binding: Binding): Listener {
    return {
      binding,
      send: (text) => this.#send('event-notification', text),
      end: () => void this.#next(() => this.#unbind(id)),
      overflow: () => this.#options.webSocket.close(CLOSE.tryAgainLater),
    }
  }

  async #unbindWith(token: string): Promise<void> {
    const claims = await this.#options.services.tokens.verify(token)
    if (typeof claims === 'object') await this.#unbind(claims.subscriptionId ?? '')
    else this.#refuse(BAD_TOKEN)
  }

  async #unbind(id: string): Promise<void> {
    const listener = this.#bound.get(id)
    if (listener === undefined) return
    this.#bound.delete(id)
    await this.#options.hub.remove([listener])
  }

  #refuse(reason: string): void {
    this.#send('refusal', refusal(reason))
  }

  /** One after the other: a bind is done before the unbind that follows it, or the end of the socket. */
  #next(work: () => Promise<void>): Promise<void> {
    this.#waiting += 1
    this.#working = this.#working
      .then(work)
      .catch((error: unknown) => {
        const reason = error instanceof Error ? error.message : 'unknown'
        this.#options.services.log.warn({ reason }, 'A message of a web socket was not answered')
      })
      .finally(() => {
        this.#waiting -= 1
      })
    return this.#working
  }
}

/** The protocol of web socket Subscriptions: a client's messages and bindings. */
import { comesWithCertificate } from '../../shared/access/credentials/certificates.ts'
import type { Services } from '../../shared/request/services.ts'
import { SOCKET_PATH } from '../../shared/subscriptions/socket-subscriptions.ts'
import type { Metrics } from '../http/metrics.ts'
import {
  CLOSE,
  type Connection,
  type OpenedSocket,
  type SocketProtocol,
} from '../http/web-sockets.ts'
import {
  type Binding,
  bindErrorMessage,
  bindSubscription,
  type ClientMessage,
  handshake,
  heartbeat,
  PONG,
  readMessage,
} from './binding.ts'
import { Hub, type Listener } from './hub.ts'

const MOST_BYTES = 1024 * 1024
/** Time for a client to answer a close, before the connection is cut. */
const PATIENCE_MS = 2000

/** Connects to Redis in the background. */
export function subscriptionProtocol(services: Services, metrics: Metrics): SocketProtocol {
  const hub = new Hub(services)
  metrics.watchBindings(() => hub.bindings)
  return {
    path: SOCKET_PATH,
    mostBytes: MOST_BYTES,
    patienceMs: PATIENCE_MS,
    open: (opened) => new Socket({ ...opened, services, metrics, hub }),
    close: () => hub.close(),
  }
}

const MOST_BINDINGS = 100
const MOST_MALFORMED = 20
const MOST_WAITING = 200
const MOST_BUFFERED = 4 * 1024 * 1024
const BAD_TOKEN = 'Token failed to validate. Check token expiry.'

interface SocketOptions extends OpenedSocket {
  readonly services: Services
  readonly metrics: Metrics
  readonly hub: Hub
}

type Kind = Parameters<Metrics['message']>[0]

class Socket implements Connection {
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
    // A protocol violation closes it with the matching code.
    webSocket.on('error', (error) => services.log.debug({ reason: error.message }, 'Web socket'))
    const ended = new Promise<void>((resolve) => webSocket.once('close', () => resolve()))
    this.closed = ended.then(() => this.#next(() => hub.remove([...this.#bound.values()])))
  }

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
    const { services, webSocket, hub, address, certificate, proven } = this.#options
    const claims = await services.tokens.verify(token)
    if (claims === undefined || claims === 'expired') return this.#refuse(BAD_TOKEN)
    if (!comesWithCertificate(claims, certificate)) return this.#refuse(BAD_TOKEN)
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
      const binding = await bindSubscription(services, claims, subscriptionId, address)
      if (typeof binding === 'string') return this.#refuse(binding)
      proven()
      const listener = this.#listen(subscriptionId, binding)
      const isAdded = await hub.add(listener)
      if (!isAdded) return this.#refuse(`Subscription/${subscriptionId} does not exist any more`)
      this.#bound.set(subscriptionId, listener)
    }
    this.#send('handshake', handshake(subscriptionId))
  }

  #listen(id: string, binding: Binding): Listener {
    return {
      binding,
      send: (text) => this.#send('event-notification', text),
      end: (code) => void this.#next(() => this.#end(id, code)),
      overflow: () => this.#options.webSocket.close(CLOSE.tryAgainLater),
    }
  }

  async #unbindWith(token: string): Promise<void> {
    const claims = await this.#options.services.tokens.verify(token)
    if (typeof claims === 'object') await this.#unbind(claims.subscriptionId ?? '')
    else this.#refuse(BAD_TOKEN)
  }

  /** A socket whose last Subscription has ended is closed: without heartbeats, a client would take it for a live one. */
  async #end(id: string, code: number): Promise<void> {
    if (!this.#bound.has(id)) return
    this.#refuse(`Subscription/${id} has ended`)
    if (this.#bound.size === 1) this.close(code)
    await this.#unbind(id)
  }

  async #unbind(id: string): Promise<void> {
    const listener = this.#bound.get(id)
    if (listener === undefined) return
    this.#bound.delete(id)
    await this.#options.hub.remove([listener])
  }

  #refuse(reason: string): void {
    this.#send('refusal', bindErrorMessage(reason))
  }

  /** Serializes: a bind completes before a later unbind or the end of the socket. */
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

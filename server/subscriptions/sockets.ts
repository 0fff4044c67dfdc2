/** Web sockets of the process, from the upgrade of a connection to the stop. */
import { type IncomingMessage, STATUS_CODES } from 'node:http'
import type { Duplex } from 'node:stream'
import { type WebSocket, WebSocketServer } from 'ws'
import type { Config } from '../../shared/core/config/config.ts'
import type { Services } from '../../shared/request/services.ts'
import { SOCKET_PATH } from '../../shared/subscriptions/socket-subscriptions.ts'
import type { Metrics } from '../http/metrics.ts'
import { isAllowedOrigin } from '../middleware/headers.ts'
import { rateLimitAddress } from '../middleware/limits.ts'
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

interface Sockets {
  upgrade(req: IncomingMessage, socket: Duplex, head: Buffer): void
  /** Closes all of them, and waits until nothing is left of them. */
  close(): Promise<void>
}

const MOST_BYTES = 1024 * 1024
const HEARTBEAT_MS = 10_000
/** To answer a close, before the connection is cut. */
const PATIENCE_MS = 2000
const RETRY_SECONDS = 5

/** Connects to Redis in the background. */
export function openSockets(services: Services, metrics: Metrics): Sockets {
  const { config } = services
  const hub = new Hub(services)
  const open = new Set<Socket>()
  const anonymous = createAnonymous(config)
  const server = new WebSocketServer({
    noServer: true,
    maxPayload: MOST_BYTES,
    perMessageDeflate: false,
  })
  metrics.watchSockets(() => ({ sockets: open.size, bindings: hub.bindings }))
  const timer = setInterval(() => {
    for (const socket of open) socket.beat()
  }, HEARTBEAT_MS)

  return {
    upgrade(req, socket, head) {
      const status = rejectionStatus(config, req)
      if (status !== undefined) return refuse(socket, status)
      const address = clientAddress(config, req)
      const network = rateLimitAddress(address)
      if (anonymous.isFull(network)) return refuse(socket, 429)
      server.handleUpgrade(req, socket, head, (webSocket) => {
        const proven = anonymous.add(network, webSocket)
        const made = new Socket({ services, metrics, hub, webSocket, address, proven })
        open.add(made)
        void made.closed.then(() => open.delete(made))
      })
    },
    async close() {
      clearInterval(timer)
      const all = [...open]
      for (const socket of all) socket.close(CLOSE.goingAway)
      const cut = setTimeout(() => {
        for (const socket of all) socket.terminate()
      }, PATIENCE_MS)
      await Promise.all(all.map(({ closed }) => closed))
      clearTimeout(cut)
      hub.close()
    },
  }
}

/** Undefined for a request that may become a web socket. */
function rejectionStatus(
  config: Config,
  { url = '', headers }: IncomingMessage,
): number | undefined {
  const path = url.split('?', 1)[0]
  if (path !== `/${SOCKET_PATH}`) return 404
  // Browsers send it; other programs need not.
  const { origin } = headers
  return origin === undefined || isAllowedOrigin(config, origin) ? undefined : 403
}

function refuse(socket: Duplex, status: number): void {
  socket.on('error', () => socket.destroy())
  const lines = [`HTTP/1.1 ${status} ${STATUS_CODES[status]}`, 'Connection: close']
  if (status === 429) lines.push(`Retry-After: ${RETRY_SECONDS}`)
  socket.end([...lines, 'Content-Length: 0', '', ''].join('\r\n'))
}

/** The caller's address, as koa determines it for requests: a proxy appends the address that it saw. */
function clientAddress({ trustProxy }: Config, { headers, socket }: IncomingMessage): string {
  const forwarded = trustProxy ? String(headers['x-forwarded-for'] ?? '') : ''
  return forwarded.split(',').at(-1)?.trim() || (socket.remoteAddress ?? '')
}

/**
 * Web sockets that have shown no token yet. An address has some of them at most, each for some time, so that nobody
 * uses up the memory of the process without an account.
 */
interface Anonymous {
  isFull(network: string): boolean
  /** Answers what to call when the socket has shown a token. Without one it is closed in time. */
  add(network: string, webSocket: WebSocket): () => void
}

function createAnonymous({
  anonymousSocketsMax,
  requestIdleSeconds,
}: Pick<Config, 'anonymousSocketsMax' | 'requestIdleSeconds'>): Anonymous {
  const sockets = new Map<string, Set<WebSocket>>()
  return {
    isFull: (network) => (sockets.get(network)?.size ?? 0) >= anonymousSocketsMax,
    add(network, webSocket) {
      const own = sockets.get(network) ?? new Set()
      sockets.set(network, own.add(webSocket))
      const end = () => webSocket.close(CLOSE.policy, 'No token was shown')
      const timer = setTimeout(end, requestIdleSeconds * 1000)
      const leave = () => {
        clearTimeout(timer)
        own.delete(webSocket)
        if (own.size === 0 && sockets.get(network) === own) sockets.delete(network)
      }
      webSocket.once('close', leave)
      return leave
    },
  }
}

// One web socket of a client: what it says, and what it is bound to.

const MOST_BINDINGS = 100
const MOST_MALFORMED = 20
/** Messages that are not answered yet. */
const MOST_WAITING = 200
const MOST_BUFFERED = 4 * 1024 * 1024
const BAD_TOKEN = 'Token failed to validate. Check token expiry.'

/** https://www.rfc-editor.org/rfc/rfc6455#section-7.4.1 and the registry of close codes */
const CLOSE = { goingAway: 1001, policy: 1008, tryAgainLater: 1013 } as const

interface SocketOptions {
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

class Socket {
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
      const binding = await bindSubscription(services, claims, subscriptionId, address)
      if (typeof binding === 'string') return this.#refuse(binding)
      proven()
      const listener = this.#listen(subscriptionId, binding)
      await hub.add(listener)
      this.#bound.set(subscriptionId, listener)
    }
    this.#send('handshake', handshake(subscriptionId))
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
    this.#send('refusal', bindErrorMessage(reason))
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

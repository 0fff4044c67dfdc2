/** Web sockets of the process, from the upgrade of a connection to the stop. */

import { type IncomingMessage, STATUS_CODES } from 'node:http'
import type { Duplex } from 'node:stream'
import { type WebSocket, WebSocketServer } from 'ws'
import type { Config } from '../../shared/config/config.ts'
import type { Services } from '../../shared/services.ts'
import { SOCKET_PATH } from '../../shared/subscriptions/ws-binding-token.ts'
import type { Metrics } from '../metrics.ts'
import { isAllowedOrigin } from '../middleware/headers.ts'
import { addressOf } from '../middleware/limits.ts'
import { Hub } from './hub.ts'
import { CLOSE, Socket } from './socket.ts'

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
      const status = refusalOf(config, req)
      if (status !== undefined) return refuse(socket, status)
      const address = callerOf(config, req)
      const network = addressOf(address)
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
function refusalOf(config: Config, { url = '', headers }: IncomingMessage): number | undefined {
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
function callerOf({ trustProxy }: Config, { headers, socket }: IncomingMessage): string {
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

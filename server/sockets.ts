/** Web sockets of the process, from upgrade to shutdown; the path selects the protocol. */
import { type IncomingMessage, STATUS_CODES } from 'node:http'
import type { Duplex } from 'node:stream'
import { type WebSocket, WebSocketServer } from 'ws'
import { certificateHeader } from '../shared/access/credentials/certificates.ts'
import type { Config } from '../shared/core/config/config.ts'
import type { Services } from '../shared/request/services.ts'
import { agentProtocol } from './agents/agent-socket.ts'
import type { Metrics } from './http/metrics.ts'
import { CLOSE, type Connection, type SocketProtocol } from './http/web-sockets.ts'
import { isAllowedOrigin } from './middleware/headers.ts'
import { rateLimitAddress } from './middleware/limits.ts'
import { subscriptionProtocol } from './subscriptions/sockets.ts'

interface Sockets {
  upgrade(req: IncomingMessage, socket: Duplex, head: Buffer): void
  /** Closes all of them and resolves when they have ended. */
  close(): Promise<void>
}

interface Served {
  readonly protocol: SocketProtocol
  readonly server: WebSocketServer
  readonly open: Set<Connection>
}

const HEARTBEAT_MS = 10_000
const RETRY_SECONDS = 5

/** Connects to Redis in the background. */
export function openSockets(services: Services, metrics: Metrics): Sockets {
  const { config } = services
  const protocols = [subscriptionProtocol(services, metrics), agentProtocol(services, metrics)]
  const served = new Map(protocols.map((protocol) => [`/${protocol.path}`, serve(protocol)]))
  const all = [...served.values()]
  const anonymous = createAnonymous(config)
  metrics.watchSockets(() => all.reduce((sum, { open }) => sum + open.size, 0))
  const timer = setInterval(() => {
    for (const { open } of all) for (const connection of open) connection.beat()
  }, HEARTBEAT_MS)

  return {
    upgrade(req, socket, head) {
      const { url = '', headers } = req
      const found = served.get(url.split('?', 1)[0] ?? '')
      if (found === undefined) return refuse(socket, 404)
      if (!isOriginAllowed(config, headers.origin)) return refuse(socket, 403)
      const address = clientAddress(config, req)
      const network = rateLimitAddress(address)
      if (anonymous.isFull(network)) return refuse(socket, 429)
      found.server.handleUpgrade(req, socket, head, (webSocket) => {
        const proven = anonymous.add(network, webSocket, socket)
        const forwardedFor = headers['x-forwarded-for']?.toString()
        const certificate = certificateHeader(config, headers)
        const opened = { webSocket, address, forwardedFor, certificate, proven }
        const made = found.protocol.open(opened)
        found.open.add(made)
        void made.closed.then(() => found.open.delete(made))
      })
    },
    async close() {
      clearInterval(timer)
      await Promise.all(all.map(closeAll))
    },
  }
}

function serve(protocol: SocketProtocol): Served {
  const server = new WebSocketServer({
    noServer: true,
    maxPayload: protocol.mostBytes,
    perMessageDeflate: false,
  })
  return { protocol, server, open: new Set() }
}

async function closeAll({ protocol, open }: Served): Promise<void> {
  const all = [...open]
  for (const connection of all) connection.close(CLOSE.goingAway)
  const cut = setTimeout(() => {
    for (const connection of all) connection.terminate()
  }, protocol.patienceMs)
  await Promise.all(all.map(({ closed }) => closed))
  clearTimeout(cut)
  protocol.close()
}

/** Browsers send an Origin; it is optional for other programs. */
function isOriginAllowed(config: Config, origin: string | undefined): boolean {
  return origin === undefined || isAllowedOrigin(config, origin)
}

function refuse(socket: Duplex, status: number): void {
  socket.on('error', () => socket.destroy())
  const lines = [`HTTP/1.1 ${status} ${STATUS_CODES[status]}`, 'Connection: close']
  if (status === 429) lines.push(`Retry-After: ${RETRY_SECONDS}`)
  socket.end([...lines, 'Content-Length: 0', '', ''].join('\r\n'))
}

/** Returns the client's address as Koa does for requests: a proxy appends the address that it saw. */
function clientAddress({ trustProxy }: Config, { headers, socket }: IncomingMessage): string {
  const forwarded = trustProxy ? String(headers['x-forwarded-for'] ?? '') : ''
  return forwarded.split(',').at(-1)?.trim() || (socket.remoteAddress ?? '')
}

const MOST_ANONYMOUS_BYTES = 1024 * 1024

/**
 * Web sockets without a token so far. Their number per address, lifetime and bytes are limited, so that clients without
 * an account cannot exhaust the memory.
 */
function createAnonymous({
  anonymousSocketsMax,
  requestIdleSeconds,
}: Pick<Config, 'anonymousSocketsMax' | 'requestIdleSeconds'>) {
  const sockets = new Map<string, Set<WebSocket>>()
  return {
    isFull: (network: string) => (sockets.get(network)?.size ?? 0) >= anonymousSocketsMax,
    /** Returns a function to call once the socket has presented a token. Without one it is closed. */
    add(network: string, webSocket: WebSocket, socket: Duplex): () => void {
      const own = sockets.get(network) ?? new Set()
      sockets.set(network, own.add(webSocket))
      const end = () => webSocket.close(CLOSE.policy, 'No token was shown')
      const timer = setTimeout(end, requestIdleSeconds * 1000)
      let bytes = 0
      const count = (chunk: Buffer) => {
        bytes += chunk.length
        if (bytes > MOST_ANONYMOUS_BYTES) webSocket.terminate()
      }
      socket.on('data', count)
      const leave = () => {
        clearTimeout(timer)
        socket.off('data', count)
        own.delete(webSocket)
        if (own.size === 0 && sockets.get(network) === own) sockets.delete(network)
      }
      webSocket.once('close', leave)
      return leave
    },
  }
}

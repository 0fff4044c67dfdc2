/** From services to a listening server, and back: stop accepting, finish what runs, close. */
import { createServer, type IncomingMessage, type Server, type ServerResponse } from 'node:http'
import type { AddressInfo, Socket } from 'node:net'
import { EVENT_STREAM } from '../shared/api/reply.ts'
import type { Services } from '../shared/services.ts'
import { createApp } from './app.ts'
import { createMetrics } from './metrics.ts'
import { openSockets } from './sockets/sockets.ts'

export interface Listening {
  readonly port: number
  /** Resolves when the last answer is sent, or after `patienceMs` with what is left cut off. */
  stop(patienceMs: number): Promise<void>
}

/** Room for a URL of 32 KiB, which the app itself judges. */
const MAX_HEADER_BYTES = 65_536
/** Above the idle time of common load balancers, so that they close first. */
const KEEP_ALIVE_MS = 75_000
/** The largest upload over a slow line; Node's own 5 minutes would cut it off. */
const REQUEST_MS = 3_600_000

/** Port 0 takes a free one. Errors: EADDRINUSE, EACCES. */
export async function listen(services: Services, port: number): Promise<Listening> {
  const metrics = createMetrics(services)
  const app = createApp(services, metrics)
  const sockets = openSockets(services, metrics)
  let stopping = false
  const connections = new Map<Socket, Set<ServerResponse>>()
  const handler = app.callback()
  const options = { maxHeaderSize: MAX_HEADER_BYTES, shouldUpgradeCallback: isWebSocket }
  const server = createServer(options, (req, res) => {
    const running = connections.get(req.socket)
    if (stopping) res.setHeader('Connection', 'close')
    running?.add(res)
    res.once('close', () => {
      running?.delete(res)
      // An answer whose head was sent before the stop leaves its connection open.
      if (stopping && running?.size === 0) req.socket.end()
    })
    // Koa answers every failure itself; its promise does not reject.
    void handler(req, res)
  })
  server.on('connection', (socket) => {
    connections.set(socket, new Set())
    socket.once('close', () => connections.delete(socket))
  })
  server.on('upgrade', (req, socket, head) => {
    // From here on it is no connection of HTTP.
    connections.delete(req.socket)
    if (stopping) socket.destroy()
    else sockets.upgrade(req, socket, head)
  })
  server.keepAliveTimeout = KEEP_ALIVE_MS
  server.requestTimeout = REQUEST_MS
  server.on('clientError', refuse)
  await started(server, port).catch(async (error: unknown) => {
    await sockets.close()
    throw error
  })
  return {
    // A TCP server's address is never a string.
    port: (server.address() as AddressInfo).port,
    async stop(patienceMs) {
      stopping = true
      const closed = new Promise<void>((resolve) => server.close(() => resolve()))
      // Node's own closeIdleConnections spares a connection that has not sent a request yet.
      for (const [socket, running] of connections) {
        if (running.size === 0) socket.destroy()
        for (const res of running) {
          if (!res.headersSent) res.setHeader('Connection', 'close')
          // It has no end of its own; whoever listens comes again.
          else if (res.getHeader('Content-Type') === EVENT_STREAM) res.end()
        }
      }
      await sockets.close()
      const timer = setTimeout(() => server.closeAllConnections(), patienceMs)
      await closed
      clearTimeout(timer)
    },
  }
}

/** Some clients ask for HTTP/2 in the same way, and take an answer in HTTP/1.1. */
function isWebSocket({ headers }: IncomingMessage): boolean {
  return headers.upgrade?.toLowerCase() === 'websocket'
}

function started(server: Server, port: number): Promise<void> {
  return new Promise((resolve, reject) => {
    server.once('error', reject)
    server.listen(port, () => {
      server.off('error', reject)
      resolve()
    })
  })
}

/** What the HTTP parser refuses never becomes a request; it is answered here, in the same form. */
function refuse(error: NodeJS.ErrnoException, socket: Socket): void {
  if (!socket.writable || error.code === 'ECONNRESET') {
    socket.destroy()
    return
  }
  const [status, code, text] =
    error.code === 'HPE_HEADER_OVERFLOW'
      ? ['431 Request Header Fields Too Large', 'too-long', 'Request header fields too large']
      : ['400 Bad Request', 'structure', 'Request could not be parsed']
  const body = JSON.stringify({
    resourceType: 'OperationOutcome',
    issue: [{ severity: 'error', code, details: { text } }],
  })
  socket.end(
    [
      `HTTP/1.1 ${status}`,
      'Content-Type: application/fhir+json; charset=utf-8',
      `Content-Length: ${Buffer.byteLength(body)}`,
      'Connection: close',
      '',
      body,
    ].join('\r\n'),
  )
}

/** Starts and stops the HTTP server: stop accepting, finish requests, close. */

import {
  createServer,
  type IncomingMessage,
  type Server,
  type ServerOptions,
  type ServerResponse,
} from 'node:http'
import type { AddressInfo, Socket } from 'node:net'
import { setTimeout as delay } from 'node:timers/promises'
import { EVENT_STREAM } from '../shared/request/reply.ts'
import type { Services } from '../shared/request/services.ts'
import { createApp } from './app.ts'
import { createMetrics } from './http/metrics.ts'
import { openLargeBodies } from './large/large-bodies.ts'
import { openSockets } from './sockets.ts'

interface Listening {
  readonly port: number
  /** Sends callers of running bots the address of the result. */
  detachWaitingCallers(): void
  /**
   * Accepts requests for `drainMs` more, closing each connection with its reply, then refuses new connections.
   * Resolves after the last reply, or after `patienceMs`, when the rest is cut off.
   */
  stop(patienceMs: number, drainMs?: number): Promise<void>
}

/** Room for a URL of 32 KiB, which the app itself checks. */
const MAX_HEADER_BYTES = 65_536
/** Above the idle time of common load balancers (Heroku's router: 90 s), so that they close first. */
const KEEP_ALIVE_MS = 95_000
/** The largest upload over a slow line; Node's default of 5 minutes would cut it off. */
const REQUEST_MS = 3_600_000
const HEADER_LOOKS = 6
/** Time for the rest of a request that has been answered. */
const REST_MS = 10_000
const TOO_SLOW = 'The request came too slowly'

/** Port 0 selects a free one. Errors: EADDRINUSE, EACCES. */
export async function listen(services: Services, port: number): Promise<Listening> {
  const metrics = createMetrics(services)
  const largeBodies = openLargeBodies(services)
  const handler = createApp(services, metrics, largeBodies).callback()
  const sockets = openSockets(services, metrics)
  let [stopping, drained] = [false, false]
  const connections = new Map<Socket, Set<ServerResponse>>()
  const idleMs = services.config.requestIdleSeconds * 1000
  const server = createServer(serverOptions(idleMs), (req, res) => {
    const running = connections.get(req.socket)
    if (stopping) res.setHeader('Connection', 'close')
    running?.add(res)
    res.once('close', () => {
      running?.delete(res)
      if (!req.complete) endLater(req, Math.min(idleMs, REST_MS))
      // The headers were sent before the stop, without `Connection: close`.
      if (drained && running?.size === 0) req.socket.end()
    })
    cutStalled(req.socket, res, idleMs)
    // Koa answers every failure itself; its promise does not reject.
    void handler(req, res)
  })
  server.on('connection', (socket) => {
    connections.set(socket, new Set())
    socket.once('close', () => connections.delete(socket))
  })
  server.on('upgrade', (req, socket, head) => {
    // After the upgrade it is not an HTTP connection.
    connections.delete(req.socket)
    if (stopping) socket.destroy()
    else sockets.upgrade(req, socket, head)
  })
  server.on('clientError', refuse)
  server.once('close', watchBodies(connections, idleMs, endSlow))
  await started(server, port).catch(async (error: unknown) => {
    await sockets.close()
    throw error
  })
  return {
    // A TCP server's address is never a string.
    port: (server.address() as AddressInfo).port,
    detachWaitingCallers() {
      services.queues.detachWaitingCallers()
      largeBodies.detachWaitingCallers()
    },
    async stop(patienceMs, drainMs = 0) {
      stopping = true
      announceEnd(connections)
      // A router may send requests until it learns of the shutdown.
      await Promise.all([sockets.close(), delay(drainMs)])
      drained = true
      const closed = new Promise<void>((resolve) => server.close(() => resolve()))
      endIdle(connections)
      const timer = setTimeout(() => server.closeAllConnections(), patienceMs)
      await closed
      clearTimeout(timer)
      await largeBodies.close()
    },
  }
}

/** Cuts a client that takes nothing of a response for `idleMs`. Node restarts the timer when it takes a part. */
function cutStalled(socket: Socket, res: ServerResponse, idleMs: number): void {
  res.setTimeout(idleMs, () => {
    if (res.writableLength > 0) socket.destroy()
  })
}

/** Closes connections after their current reply, announced by a header if its head is not yet sent. */
function announceEnd(connections: Connections): void {
  for (const running of connections.values()) {
    for (const res of running) {
      if (!res.headersSent) res.setHeader('Connection', 'close')
      // These event streams never end by themselves; clients reconnect. The answer of a run does.
      else if (res.getHeader('Content-Type') === EVENT_STREAM && !res.hasHeader('X-Bot-Run-Id')) {
        res.end()
      }
    }
  }
}

/**
 * Closes connections without a request, and ends event streams that began after the announcement. Node's
 * closeIdleConnections skips connections that never sent a request.
 */
function endIdle(connections: Connections): void {
  announceEnd(connections)
  for (const [socket, running] of connections) if (running.size === 0) socket.destroy()
}

function serverOptions(idleMs: number): ServerOptions {
  return {
    maxHeaderSize: MAX_HEADER_BYTES,
    shouldUpgradeCallback: isWebSocket,
    keepAliveTimeout: KEEP_ALIVE_MS,
    headersTimeout: idleMs,
    requestTimeout: Math.max(REQUEST_MS, idleMs),
    connectionsCheckingInterval: Math.floor(idleMs / HEADER_LOOKS),
  }
}

/** Some clients offer HTTP/2 in the same way, and accept HTTP/1.1. */
function isWebSocket({ headers }: IncomingMessage): boolean {
  return headers.upgrade?.toLowerCase() === 'websocket'
}

function endSlow(socket: Socket, res: ServerResponse): void {
  // Reached again after the reply: the connection is still open.
  if (res.headersSent || socket.writableEnded) socket.destroy()
  else answer(socket, '408 Request Timeout', 'timeout', TOO_SLOW)
}

/** Ends a connection whose client is still sending an unread body. */
function endLater(req: IncomingMessage, patienceMs: number): void {
  setTimeout(() => {
    if (!req.complete) req.socket.destroy()
  }, patienceMs).unref()
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

const REFUSED = ['400 Bad Request', 'structure', 'Request could not be parsed'] as const
const REFUSALS: ReadonlyMap<string | undefined, readonly [string, string, string]> = new Map([
  [
    'HPE_HEADER_OVERFLOW',
    ['431 Request Header Fields Too Large', 'too-long', 'Request header fields too large'],
  ],
  ['ERR_HTTP_REQUEST_TIMEOUT', ['408 Request Timeout', 'timeout', TOO_SLOW]],
])

/** Answers messages that the HTTP parser rejects, which never become requests. */
function refuse(error: NodeJS.ErrnoException, socket: Socket): void {
  if (!socket.writable || error.code === 'ECONNRESET') {
    socket.destroy()
    return
  }
  const [status, code, text] = REFUSALS.get(error.code) ?? REFUSED
  answer(socket, status, code, text)
}

/** Answers on the socket where a request is missing or will never be complete. */
function answer(socket: Socket, status: string, code: string, text: string): void {
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

type Connections = ReadonlyMap<Socket, ReadonlySet<ServerResponse>>

interface Progress {
  readonly bytes: number
  readonly at: number
}

/** Minimum of a body within the time, below the speed of the slowest lines. */
const LEAST_BYTES = 16 * 1024
const LOOKS = 6

/**
 * Calls `end` for connections whose body stalls, or brings so little in `idleMs` that it only holds the connection.
 * Periodic checks of all connections cost the requests nothing. Returns a function that stops them.
 */
function watchBodies(
  connections: Connections,
  idleMs: number,
  end: (socket: Socket, res: ServerResponse) => void,
): () => void {
  const seen = new WeakMap<IncomingMessage, Progress>()
  const timer = setInterval(() => {
    const now = performance.now()
    for (const [socket, running] of connections) {
      for (const res of running) {
        const { req } = res
        if (req.complete) continue
        const last = seen.get(req)
        const isMoving = last === undefined || socket.bytesRead - last.bytes >= LEAST_BYTES
        if (isMoving || waitsForUs(req)) seen.set(req, { bytes: socket.bytesRead, at: now })
        else if (now - last.at >= idleMs) end(socket, res)
      }
    }
  }, idleMs / LOOKS)
  timer.unref()
  return () => clearInterval(timer)
}

/** True if its buffer is full: the stall is on our side. */
function waitsForUs(req: IncomingMessage): boolean {
  return req.readableLength >= req.readableHighWaterMark
}

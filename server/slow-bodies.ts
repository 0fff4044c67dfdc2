/**
 * Requests whose body stands still, or comes so slowly that somebody only wants to hold the connection. The
 * connections are looked at now and then, which costs the requests themselves nothing.
 */
import type { IncomingMessage, ServerResponse } from 'node:http'
import type { Socket } from 'node:net'

export type Connections = ReadonlyMap<Socket, ReadonlySet<ServerResponse>>

interface Progress {
  readonly bytes: number
  readonly at: number
}

/** What a body brings within the time at least; the slowest of lines brings more. */
const LEAST_BYTES = 16 * 1024
const LOOKS = 6

/** Calls `end` for a connection whose body brings too little for `idleMs`. Answers what stops it. */
export function watchBodies(
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

/** Its buffer is full: more is not read from the connection until we take some out. */
function waitsForUs(req: IncomingMessage): boolean {
  return req.readableLength >= req.readableHighWaterMark
}

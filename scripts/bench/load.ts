/**
 * Closed-loop load: n callers, each sends its next request when the last was answered. HTTP goes over
 * raw keep-alive sockets, because the load shares the machine with what it measures.
 */
import net from 'node:net'

export interface Load {
  readonly done: number
  readonly failed: number
  readonly perSecond: number
  readonly p50Ms: number
  readonly p99Ms: number
}

/** Runs `call` in `callers` loops for `seconds`; the first tenth is warm-up and not counted. */
export async function measure(
  callers: number,
  seconds: number,
  call: (caller: number) => Promise<boolean>,
): Promise<Load> {
  const times: number[] = []
  let failed = 0
  const began = performance.now()
  const counted = began + seconds * 100
  const ends = began + seconds * 1000
  await Promise.all(
    Array.from({ length: callers }, async (_, caller) => {
      for (let sent = performance.now(); sent < ends; sent = performance.now()) {
        const good = await call(caller)
        if (!good) failed += 1
        if (sent >= counted) times.push(performance.now() - sent)
      }
    }),
  )
  const elapsed = (performance.now() - counted) / 1000
  times.sort((a, b) => a - b)
  return {
    done: times.length,
    failed,
    perSecond: times.length / elapsed,
    p50Ms: times[Math.floor(times.length * 0.5)] ?? 0,
    p99Ms: times[Math.floor(times.length * 0.99)] ?? 0,
  }
}

export interface WireAnswer {
  readonly status: number
  /** Header `Location`, empty when there is none. */
  readonly location: string
}

export interface Wire {
  /** Sends one request on the caller's connection. */
  send(caller: number, method: string, path: string, body: string): Promise<WireAnswer>
  close(): void
}

/** One keep-alive connection a caller. `contentType` and `token` go with every request. */
export async function openWire(
  url: string,
  callers: number,
  token: string,
  contentType: string,
): Promise<Wire> {
  const { hostname, port } = new URL(url)
  const sockets = await Promise.all(
    Array.from({ length: callers }, () => openConnection(hostname, Number(port))),
  )
  const head = `Host: ${hostname}\r\nAuthorization: Bearer ${token}\r\nContent-Type: ${contentType}\r\n`
  return {
    send(caller, method, path, body) {
      const connection = sockets[caller]
      if (!connection) throw new Error(`There is no connection ${caller}`)
      return connection(
        `${method} ${path} HTTP/1.1\r\n${head}Content-Length: ${Buffer.byteLength(body)}\r\n\r\n${body}`,
      )
    },
    close() {
      for (const connection of sockets) connection.end()
    },
  }
}

/** Ends an answer of unknown length. https://www.rfc-editor.org/rfc/rfc9112#section-7.1 */
const LAST_CHUNK = '\r\n0\r\n\r\n'

type Connection = ((request: string) => Promise<WireAnswer>) & { end(): void }

async function openConnection(host: string, port: number): Promise<Connection> {
  const socket = net.connect({ host, port, noDelay: true })
  await new Promise<void>((resolve, reject) => {
    socket.once('connect', resolve).once('error', reject)
  })
  let waiting: { resolve(answer: WireAnswer): void; reject(error: Error): void } | undefined
  let received = Buffer.alloc(0)
  socket.on('data', (chunk) => {
    received = received.length === 0 ? chunk : Buffer.concat([received, chunk])
    const end = received.indexOf('\r\n\r\n')
    if (end < 0) return
    const headers = received.toString('latin1', 0, end)
    const length = /\r\ncontent-length: (\d+)/i.exec(headers)?.[1]
    const isWhole =
      length === undefined && /\r\ntransfer-encoding: chunked/i.test(headers)
        ? received.subarray(-LAST_CHUNK.length).toString('latin1') === LAST_CHUNK
        : received.length >= end + 4 + Number(length ?? 0)
    if (!isWhole) return
    // Nothing follows: the next request is not sent before.
    received = Buffer.alloc(0)
    const { resolve } = waiting ?? {}
    waiting = undefined
    const location = /\r\nlocation: ([^\r]*)/i.exec(headers)?.[1] ?? ''
    resolve?.({ status: Number(headers.slice(9, 12)), location })
  })
  socket.on('error', (error) => waiting?.reject(error))
  socket.on('close', () => waiting?.reject(new Error('The connection was closed')))
  const send = (request: string) =>
    new Promise<WireAnswer>((resolve, reject) => {
      if (socket.destroyed) reject(new Error('The connection was closed'))
      waiting = { resolve, reject }
      socket.write(request)
    })
  return Object.assign(send, { end: () => socket.destroy() })
}

export function median(values: readonly number[]): number {
  const sorted = values.toSorted((a, b) => a - b)
  return sorted[Math.floor(sorted.length / 2)] ?? 0
}

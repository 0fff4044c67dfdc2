/**
 * Closed-loop load: n callers, each with one request at a time. Uses raw keep-alive sockets, because the load shares
 * the machine with the measured service.
 */
import net from 'node:net'

export interface Load {
  readonly perSecond: number
  readonly p50Ms: number
  readonly p99Ms: number
}

type Call = (caller: number) => Promise<boolean>

/** Runs `call` in `callers` loops for `seconds`; the first tenth is an uncounted warm-up. Throws if a call fails. */
export async function measure(callers: number, seconds: number, call: Call): Promise<Load> {
  const times: number[] = []
  let failed = 0
  const began = performance.now()
  const counted = began + seconds * 100
  const ends = began + seconds * 1000
  await Promise.all(
    Array.from({ length: callers }, async (_, caller) => {
      for (let sent = performance.now(); sent < ends; sent = performance.now()) {
        if (!(await call(caller))) failed += 1
        if (sent >= counted) times.push(performance.now() - sent)
      }
    }),
  )
  if (failed > 0) throw new Error(`${failed} calls failed`)
  const elapsed = (performance.now() - counted) / 1000
  times.sort((a, b) => a - b)
  const part = (share: number) => times[Math.floor(times.length * share)] ?? 0
  return { perSecond: times.length / elapsed, p50Ms: part(0.5), p99Ms: part(0.99) }
}

/** Alternates both sides; the first round is an uncounted warm-up. */
export async function alternate<Side extends string>(
  rounds: number,
  sides: Readonly<Record<Side, () => Promise<number>>>,
): Promise<{ readonly [side in Side]: readonly number[] }> {
  const names = Object.keys(sides) as Side[]
  const found = Object.fromEntries(names.map((name) => [name, [] as number[]]))
  for (let round = 0; round <= rounds; round++) {
    for (const name of names) {
      const value = await sides[name]()
      if (round > 0) found[name]?.push(value)
    }
  }
  return found as Record<Side, number[]>
}

export function medianRatio(ours: readonly number[], limit: readonly number[]): string {
  return median(ours.map((value, round) => value / (limit[round] ?? Number.NaN))).toFixed(2)
}

export function median(values: readonly number[]): number {
  const sorted = values.toSorted((a, b) => a - b)
  return sorted[Math.floor(sorted.length / 2)] ?? 0
}

export interface Wire {
  /** Sends one request on the caller's connection and returns the status. */
  send(caller: number, method: string, path: string, body?: string): Promise<number>
  close(): void
}

/** Opens a keep-alive connection per caller. `contentType` and `token` go with every request. */
export async function openWire(
  url: string,
  callers: number,
  token: string,
  contentType: string,
): Promise<Wire> {
  const { hostname, port } = new URL(url)
  const open = () => openConnection(hostname, Number(port))
  const sockets = await Promise.all(Array.from({ length: callers }, open))
  const head = `Host: ${hostname}\r\nAuthorization: Bearer ${token}\r\nContent-Type: ${contentType}\r\n`
  return {
    async send(caller, method, path, body = '') {
      // The service closes connections idle for a minute.
      if (sockets[caller]?.isOpen() === false) sockets[caller] = await open()
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

/** End of a chunked response. https://www.rfc-editor.org/rfc/rfc9112#section-7.1 */
const LAST_CHUNK = '\r\n0\r\n\r\n'

type Connection = ((request: string) => Promise<number>) & { end(): void; isOpen(): boolean }

async function openConnection(host: string, port: number): Promise<Connection> {
  const socket = net.connect({ host, port, noDelay: true })
  await new Promise<void>((resolve, reject) => {
    socket.once('connect', resolve).once('error', reject)
  })
  let waiting: PromiseWithResolvers<number> | undefined
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
    // No pipelining: the next request is sent later.
    received = Buffer.alloc(0)
    waiting?.resolve(Number(headers.slice(9, 12)))
  })
  socket.on('error', (error) => waiting?.reject(error))
  socket.on('close', () => waiting?.reject(new Error('The connection was closed')))
  const send = (request: string) => {
    waiting = Promise.withResolvers<number>()
    socket.write(request)
    return waiting.promise
  }
  return Object.assign(send, { end: () => socket.destroy(), isOpen: () => socket.writable })
}

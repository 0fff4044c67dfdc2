/**
 * Closed-loop load: n callers, each with one request at a time. Uses raw keep-alive sockets, because the load shares
 * the machine with the measured service.
 */
import { once } from 'node:events'
import { readdirSync, readFileSync } from 'node:fs'
import net from 'node:net'
import { setTimeout as delay } from 'node:timers/promises'

/** One line of a bench's table. `required`: the target ratio of the design, if any. */
export interface Figure {
  readonly what: string
  readonly ours: string
  readonly limit?: string
  readonly ratio?: string
  readonly required?: string
}

export interface Load {
  readonly perSecond: number
  readonly p50Ms: number
  readonly p99Ms: number
  /** CPU time per call in ms of web, worker and executors, and of PostgreSQL and Redis. */
  readonly cpuMs: Cpu
}

interface Cpu {
  readonly service: number
  readonly stores: number
}

/** Compares the slowest of some durations with their limit. */
export function compareP99(what: string, times: readonly number[], limitMs: number): Figure {
  const p99 = part(times, 0.99)
  const ours = `p50 ${median(times).toFixed(0)} ms, p99 ${p99.toFixed(0)} ms`
  const ratio = (p99 / limitMs).toFixed(2)
  return { what, ours, limit: `p99 ${limitMs} ms`, ratio, required: '<= 1' }
}

export const median = (values: readonly number[]): number => part(values, 0.5)

/** Returns the value that `share` of all values are below; 0 if there are none. */
export function part(values: readonly number[], share: number): number {
  return values.toSorted((a, b) => a - b)[Math.floor(values.length * share)] ?? 0
}

/** Runs `call` in `callers` loops for `seconds`; the first tenth is an uncounted warm-up. Throws if a call fails. */
export async function measure(
  callers: number,
  seconds: number,
  call: (caller: number) => Promise<boolean>,
): Promise<Load> {
  const times: number[] = []
  let [calls, failed] = [0, 0]
  const before = readCpuMs()
  const began = performance.now()
  const counted = began + seconds * 100
  const ends = began + seconds * 1000
  await Promise.all(
    Array.from({ length: callers }, async (_, caller) => {
      for (let sent = performance.now(); sent < ends; sent = performance.now()) {
        calls += 1
        if (!(await call(caller))) failed += 1
        if (sent >= counted) times.push(performance.now() - sent)
      }
    }),
  )
  if (failed > 0) throw new Error(`${failed} calls failed`)
  const perSecond = (times.length * 1000) / (performance.now() - counted)
  const after = readCpuMs()
  const cpuMs = {
    service: (after.service - before.service) / calls,
    stores: (after.stores - before.stores) / calls,
  }
  return { perSecond, p50Ms: median(times), p99Ms: part(times, 0.99), cpuMs }
}

/** Alternates both sides; the first round is an uncounted warm-up. Returns medians. */
export async function alternate(
  rounds: number,
  ours: () => Promise<number>,
  limit: () => Promise<number>,
): Promise<{ readonly ours: number; readonly limit: number; readonly ratio: string }> {
  const found: { ours: number; limit: number }[] = []
  for (let round = 0; round <= rounds; round++) {
    const bound = await limit()
    found.push({ ours: await ours(), limit: bound })
  }
  const counted = found.slice(1)
  return {
    ours: median(counted.map((round) => round.ours)),
    limit: median(counted.map((round) => round.limit)),
    ratio: median(counted.map((round) => round.ours / round.limit)).toFixed(2),
  }
}

/** Returns CPU time in ms of this process's living descendants, and of their ended children, from /proc (Linux). */
function readCpuMs(): Cpu {
  // The kernel reports in hundredths of a second on every machine.
  const tickMs = 10
  const processes = new Map(
    readdirSync('/proc').flatMap((name) => {
      const stat = /^\d+$/.test(name) ? readProcess(name, 'stat') : ''
      // The command may contain spaces and brackets (proc(5)).
      const fields = stat.slice(stat.lastIndexOf(')') + 2).split(' ')
      return stat === '' ? [] : [[Number(name), fields] as const]
    }),
  )
  const used = { service: 0, stores: 0 }
  for (const [pid, fields] of processes) {
    let parent = Number(fields[1])
    while (parent > 1 && parent !== process.pid) parent = Number(processes.get(parent)?.[1])
    if (parent !== process.pid) continue
    const isStore = /postgres|redis-|valkey/.test(readProcess(String(pid), 'cmdline'))
    const ticks = fields.slice(11, 15).reduce((sum, field) => sum + Number(field), 0)
    used[isStore ? 'stores' : 'service'] += ticks * tickMs
  }
  return used
}

/** Returns empty text when the process has ended. */
function readProcess(pid: string, file: 'stat' | 'cmdline'): string {
  try {
    return readFileSync(`/proc/${pid}/${file}`, 'latin1')
  } catch {
    return ''
  }
}

/** Polls an accepted request (202) until it is complete; returns its id and its manifest. */
export async function awaitJob<Manifest>(
  token: string,
  accepted: Response,
): Promise<{ readonly id: string; readonly manifest: Manifest }> {
  const status = accepted.headers.get('content-location') ?? ''
  for (;;) {
    const answer = await fetch(new URL(status, accepted.url), {
      headers: { Authorization: `Bearer ${token}` },
    })
    if (answer.status === 200) {
      const manifest = (await answer.json()) as Manifest
      return { id: status.slice(status.lastIndexOf('/') + 1), manifest }
    }
    if (answer.status !== 202 && answer.status !== 429) {
      throw new Error(`The job answered ${answer.status}`)
    }
    await delay(100)
  }
}

export type Request = readonly [method: string, path: string, body?: string | undefined]

export interface Wire {
  /** Sends one request on the caller's connection and returns the status. */
  send(caller: number, ...request: Request): Promise<number>
  /** Measures the requests of all callers for `seconds`; each has to be answered with 2xx. */
  load(seconds: number, request: (caller: number) => Request): Promise<Load>
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
  const connections = await Promise.all(Array.from({ length: callers }, open))
  const head = `Host: ${hostname}\r\nAuthorization: Bearer ${token}\r\nContent-Type: ${contentType}\r\n`
  const send = async (caller: number, ...[method, path, body = '']: Request) => {
    let connection = connections[caller]
    // The service closes idle connections.
    if (!connection?.isOpen()) connection = connections[caller] = await open()
    return await connection.send(
      `${method} ${path} HTTP/1.1\r\n${head}Content-Length: ${Buffer.byteLength(body)}\r\n\r\n${body}`,
    )
  }
  return {
    send,
    load(seconds, request) {
      const call = async (caller: number) => (await send(caller, ...request(caller))) < 300
      return measure(callers, seconds, call)
    },
    close() {
      for (const connection of connections) connection.end()
    },
  }
}

/** End of a chunked response. https://www.rfc-editor.org/rfc/rfc9112#section-7.1 */
const LAST_CHUNK = '\r\n0\r\n\r\n'

async function openConnection(host: string, port: number) {
  const socket = net.connect({ host, port, noDelay: true })
  await once(socket, 'connect')
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
  return {
    send(request: string): Promise<number> {
      waiting = Promise.withResolvers<number>()
      socket.write(request)
      return waiting.promise
    },
    isOpen: () => socket.writable,
    end: () => socket.destroy(),
  }
}

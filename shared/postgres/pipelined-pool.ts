/**
 * Brief statements share two connections. All that one turn of the event loop asks for goes out in one write, PostgreSQL
 * runs it without a pause, and the answers come in one read. Measured at 16 callers: a third of the CPU of a search by
 * a token on both sides, most of it the waking of processes.
 *
 * A statement that keeps others waiting turns out not to be brief: its connection is left to it, and those behind it are
 * sent again elsewhere, which they allow since they change nothing.
 */
import { corkForTick } from '../core/batching.ts'
import { isUsable, type RawConnection } from './pool.ts'
import type { Statement } from './statement.ts'

interface PoolTransport {
  open(): Promise<RawConnection>
  send(connection: RawConnection, statement: Statement): Promise<object[]>
  /** Runs on a dedicated connection. */
  alone(statement: Statement, signal: AbortSignal | undefined): Promise<object[]>
  release(connection: RawConnection): Promise<void>
  /** Cancels the running statement until `over`; the connection gets no further statements. */
  end(connection: RawConnection, over: AbortSignal): Promise<void>
}

const LANES = 2
const MOST_IN_FLIGHT = 8
/** After this long without an answer, other statements stop waiting for one. */
export const STUCK_MS = 300

interface Sent {
  readonly statement: Statement
  readonly signal: AbortSignal | undefined
  /** Time sent; opening a connection may come first. */
  at: number
  readonly resolve: (rows: object[]) => void
  readonly reject: (error: unknown) => void
  /** Sent again elsewhere: the answer here is ignored. */
  isElsewhere: boolean
}

class Wire {
  readonly inFlight: Sent[] = []
  opening: Promise<RawConnection> | undefined
  connection: RawConnection | undefined
  isLost = false
  isLeft = false
  isWatched = false
  readonly over = new AbortController()
}

export class PipelinedPool {
  readonly #transport: PoolTransport
  readonly #wires: Wire[]

  readonly #stuckMs: number

  /** A small pool has no connections to spare. */
  constructor(transport: PoolTransport, poolSize: number, stuckMs: number) {
    this.#transport = transport
    this.#stuckMs = stuckMs
    this.#wires = poolSize < 4 * LANES ? [] : Array.from({ length: LANES }, () => new Wire())
  }

  /** Undefined for an unsuitable statement, or while all connections are full. Errors: the database's, the signal's. */
  take(statement: Statement, signal?: AbortSignal): Promise<object[]> | undefined {
    if (statement.isPipelined !== true) return undefined
    const place = this.#freest()
    if (place === undefined) return undefined
    const wire = this.#wireIn(place)
    return new Promise((resolve, reject) => {
      const sent = { statement, signal, at: Infinity, resolve, reject, isElsewhere: false }
      wire.inFlight.push(sent)
      this.#watch(place, wire)
      void this.#send(wire, sent)
    })
  }

  async close(): Promise<void> {
    for (const wire of this.#wires) await this.#leave(wire)
  }

  #freest(): number | undefined {
    let best: number | undefined
    let fewest = MOST_IN_FLIGHT
    for (const [place, { inFlight }] of this.#wires.entries()) {
      if (inFlight.length < fewest) [best, fewest] = [place, inFlight.length]
    }
    return best
  }

  #wireIn(place: number): Wire {
    const wire = this.#wires[place]
    const isOver = wire?.isLost || (wire?.connection !== undefined && !isUsable(wire.connection))
    if (wire !== undefined && !isOver) return wire
    if (wire !== undefined) void this.#leave(wire)
    const fresh = new Wire()
    this.#wires[place] = fresh
    return fresh
  }

  /** Settles the statement unless it was sent again elsewhere; does not reject. */
  async #send(wire: Wire, sent: Sent): Promise<void> {
    const { statement, signal, resolve, reject } = sent
    try {
      wire.opening ??= this.#transport.open()
      const connection = await wire.opening
      wire.connection = connection
      corkForTick(connection.connection.stream)
      sent.at = performance.now()
      resolve(await this.#transport.send(connection, statement))
      wire.isLost ||= !isUsable(connection)
    } catch (error) {
      const connection = await wire.opening?.catch(() => undefined)
      wire.isLost ||= connection === undefined || !isUsable(connection)
      if (!sent.isElsewhere) reject(signal?.aborted ? signal.reason : error)
    }
    wire.inFlight.splice(wire.inFlight.indexOf(sent), 1)
    if (wire.isLeft) await this.#leave(wire)
  }

  /** Sends nothing more there; returns the connection to the pool when all is answered. */
  async #leave(wire: Wire): Promise<void> {
    wire.isLeft = true
    if (wire.inFlight.length > 0) return
    wire.over.abort()
    const connection = await wire.opening?.catch(() => undefined)
    wire.opening = undefined
    if (connection !== undefined) await this.#transport.release(connection)
  }

  #watch(place: number, wire: Wire): void {
    if (wire.isWatched) return
    wire.isWatched = true
    const look = () => {
      wire.isWatched = false
      const [oldest] = wire.inFlight
      if (oldest === undefined || this.#wires[place] !== wire) return
      if (performance.now() - oldest.at < this.#stuckMs) this.#watch(place, wire)
      else this.#giveUp(place, wire, oldest)
    }
    // After this turn's socket events: an answer may be received but not yet read.
    setTimeout(() => setImmediate(look), this.#stuckMs).unref()
  }

  #giveUp(place: number, wire: Wire, stuck: Sent): void {
    this.#wires[place] = new Wire()
    void this.#leave(wire)
    for (const sent of wire.inFlight.slice(1)) {
      sent.isElsewhere = true
      const again = { ...sent.statement, isMaintenance: true }
      this.#transport.alone(again, sent.signal).then(sent.resolve, sent.reject)
    }
    const { signal } = stuck
    const end = () => {
      if (wire.inFlight.includes(stuck)) void this.#end(wire)
    }
    if (signal?.aborted) end()
    signal?.addEventListener('abort', end)
    // The listener, like Node's `signal` option, would retain the rows until a slow caller has read them.
    const forget = () => signal?.removeEventListener('abort', end)
    wire.over.signal.addEventListener('abort', forget, { once: true })
  }

  async #end(wire: Wire): Promise<void> {
    const connection = await wire.opening?.catch(() => undefined)
    if (connection !== undefined) await this.#transport.end(connection, wire.over.signal)
  }
}

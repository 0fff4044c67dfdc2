/**
 * Joins concurrent small calls into few large ones: those of one turn of the event loop, those that wait for a
 * connection, or those of a tenth of a second.
 */
import type { Writable } from 'node:stream'
import { HttpError } from './errors.ts'
import type { Logger } from './log.ts'

export interface Pending<Item, Answer> {
  readonly item: Item
  readonly resolve: (answer: Answer | Promise<Answer>) => void
  readonly reject: (error: unknown) => void
}

/** Sends the items of a batch and returns an answer for each, in the order of the items. */
type Send<Item, Answer> = (items: readonly Item[]) => Promise<readonly Answer[]>

/** Sends the batch and settles each of its items; does not reject. */
export async function settle<Item, Answer>(
  batch: readonly Pending<Item, Answer>[],
  send: Send<Item, Answer>,
): Promise<void> {
  try {
    const answers = await send(batch.map(({ item }) => item))
    // Each place of the answers belongs to the item in that place.
    batch.forEach(({ resolve }, i) => {
      resolve(answers[i] as Answer)
    })
  } catch (error) {
    for (const { reject } of batch) reject(error)
  }
}

/** Sends the items of one turn of the event loop together, those with the same `key` in one batch. */
export function batchPerTick<Item, Answer>(
  send: Send<Item, Answer>,
  key?: (item: Item) => unknown,
): (item: Item) => Promise<Answer> {
  const queues = new Map<unknown, Pending<Item, Answer>[]>()
  const flush = (name: unknown) => {
    const batch = queues.get(name) ?? []
    queues.delete(name)
    void settle(batch, send)
  }
  return (item) =>
    new Promise((resolve, reject) => {
      const name = key?.(item)
      const pending = { item, resolve, reject }
      const queue = queues.get(name)
      if (queue !== undefined) {
        queue.push(pending)
        return
      }
      queues.set(name, [pending])
      setImmediate(flush, name)
    })
}

/** All that is written until the end of this turn leaves in one write: every write wakes the reader, which takes the CPU. */
export function corkForTick(stream: Writable): void {
  if (stream.writableCorked > 0) return
  stream.cork()
  setImmediate(() => stream.uncork())
}

/** Calls that come while one runs share the next, which begins after all of them. */
export function shareNextCall<T>(call: () => Promise<T>): () => Promise<T> {
  let running: Promise<unknown> = Promise.resolve()
  let next: Promise<T> | undefined
  return () => {
    next ??= running
      .catch(() => undefined)
      .then(() => {
        next = undefined
        const called = call()
        running = called
        return called
      })
    return next
  }
}

const LANES = 2
/** One that PostgreSQL runs and one that it finds waiting when that is done. */
const IN_FLIGHT = 2
/** A batch that takes so long waits for a lock, and whoever sends the next one should not. */
const STUCK_MS = 50
const FEWEST_ITEMS = 4

interface Batching<Connection, Item, Answer> {
  /** Divides the queue into the next batch, at most `share` items, and the rest. */
  take(
    queue: readonly Pending<Item, Answer>[],
    share: number,
  ): [batch: Pending<Item, Answer>[], rest: Pending<Item, Answer>[]]
  /** Settles every item of the batch; does not reject. */
  run(connection: Connection, batch: readonly Pending<Item, Answer>[]): Promise<void>
}

/** A connection, and since when each batch that it has not answered is under way. */
interface Lane<Connection> {
  readonly connection: Connection
  readonly since: number[]
}

/**
 * Sends one batch after the other, without a timer: what arrives while earlier batches are under way goes into the next
 * one, so nobody waits longer than alone.
 */
export function batchInLanes<Connection, Item, Answer>(
  openLane: () => Connection,
  { take, run }: Batching<Connection, Item, Answer>,
): (item: Item) => Promise<Answer> {
  let queue: Pending<Item, Answer>[] = []
  let isStarting = false
  let late: NodeJS.Timeout | undefined
  // Connections of their own keep the prepared statements of all shapes warm: planning one anew takes
  // as long as running it. The second one is for when the first is stuck: two of PostgreSQL's processes
  // would fight with this one for the CPU. Measured at 16 callers: a quarter more writes with one.
  const lanes: readonly Lane<Connection>[] = Array.from({ length: LANES }, () => ({
    connection: openLane(),
    since: [],
  }))

  return (item) =>
    new Promise((resolve, reject) => {
      queue.push({ item, resolve, reject })
      start()
    })

  function start(): void {
    if (isStarting || queue.length === 0) return
    const lane = freeLane(lanes)
    if (lane === undefined) {
      lookAgain()
      return
    }
    isStarting = true
    // Failures reach the callers through `reject`; the loop itself does not throw.
    void drain(lane)
  }

  /** No event says that a lane has become stuck. */
  function lookAgain(): void {
    if (late !== undefined) return
    late = setTimeout(() => {
      late = undefined
      start()
    }, STUCK_MS)
  }

  async function drain(lane: Lane<Connection>): Promise<void> {
    await new Promise((resolve) => setImmediate(resolve))
    isStarting = false
    while (queue.length > 0 && lane.since.length < IN_FLIGHT) {
      // One batch of all would let every caller wait at once: this process would rest while PostgreSQL
      // works, and the other way round. So a batch leaves the next one its share.
      const share = Math.ceil(queue.length / (IN_FLIGHT - lane.since.length))
      const [batch, rest] = take(queue, Math.max(share, FEWEST_ITEMS))
      queue = rest
      lane.since.push(performance.now())
      if (queue.length > 0) start()
      await run(lane.connection, batch)
      lane.since.shift()
    }
    start()
  }
}

/** The first lane that is not stuck, if it has room. */
function freeLane<Connection>(lanes: readonly Lane<Connection>[]): Lane<Connection> | undefined {
  const now = performance.now()
  const lane = lanes.find(({ since: [oldest] }) => oldest === undefined || now - oldest < STUCK_MS)
  return lane !== undefined && lane.since.length < IN_FLIGHT ? lane : undefined
}

interface DelayedBatches<T> {
  /** Queues the item; a full batch or 100 ms later it is written. Resolves when it is, or is lost. */
  add(item: T): Promise<void>
  /** Writes what is queued, if it can be written now. */
  close(): Promise<void>
}

interface Queued<T> {
  readonly item: T
  written(): void
}

interface BatchOptions<T> {
  readonly log: Logger
  /** The name of the items, in the plural. */
  readonly what: string
  /** For each item the error that it met, or undefined. */
  write(items: readonly T[]): Promise<readonly unknown[]>
}

const BATCH = 100
const BATCH_MS = 100
/** Beyond it items are dropped, with a line in the log: runs must not wait for their reports. */
const MAX_QUEUED = 10_000
const AGAIN_MS = 1000

/**
 * Writes items after their callers have their answers: in batches, soon, and again while PostgreSQL is unavailable.
 */
export function batchDelayed<T>({ log, what, write }: BatchOptions<T>): DelayedBatches<T> {
  let queued: Queued<T>[] = []
  let writing = Promise.resolve()
  let timer: NodeJS.Timeout | undefined
  let isWaiting = false
  let isClosing = false

  async function writeAll(batch: readonly Queued<T>[]): Promise<void> {
    if (batch.length === 0) return
    const failures = await write(batch.map(({ item }) => item))
    const again = isClosing ? [] : batch.filter((_, i) => isAway(failures[i]))
    for (const one of batch) if (!again.includes(one)) one.written()
    if (again.length > 0) {
      queued = [...again, ...queued]
      isWaiting = true
      timer ??= setTimeout(next, AGAIN_MS)
    }
    const lost = failures.filter((reason) => reason !== undefined && (isClosing || !isAway(reason)))
    if (lost.length > 0) log.error({ count: lost.length, cause: lost[0] }, `${what} were lost`)
  }

  function next(): void {
    clearTimeout(timer)
    timer = undefined
    isWaiting = false
    const batch = queued
    queued = []
    writing = writing.then(() => writeAll(batch))
  }

  return {
    async add(item) {
      if (queued.length >= MAX_QUEUED) {
        log.error(`${what} were dropped: too many are waiting`)
        return
      }
      await new Promise<void>((resolve) => {
        queued.push({ item, written: resolve })
        if (queued.length >= BATCH && !isWaiting) next()
        else timer ??= setTimeout(next, BATCH_MS)
      })
    },
    async close() {
      isClosing = true
      next()
      await writing
    },
  }
}

function isAway(error: unknown): boolean {
  return error instanceof HttpError && error.status === 503
}

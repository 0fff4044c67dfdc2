/** Joins concurrent small calls into few large ones: per turn of the event loop, per free connection, or per 100 ms. */
import type { Writable } from 'node:stream'
import { isUnavailable } from './errors.ts'
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

/** Sends everything written in this turn in one write, since each write wakes the reader and costs CPU. */
export function corkForTick(stream: Writable): void {
  if (stream.writableCorked > 0) return
  stream.cork()
  setImmediate(() => stream.uncork())
}

/** Calls during a running one share the next, which begins after all of them. */
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
/** PostgreSQL runs one and finds the other waiting afterwards. */
const IN_FLIGHT = 2
/** A batch in flight this long waits for a lock, so the next one uses the other lane. */
const STUCK_MS = 50
const FEWEST_ITEMS = 4

interface Batching<Connection, Item, Answer> {
  /** Splits the queue into the next batch, at most `share` items, and the rest. */
  take(
    queue: readonly Pending<Item, Answer>[],
    share: number,
  ): [batch: Pending<Item, Answer>[], rest: Pending<Item, Answer>[]]
  /** Settles every item of the batch; does not reject. */
  run(connection: Connection, batch: readonly Pending<Item, Answer>[]): Promise<void>
}

/** A connection, and the start time of each unanswered batch. */
interface Lane<Connection> {
  readonly connection: Connection
  readonly since: number[]
}

/**
 * Sends batches one after the other, without a timer: items that arrive while earlier batches are in flight join the
 * next one, so no call waits longer than alone.
 */
export function batchInLanes<Connection, Item, Answer>(
  openLane: () => Connection,
  { take, run }: Batching<Connection, Item, Answer>,
): (item: Item) => Promise<Answer> {
  let queue: Pending<Item, Answer>[] = []
  let isStarting = false
  let late: NodeJS.Timeout | undefined
  // Dedicated connections keep the prepared statements of all shapes: planning takes as long as running. The second
  // lane serves only when the first is stuck: two PostgreSQL processes would compete with this one for the CPU.
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
    // `reject` reports failures to the callers; the loop itself does not throw.
    void drain(lane)
  }

  /** Polls, since no event reports that a lane is stuck. */
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
      // A single batch would make all callers wait at once, so that this process and PostgreSQL idle in turn. Each
      // batch leaves the next one a share.
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

/** Returns the first lane that is not stuck, if it has room. */
function freeLane<Connection>(lanes: readonly Lane<Connection>[]): Lane<Connection> | undefined {
  const now = performance.now()
  const lane = lanes.find(({ since: [oldest] }) => oldest === undefined || now - oldest < STUCK_MS)
  return lane !== undefined && lane.since.length < IN_FLIGHT ? lane : undefined
}

interface DelayedBatches<T> {
  /** Queues the item for the next write, after 100 ms or a full batch. Resolves when it is written or lost. */
  add(item: T): Promise<void>
  /** Writes the queued items if possible. */
  close(): Promise<void>
}

interface Queued<T> {
  readonly item: T
  written(): void
}

interface BatchOptions<T> {
  readonly log: Logger
  /** A plural, for the log. */
  readonly name: string
  /** Returns an error or undefined for each item. */
  write(items: readonly T[]): Promise<readonly unknown[]>
}

const BATCH = 100
const BATCH_MS = 100
/** Further items are dropped and logged: runs must not wait for their reports. */
const MAX_QUEUED = 10_000
const AGAIN_MS = 1000

/** Writes items in batches after their callers have been answered, and retries while PostgreSQL is unavailable. */
export function batchDelayed<T>({ log, name, write }: BatchOptions<T>): DelayedBatches<T> {
  let queued: Queued<T>[] = []
  let writing = Promise.resolve()
  let timer: NodeJS.Timeout | undefined
  let isWaiting = false
  let isClosing = false

  async function writeAll(batch: readonly Queued<T>[]): Promise<void> {
    if (batch.length === 0) return
    const failures = await write(batch.map(({ item }) => item))
    const again = isClosing ? [] : batch.filter((_, i) => isUnavailable(failures[i]))
    for (const one of batch) if (!again.includes(one)) one.written()
    if (again.length > 0) {
      queued = [...again, ...queued]
      isWaiting = true
      timer ??= setTimeout(next, AGAIN_MS)
    }
    const lost = failures.filter(
      (reason) => reason !== undefined && (isClosing || !isUnavailable(reason)),
    )
    if (lost.length > 0) log.error({ count: lost.length, cause: lost[0] }, `${name} were lost`)
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
        log.error(`${name} were dropped: too many are waiting`)
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

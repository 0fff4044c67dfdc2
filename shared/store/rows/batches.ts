/** Combines concurrent small statements into a few large ones, without a timer or added wait. */
import { setImmediate as nextTurn } from 'node:timers/promises'
import { LRUCache } from 'lru-cache'
import type { Database } from '../../postgres/database.ts'
import type { Connection } from '../../postgres/statement.ts'

const LANES = 2
/** One batch that PostgreSQL runs and one that it finds next. */
const IN_FLIGHT = 2
/** A batch this slow waits for a lock; the next one should not. */
const STUCK_MS = 50
const FEWEST_ITEMS = 4

export interface Pending<Item, Answer> {
  readonly item: Item
  readonly resolve: (answer: Answer) => void
  readonly reject: (error: unknown) => void
}

export interface Batching<Item, Answer> {
  take(
    queue: readonly Pending<Item, Answer>[],
    share: number,
  ): [batch: Pending<Item, Answer>[], rest: Pending<Item, Answer>[]]
  /** Settles every item of the batch; does not reject. */
  run(connection: Connection, batch: readonly Pending<Item, Answer>[]): Promise<void>
}

/** A connection, and the start time of each batch in flight on it. */
interface Lane {
  readonly connection: Connection
  readonly since: number[]
}

export function createBatches<Item, Answer>(
  database: Pick<Database, 'lane'>,
  { take, run }: Batching<Item, Answer>,
): (item: Item) => Promise<Answer> {
  let queue: Pending<Item, Answer>[] = []
  let isStarting = false
  let late: NodeJS.Timeout | undefined
  // Dedicated connections keep prepared statements warm. The second lane is for when the first is stuck; both at once
  // would compete for the CPU.
  const lanes: readonly Lane[] = Array.from({ length: LANES }, () => ({
    connection: database.lane(),
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
    // Never rejects: failures reach the callers through `reject`.
    void drain(lane)
  }

  /** No event reports a stuck lane. */
  function lookAgain(): void {
    if (late !== undefined) return
    late = setTimeout(() => {
      late = undefined
      start()
    }, STUCK_MS)
  }

  async function drain(lane: Lane): Promise<void> {
    await nextTurn()
    isStarting = false
    while (queue.length > 0 && lane.since.length < IN_FLIGHT) {
      // One batch of everything would idle this process while PostgreSQL works, and vice versa.
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

function freeLane(lanes: readonly Lane[]): Lane | undefined {
  const now = performance.now()
  const lane = lanes.find(({ since: [oldest] }) => oldest === undefined || now - oldest < STUCK_MS)
  return lane !== undefined && lane.since.length < IN_FLIGHT ? lane : undefined
}

/** Answers are in the order of the items. */
export function batchPerTick<Item, Answer>(
  send: (items: readonly Item[]) => Promise<readonly Answer[]>,
): (item: Item) => Promise<Answer> {
  let queue: Pending<Item, Answer>[] = []
  const flush = async () => {
    const sent = queue
    queue = []
    try {
      const answers = await send(sent.map(({ item }) => item))
      sent.forEach(({ resolve }, i) => {
        resolve(answers[i] as Answer)
      })
    } catch (error) {
      for (const { reject } of sent) reject(error)
    }
  }
  return (item) =>
    new Promise((resolve, reject) => {
      // Never rejects: failures reach the callers through `reject`.
      if (queue.length === 0) setImmediate(() => void flush())
      queue.push({ item, resolve, reject })
    })
}

interface Times {
  /** Younger values are returned as they are. */
  readonly freshMs: number
  /** Younger values are returned while a refresh runs. */
  readonly usableMs: number
  readonly max: number
}

interface FreshCache<T> {
  /** `readNow` replaces the cache's own reader when the caller must wait. */
  get(key: string, readNow?: (key: string) => Promise<T | undefined>): Promise<T | undefined>
  delete(key: string): void
  /** Drops the values that meet the test, and all that are being read. */
  drop(test: (value: T | undefined) => boolean): void
  clear(): void
}

interface Entry<T> {
  readonly value: Promise<T | undefined>
  readonly readAt: number
  next: Promise<T | undefined> | undefined
  /** Set once `value` has resolved. */
  known?: { readonly value: T | undefined }
}

/** Single flight: concurrent callers of a key share one read. */
export function freshCache<T>(
  { freshMs, usableMs, max }: Times,
  read: (key: string) => Promise<T | undefined>,
): FreshCache<T> {
  const entries = new LRUCache<string, Entry<T>>({ maxSize: max, sizeCalculation: () => 1 })

  const start = (key: string, readNow: typeof read): Promise<T | undefined> => {
    // The start counts: the read may miss a change that commits meanwhile.
    const readAt = Date.now()
    const value = readNow(key)
    const entry: Entry<T> = { value, readAt, next: undefined }
    entries.set(key, entry)
    value.then(
      (read) => {
        entry.known = { value: read }
      },
      () => {
        if (entries.peek(key) === entry) entries.delete(key)
      },
    )
    return value
  }

  const refresh = (key: string, entry: Entry<T>): void => {
    const readAt = Date.now()
    const next = read(key)
    entry.next = next
    next.then(
      (read) => {
        if (entries.peek(key) === entry) {
          entries.set(key, { value: next, readAt, next: undefined, known: { value: read } })
        }
      },
      () => {
        entry.next = undefined
      },
    )
  }

  return {
    get(key, readNow = read) {
      const entry = entries.get(key)
      if (entry === undefined) return start(key, readNow)
      const age = Date.now() - entry.readAt
      if (age < freshMs) return entry.value
      if (age < usableMs) {
        if (entry.next === undefined) refresh(key, entry)
        return entry.value
      }
      return entry.next ?? start(key, readNow)
    },
    delete: (key) => entries.delete(key),
    drop(test) {
      for (const [key, { known }] of entries.entries()) {
        if (known === undefined || test(known.value)) entries.delete(key)
      }
    },
    clear: () => entries.clear(),
  }
}

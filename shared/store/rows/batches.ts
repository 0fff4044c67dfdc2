/**
 * Concurrent small statements become a few large ones. There is no timer: what arrives while earlier
 * batches are under way goes into the next one, so nobody waits longer than alone.
 */
import { setImmediate as nextTurn } from 'node:timers/promises'
import { LRUCache } from 'lru-cache'
import type { Database } from '../../postgres/database.ts'
import type { Connection } from '../../postgres/statement.ts'

const LANES = 2
/** One that PostgreSQL runs and one that it finds waiting when that is done. */
const IN_FLIGHT = 2
/** A batch that takes so long waits for a lock, and whoever sends the next one should not. */
const STUCK_MS = 50
const FEWEST_ITEMS = 4

export interface Pending<Item, Answer> {
  readonly item: Item
  readonly resolve: (answer: Answer) => void
  readonly reject: (error: unknown) => void
}

export interface Batching<Item, Answer> {
  /** Divides the queue into the next batch, at most `share` items, and the rest. */
  take(
    queue: readonly Pending<Item, Answer>[],
    share: number,
  ): [batch: Pending<Item, Answer>[], rest: Pending<Item, Answer>[]]
  /** Settles every item of the batch; does not reject. */
  run(connection: Connection, batch: readonly Pending<Item, Answer>[]): Promise<void>
}

/** A connection, and since when each batch that it has not answered is under way. */
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
  // Connections of their own keep the prepared statements of all shapes warm: planning one anew takes
  // as long as running it. The second one is for when the first is stuck: two of PostgreSQL's processes
  // would fight with this one for the CPU. Measured at 16 callers: a quarter more writes with one.
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

  async function drain(lane: Lane): Promise<void> {
    await nextTurn()
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
function freeLane(lanes: readonly Lane[]): Lane | undefined {
  const now = performance.now()
  const lane = lanes.find(({ since: [oldest] }) => oldest === undefined || now - oldest < STUCK_MS)
  return lane !== undefined && lane.since.length < IN_FLIGHT ? lane : undefined
}

/** Items of one turn of the event loop are sent together; answers in the order of the items. */
export function batchPerTick<Item, Answer>(
  send: (items: readonly Item[]) => Promise<readonly Answer[]>,
): (item: Item) => Promise<Answer> {
  let queue: Pending<Item, Answer>[] = []
  const flush = async () => {
    const sent = queue
    queue = []
    try {
      const answers = await send(sent.map(({ item }) => item))
      // Each place of the answers belongs to the item in that place.
      sent.forEach(({ resolve }, i) => {
        resolve(answers[i] as Answer)
      })
    } catch (error) {
      for (const { reject } of sent) reject(error)
    }
  }
  return (item) =>
    new Promise((resolve, reject) => {
      // Failures reach the callers through `reject`; `flush` itself does not throw.
      if (queue.length === 0) setImmediate(() => void flush())
      queue.push({ item, resolve, reject })
    })
}

interface Times {
  /** A younger value is given as it is. */
  readonly freshMs: number
  /** A younger one is given while the next is read. */
  readonly usableMs: number
  readonly max: number
}

interface FreshCache<T> {
  /** `readNow` reads in the foreground, where the caller must wait, in place of the cache's own reading. */
  get(key: string, readNow?: (key: string) => Promise<T | undefined>): Promise<T | undefined>
  delete(key: string): void
  /** Drops the values that the test holds for, and all whose reading has not ended. */
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

/** Single flight: callers that ask for the same key while it is read share the one reading. */
export function freshCache<T>(
  { freshMs, usableMs, max }: Times,
  read: (key: string) => Promise<T | undefined>,
): FreshCache<T> {
  const entries = new LRUCache<string, Entry<T>>({ maxSize: max, sizeCalculation: () => 1 })

  const start = (key: string, readNow: typeof read): Promise<T | undefined> => {
    // A change committed while the reading runs may be missed by it: the time before it counts.
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

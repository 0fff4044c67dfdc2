/** Writes about runs after their callers have the answers: in batches, soon, and later when PostgreSQL is away. */
import { HttpError } from '../../shared/errors.ts'
import type { Logger } from '../../shared/log.ts'

export interface Batches<T> {
  /** Queues the item; a full batch or 100 ms later it is written. Resolves when it is, or is lost. */
  add(item: T): Promise<void>
  /** Writes what is queued, if it can be written now. */
  close(): Promise<void>
}

interface Queued<T> {
  readonly item: T
  written(): void
}

export interface BatchOptions<T> {
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

export function createBatches<T>({ log, what, write }: BatchOptions<T>): Batches<T> {
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

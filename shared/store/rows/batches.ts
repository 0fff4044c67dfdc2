/** Caches what is read again after some seconds. */
import { LRUCache } from 'lru-cache'

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

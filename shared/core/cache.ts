/**
 * Caches of a process. Each registers itself: `/metrics` shows its size and hits, and a change of a resource drops the
 * entries that it makes stale, whichever process made the change.
 */
import { LRUCache } from 'lru-cache'

/** A committed change of a resource. */
export interface Change {
  /** A resource type. */
  readonly type: string
  readonly id: string
  /** The Project among whose rows it lies, by number; the registry has one of its own. */
  readonly number: number
  /** Id of the Project that it belongs to. */
  readonly home: string | undefined
}

/** After a gap, during which changes may have been missed, everything counts as changed. */
export type Changed = readonly Change[] | 'everything'

interface Invalidation<K, V> {
  /** A change of these types drops all entries. */
  readonly types?: readonly string[]
  /** Returns the key that a change drops, for caches with many entries and many changes. */
  readonly staleKey?: (change: Change) => K | undefined
  /** Returns the test for entries that a change drops; undefined for a change that drops none. */
  readonly staleEntries?: (change: Change) => ((value: V) => boolean) | undefined
}

interface CacheOptions<K, V, Context> extends Invalidation<K, V> {
  /** The label in `/metrics`; caches of one name are counted together. */
  readonly name: string
  /** The most entries, or the most of what `size` returns. */
  readonly max: number
  readonly size?: (value: V, key: K) => number
  readonly ttlMs?: number
  /** Larger entries are not cached. */
  readonly maxEntrySize?: number
  readonly fetch?: LRUCache.Fetcher<K, V, Context>
}

interface CacheStats {
  readonly name: string
  readonly entries: number
  readonly hits: number
  readonly misses: number
}

interface Registered {
  readonly stats: CacheStats
  drop(changed: Changed): void
}

/** Weak, since a process of tests opens and closes many services. */
const caches = new Set<WeakRef<Registered>>()

function* registered(): Iterable<Registered> {
  for (const reference of caches) {
    const cache = reference.deref()
    if (cache === undefined) caches.delete(reference)
    else yield cache
  }
}

/** Drops what the changes make stale, in all caches of this process. */
export function invalidateCaches(changed: Changed): void {
  for (const cache of registered()) cache.drop(changed)
}

export function cacheStats(): readonly CacheStats[] {
  const sums = new Map<string, CacheStats>()
  for (const { stats } of registered()) {
    const { name, entries, hits, misses } = stats
    const sum = sums.get(name) ?? { entries: 0, hits: 0, misses: 0 }
    sums.set(name, {
      name,
      entries: sum.entries + entries,
      hits: sum.hits + hits,
      misses: sum.misses + misses,
    })
  }
  return [...sums.values()]
}

/** Keeps the entries that were used last. */
export class Cache<K extends {}, V extends {}, Context = unknown>
  extends LRUCache<K, V, Context>
  implements Registered
{
  readonly #name: string
  readonly #invalidation: Invalidation<K, V>
  #hits = 0
  #misses = 0

  constructor({
    name,
    max,
    size,
    ttlMs,
    maxEntrySize,
    fetch,
    ...rest
  }: CacheOptions<K, V, Context>) {
    // Bounded by size even where entries are counted: `max` of LRUCache takes its memory at once.
    super({
      maxSize: max,
      sizeCalculation: size ?? (() => 1),
      ...(ttlMs === undefined ? {} : { ttl: ttlMs }),
      ...(maxEntrySize === undefined ? {} : { maxEntrySize }),
      ...(fetch === undefined ? {} : { fetchMethod: fetch }),
    })
    this.#name = name
    this.#invalidation = rest
    caches.add(new WeakRef(this))
  }

  get stats(): CacheStats {
    return { name: this.#name, entries: super.size, hits: this.#hits, misses: this.#misses }
  }

  override get(key: K): V | undefined {
    const value = super.get(key)
    if (value === undefined) this.#misses++
    else this.#hits++
    return value
  }

  override has(key: K): boolean {
    const isKnown = super.has(key)
    if (isKnown) this.#hits++
    else this.#misses++
    return isKnown
  }

  drop(changed: Changed): void {
    const { types, staleKey, staleEntries } = this.#invalidation
    if (changed === 'everything') {
      if (types ?? staleKey ?? staleEntries) this.clear()
      return
    }
    for (const change of changed) {
      if (types?.includes(change.type)) this.clear()
      const key = staleKey?.(change)
      if (key !== undefined) this.delete(key)
      const isStale = staleEntries?.(change)
      if (isStale === undefined) continue
      for (const [name, value] of this.entries()) if (isStale(value)) this.delete(name)
    }
  }
}

interface FreshOptions<T> extends Invalidation<string, T | undefined> {
  readonly name: string
  readonly max: number
  /** A younger value is returned as it is. */
  readonly freshMs: number
  /** A younger one is returned while the next is read. */
  readonly usableMs: number
}

interface FreshCache<T> {
  /** `readNow` reads in the foreground, where the caller must wait, in place of the cache's own reading. */
  get(key: string, readNow?: (key: string) => Promise<T | undefined>): Promise<T | undefined>
  delete(key: string): void
  clear(): void
}

interface Entry<T> {
  readonly value: Promise<T | undefined>
  readonly readAt: number
  next: Promise<T | undefined> | undefined
  /** The resolved `value`. */
  known?: T | undefined
}

function onKnownValues<T>(staleEntries: NonNullable<FreshOptions<T>['staleEntries']>) {
  return (change: Change) => {
    const isStale = staleEntries(change)
    return isStale && ((entry: Entry<T>) => isStale(entry.known))
  }
}

/**
 * Caches values that are read again after some seconds. Callers that ask for the same key while it is read share the reading.
 * `staleEntries` gets undefined for a value whose reading has not ended.
 */
export function createFreshCache<T>(
  { freshMs, usableMs, staleEntries, ...options }: FreshOptions<T>,
  read: (key: string) => Promise<T | undefined>,
): FreshCache<T> {
  const entries = new Cache<string, Entry<T>>({
    ...options,
    ...(staleEntries && { staleEntries: onKnownValues(staleEntries) }),
  })

  const start = (key: string, readNow: typeof read): Promise<T | undefined> => {
    // A change committed while the reading runs may be missed by it: the time before it counts.
    const readAt = Date.now()
    const value = readNow(key)
    const entry: Entry<T> = { value, readAt, next: undefined }
    entries.set(key, entry)
    value.then(
      (read) => {
        entry.known = read
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
          entries.set(key, { value: next, readAt, next: undefined, known: read })
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
    clear: () => entries.clear(),
  }
}

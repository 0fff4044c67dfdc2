/**
 * Caches of a process. Each registers itself, so that `/metrics` shows its size and hits, and a change of a resource
 * in any process drops stale entries.
 */
import { LRUCache } from 'lru-cache'

const MB = 1024 * 1024
const MEMORY_SHARE = 1 / 64
const LEAST_MB = 8

/** Returns the size of a cache in bytes, about characters: a share of the memory of its process, up to `mostMb`. */
export function sizeWithin(memoryMb: number, mostMb: number): number {
  return Math.min(Math.max(Math.floor(memoryMb * MEMORY_SHARE), LEAST_MB), mostMb) * MB
}

/** The types whose committed changes are announced to every process: a cache can depend on no other. */
export const REPORTED_TYPES = [
  'AccessPolicy',
  'Bot',
  'ClientApplication',
  'CodeSystem',
  'Login',
  'Project',
  'ProjectMembership',
  'Questionnaire',
  'SearchParameter',
  'StructureDefinition',
  'UserConfiguration',
  'ValueSet',
] as const

export type ReportedType = (typeof REPORTED_TYPES)[number]

/** A committed change of a resource. */
export interface CacheChange {
  readonly type: ReportedType
  readonly id: string
  /** Number of the Project that stores the row; the registry has a separate number. */
  readonly number: number
  /** Id of the Project that owns it. */
  readonly home: string | undefined
}

/** After a gap, during which changes may have been missed, everything counts as changed. */
export type Changed = readonly CacheChange[] | 'everything'

interface Invalidation<K, V> {
  /** A change of these types drops all entries. */
  readonly types?: readonly ReportedType[]
  /** Returns the key that a change drops, for caches with many entries and many changes. */
  readonly staleKey?: (change: CacheChange) => K | undefined
  /** Returns the test for entries that a change drops; undefined for a change that drops none. */
  readonly staleEntries?: (change: CacheChange) => ((value: V) => boolean) | undefined
}

interface CacheOptions<K, V, Context> extends Invalidation<K, V> {
  /** The label in `/metrics`; caches of one name are counted together. */
  readonly name: string
  /** Limit on entries, or on the sum of `size`. */
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
  /** Younger values are returned without a reading. */
  readonly freshMs: number
  /** Younger values are returned while the next is read. */
  readonly usableMs: number
}

interface Entry<T> {
  readonly value: Promise<T | undefined>
  readonly readAt: number
  next: Promise<T | undefined> | undefined
  /** Set when `value` resolves. */
  known?: T | undefined
}

/**
 * A cache that reads its entries again after some seconds. Callers that request the same key during a reading share
 * it. `staleEntries` gets undefined for an entry whose first reading has not ended.
 */
export class FreshCache<T> {
  readonly #entries: Cache<string, Entry<T>>
  readonly #times: Pick<FreshOptions<T>, 'freshMs' | 'usableMs'>
  readonly #read: (key: string) => Promise<T | undefined>

  constructor(
    { freshMs, usableMs, staleEntries, ...options }: FreshOptions<T>,
    read: (key: string) => Promise<T | undefined>,
  ) {
    this.#times = { freshMs, usableMs }
    this.#read = read
    this.#entries = new Cache<string, Entry<T>>({
      ...options,
      staleEntries(change) {
        const isStale = staleEntries?.(change)
        return isStale && ((entry) => isStale(entry.known))
      },
    })
  }

  /** `readNow` replaces the cache's reading where the caller must wait. */
  get(key: string, readNow = this.#read): Promise<T | undefined> {
    const entry = this.#entries.get(key)
    if (entry === undefined) return this.#start(key, readNow)
    const age = Date.now() - entry.readAt
    const { freshMs, usableMs } = this.#times
    if (age < freshMs) return entry.value
    if (age >= usableMs) return entry.next ?? this.#start(key, readNow)
    if (entry.next === undefined) this.#refresh(key, entry)
    return entry.value
  }

  delete(key: string): void {
    this.#entries.delete(key)
  }

  clear(): void {
    this.#entries.clear()
  }

  #start(key: string, read: (key: string) => Promise<T | undefined>): Promise<T | undefined> {
    // Taken before the reading, which may miss a change committed while it runs.
    const readAt = Date.now()
    const value = read(key)
    const entry: Entry<T> = { value, readAt, next: undefined }
    this.#entries.set(key, entry)
    value.then(
      (known) => {
        entry.known = known
      },
      () => {
        if (this.#entries.peek(key) === entry) this.#entries.delete(key)
      },
    )
    return value
  }

  #refresh(key: string, entry: Entry<T>): void {
    const readAt = Date.now()
    const next = this.#read(key)
    entry.next = next
    next.then(
      (known) => {
        if (this.#entries.peek(key) !== entry) return
        this.#entries.set(key, { value: next, readAt, next: undefined, known })
      },
      () => {
        entry.next = undefined
      },
    )
  }
}

interface KeyedValues<K, V> {
  get(key: K): V | undefined
  set(key: K, value: NoInfer<V>): unknown
  delete(key: K): unknown
}

/** Returns the value of a key, which `make` makes if there is none. */
export function getOrInsert<K, V extends {}>(values: KeyedValues<K, V>, key: K, make: () => V): V {
  const known = values.get(key)
  if (known !== undefined) return known
  const made = make()
  values.set(key, made)
  return made
}

/** Like `getOrInsert`, for a promise, whose failure is not kept. */
export function getOrStart<K, T>(
  values: KeyedValues<K, Promise<T>>,
  key: K,
  start: () => Promise<T>,
): Promise<T> {
  return getOrInsert(values, key, () => {
    const started = start()
    started.catch(() => values.delete(key))
    return started
  })
}

/** Memoizes values by name for the lifetime of an object. */
export function memoFor<Owner extends object, T>(most = Number.POSITIVE_INFINITY) {
  const known = new WeakMap<Owner, Map<string, { readonly made: T }>>()
  return (owner: Owner, name: string, make: () => T): T => {
    const byName = getOrInsert(known, owner, () => new Map())
    const found = byName.get(name)
    if (found !== undefined) return found.made
    const made = make()
    if (byName.size >= most) byName.clear()
    byName.set(name, { made })
    return made
  }
}

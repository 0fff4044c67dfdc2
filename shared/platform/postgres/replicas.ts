/**
 * Read replicas. A place in PostgreSQL's log is written down for each Project when a write of it has been committed,
 * before its caller is answered, and a read goes to a replica that has replayed as much: whoever has the answer to a
 * write finds it everywhere. The places are in Redis, for all processes; a Redis that has lost them begins anew at
 * the place where the primary is by then.
 */
import { setTimeout as delay } from 'node:timers/promises'
import type { Logger } from '../../log.ts'
import type { Redis } from '../redis/redis.ts'
import { type Database, openDatabase } from './database.ts'
import type { DatabaseConfig } from './pool.ts'

const PLACES = 'botica:written'
/** The member that holds for every Project. */
const ALL = 'all'
const LOOK_MS = 50
/** A replica that is away is asked less often. */
const AWAY_MS = 1000
/** An answer that is older says nothing: the replica may stand still. */
const FRESH_MS = 500
const PATIENCE_MS = 5000

export interface Replica {
  readonly name: string
  readonly database: Database
}

export interface Replicas {
  readonly all: readonly Replica[]
  /** Where reads of these Projects may go; undefined: to the primary. */
  choose(projects: readonly number[]): Promise<Replica | undefined>
  /** Settles when nobody reads of a Project, or of any, what was there before its last write. */
  written(project: number | undefined): Promise<void>
  /** A read there has failed: none goes there until it has answered again. */
  failed(replica: Replica): void
  /** Seconds by which each replica is behind what is known to be written. */
  lags(): ReadonlyMap<string, number>
  close(): Promise<void>
}

interface Followed extends Replica {
  /** Bytes of the log that it has replayed; negative while it is away. */
  place: number
  answeredAt: number
  /** The last time that it had all that was known to be written. */
  caughtUpAt: number
}

interface Opening {
  readonly config: DatabaseConfig
  readonly redis: Redis
  readonly log: Logger
}

/** Opens no connection yet. */
export function openReplicas(
  urls: readonly string[],
  primary: Database,
  { config, redis, log }: Opening,
): Replicas {
  const all = urls.map((url): Followed => {
    const name = new URL(url).host
    const settings = { ...config, databaseUrl: url, databaseDirectUrl: undefined }
    const database = openDatabase(settings, log.child({ replica: name }))
    return { name, database, place: -1, answeredAt: 0, caughtUpAt: performance.now() }
  })
  return new FollowedReplicas(all, primary, redis)
}

class FollowedReplicas implements Replicas {
  readonly all: readonly Followed[]
  readonly #redis: Redis
  readonly #placeOfPrimary: () => Promise<number>
  /** The furthest place that is known to be written. */
  #known = 0
  #isClosed = false
  #turn = 0

  constructor(all: readonly Followed[], primary: Database, redis: Redis) {
    this.all = all
    this.#redis = redis
    this.#placeOfPrimary = together(() => primaryPlace(primary))
    for (const replica of all) void this.#follow(replica)
  }

  async choose(projects: readonly number[]): Promise<Replica | undefined> {
    const now = performance.now()
    const here = this.all.filter((one) => one.place >= 0 && now - one.answeredAt < FRESH_MS)
    if (here.length === 0) return undefined
    // The primary takes its share.
    this.#turn = (this.#turn + 1) % (here.length + 1)
    const replica = here[this.#turn]
    if (replica === undefined) return undefined
    const needed = await this.#neededFor(projects).catch(() => undefined)
    if (needed === undefined) return undefined
    this.#note(needed)
    return replica.place >= needed ? replica : here.find(({ place }) => place >= needed)
  }

  async written(project: number | undefined): Promise<void> {
    const place = await this.#placeOfPrimary().catch(() => undefined)
    // Without the primary nothing was committed that anybody has an answer to.
    if (place === undefined) return
    this.#note(place)
    try {
      await this.#redis.zadd(PLACES, 'GT', place, project === undefined ? ALL : String(project))
    } catch {
      // The others cannot hear of it: it is to be everywhere before anybody is answered.
      const deadline = performance.now() + PATIENCE_MS
      const isBehind = (one: Followed) => one.place >= 0 && one.place < place
      while (this.all.some(isBehind) && performance.now() < deadline) await delay(LOOK_MS)
    }
  }

  failed(replica: Replica): void {
    for (const one of this.all) if (one === replica) one.place = -1
  }

  lags(): ReadonlyMap<string, number> {
    const now = performance.now()
    const lagOf = ({ place, caughtUpAt }: Followed) =>
      place >= this.#known ? 0 : (now - caughtUpAt) / 1000
    return new Map(this.all.map((replica) => [replica.name, lagOf(replica)]))
  }

  async close(): Promise<void> {
    this.#isClosed = true
    await Promise.all(this.all.map(({ database }) => database.close()))
  }

  #note(place: number): void {
    this.#known = Math.max(this.#known, place)
  }

  async #follow(replica: Followed): Promise<void> {
    if (this.#isClosed) return
    replica.place = await replayedPlace(replica.database).catch(() => -1)
    const now = performance.now()
    if (replica.place >= 0) replica.answeredAt = now
    if (replica.place >= this.#known) replica.caughtUpAt = now
    setTimeout(() => void this.#follow(replica), replica.place < 0 ? AWAY_MS : LOOK_MS).unref()
  }

  /** The place that has to be replayed; undefined where nobody knows. */
  async #neededFor(projects: readonly number[]): Promise<number | undefined> {
    const [start, ...own] = await this.#redis.zmscore(PLACES, ALL, ...projects.map(String))
    if (start === null || start === undefined) {
      await this.#redis.zadd(PLACES, 'GT', await this.#placeOfPrimary(), ALL)
      return undefined
    }
    return Math.max(Number(start), ...own.map(Number))
  }
}

/** Calls share one asking, which begins after all of them. */
function together<T>(ask: () => Promise<T>): () => Promise<T> {
  let running: Promise<unknown> = Promise.resolve()
  let next: Promise<T> | undefined
  return () => {
    next ??= running
      .catch(() => undefined)
      .then(() => {
        next = undefined
        const asked = ask()
        running = asked
        return asked
      })
    return next
  }
}

async function primaryPlace(primary: Database): Promise<number> {
  const [row] = await primary.query<{ place: number }>({
    name: 'primary-place',
    text: `select pg_wal_lsn_diff(pg_current_wal_insert_lsn(), '0/0')::float8 as place`,
    values: [],
    isUpkeep: true,
  })
  return row?.place ?? Number.POSITIVE_INFINITY
}

/** A server that takes writes is no replica, and has a log of its own. */
async function replayedPlace(database: Database): Promise<number> {
  const [row] = await database.query<{ place: number | null }>({
    name: 'replayed-place',
    text: `select case when pg_is_in_recovery() then
      pg_wal_lsn_diff(pg_last_wal_replay_lsn(), '0/0')::float8 end as place`,
    values: [],
    isUpkeep: true,
  })
  return row?.place ?? -1
}

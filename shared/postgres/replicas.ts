/**
 * Read replicas with read-your-writes: a committed write records a WAL position per Project in Redis before its caller
 * is answered, and reads go to a replica that has replayed it.
 */
import { setTimeout as delay } from 'node:timers/promises'
import { shareNextCall } from '../core/batching.ts'
import type { Logger } from '../core/log.ts'
import type { Redis } from '../redis/redis.ts'
import { type Database, openDatabase } from './database.ts'
import type { DatabaseConfig } from './pool.ts'

const PLACES = 'botica:written'
/** The member that applies to every Project. */
const ALL = 'all'
const LOOK_MS = 50
const AWAY_MS = 1000
/** Ignore stale replay positions: the replica may hang. */
const FRESH_MS = 500
const PATIENCE_MS = 5000
const CATCH_UP_MS = 1000

export interface Replica {
  readonly name: string
  readonly database: Database
}

export interface Replicas {
  readonly all: readonly Replica[]
  /** Returns a replica for reads of these Projects; undefined for the primary. */
  choose(projects: readonly number[]): Promise<Replica | undefined>
  /** Returns a replica with everything committed; undefined if none catches up within a second. Errors: the primary's. */
  caughtUp(): Promise<Replica | undefined>
  /** Resolves when no later read of the Project, or of any, is stale. Errors: the primary's; no guarantee then. */
  written(project: number | undefined): Promise<void>
  /** A read failed: the replica gets none until it answers again. */
  failed(replica: Replica): void
  /** Replication lag of each replica in seconds. */
  lags(): ReadonlyMap<string, number>
  close(): Promise<void>
}

interface Followed extends Replica {
  /** Bytes of WAL replayed; negative while unavailable. */
  place: number
  answeredAt: number
  /** Last time it had replayed all known writes. */
  caughtUpAt: number
}

/** Opens no connection. */
export function openReplicas(
  urls: readonly string[],
  primary: Database,
  {
    config,
    redis,
    log,
  }: { readonly config: DatabaseConfig; readonly redis: Redis; readonly log: Logger },
): Replicas {
  const all = urls.map((url) => openFollowed(url, config, log))
  const places = createPlaces(primary, redis)
  const following = followAll(all, () => places.known)
  let turn = 0
  const answering = () => {
    const now = performance.now()
    return all.filter((one) => one.place >= 0 && now - one.answeredAt < FRESH_MS)
  }
  return {
    all,
    async choose(projects) {
      const here = answering()
      if (here.length === 0) return undefined
      // The primary takes its share.
      turn = (turn + 1) % (here.length + 1)
      const replica = here[turn]
      if (replica === undefined) return undefined
      const needed = await places.neededFor(projects).catch(() => undefined)
      if (needed === undefined) return undefined
      return replica.place >= needed ? replica : here.find(({ place }) => place >= needed)
    },
    async caughtUp() {
      return await firstAt(await places.ofPrimary(), answering)
    },
    async written(project) {
      // Retry once: a connection may have ended, or a wait timed out.
      const place = await places.ofPrimary().catch(() => places.ofPrimary())
      try {
        await places.keep(project, place)
      } catch {
        // Other processes cannot learn of the write: every replica must have it before the caller is answered.
        await replayedBy(all, place)
      }
    },
    failed(replica) {
      for (const one of all) if (one === replica) one.place = -1
    },
    lags() {
      const now = performance.now()
      const lagSeconds = ({ place, caughtUpAt }: Followed) =>
        place >= places.known ? 0 : (now - caughtUpAt) / 1000
      return new Map(all.map((replica) => [replica.name, lagSeconds(replica)]))
    },
    async close() {
      following.stop()
      await Promise.all(all.map(({ database }) => database.close()))
    },
  }
}

/** Returns the first replica to replay up to `needed`; undefined if none does in time. */
async function firstAt(
  needed: number,
  answering: () => readonly Followed[],
): Promise<Followed | undefined> {
  const deadline = performance.now() + CATCH_UP_MS
  for (let here = answering(); here.length > 0; here = answering()) {
    const replica = here.find(({ place }) => place >= needed)
    if (replica !== undefined || performance.now() > deadline) return replica
    await delay(LOOK_MS)
  }
  return undefined
}

function openFollowed(url: string, config: DatabaseConfig, log: Logger): Followed {
  const name = new URL(url).host
  const settings = { ...config, databaseUrl: url, databaseDirectUrl: undefined }
  const database = openDatabase(settings, log.child({ replica: name }))
  return { name, database, place: -1, answeredAt: 0, caughtUpAt: performance.now() }
}

/** Polls the replay position of each replica until `stop`. */
function followAll(all: readonly Followed[], known: () => number): { stop(): void } {
  let isStopped = false
  const follow = async (replica: Followed): Promise<void> => {
    if (isStopped) return
    replica.place = await replayedPlace(replica.database).catch(() => -1)
    const now = performance.now()
    if (replica.place >= 0) replica.answeredAt = now
    if (replica.place >= known()) replica.caughtUpAt = now
    setTimeout(follow, replica.place < 0 ? AWAY_MS : LOOK_MS, replica).unref()
  }
  for (const replica of all) void follow(replica)
  return {
    stop() {
      isStopped = true
    },
  }
}

async function replayedBy(all: readonly Followed[], needed: number): Promise<void> {
  const deadline = performance.now() + PATIENCE_MS
  const isBehind = ({ place }: Followed) => place >= 0 && place < needed
  while (all.some(isBehind) && performance.now() < deadline) await delay(LOOK_MS)
}

interface Places {
  readonly known: number
  ofPrimary(): Promise<number>
  /** Returns the position required for reads of these Projects; undefined if unknown. Errors: those of Redis. */
  neededFor(projects: readonly number[]): Promise<number | undefined>
  /** Errors: those of Redis. */
  keep(project: number | undefined, place: number): Promise<void>
}

function createPlaces(primary: Database, redis: Redis): Places {
  const ofPrimary = shareNextCall(() => primaryPlace(primary))
  let known = 0
  return {
    get known() {
      return known
    },
    ofPrimary,
    async neededFor(projects) {
      const [start, ...own] = await redis.zmscore(PLACES, ALL, ...projects.map(String))
      if (start === null || start === undefined) {
        await redis.zadd(PLACES, 'GT', await ofPrimary(), ALL)
        return undefined
      }
      const needed = Math.max(Number(start), ...own.map(Number))
      known = Math.max(known, needed)
      return needed
    },
    async keep(project, place) {
      known = Math.max(known, place)
      await redis.zadd(PLACES, 'GT', place, project === undefined ? ALL : String(project))
    },
  }
}

/** Shares one call between callers; it starts after all of them. */
async function primaryPlace(primary: Database): Promise<number> {
  const [row] = await primary.query<{ place: number }>({
    name: 'primary-place',
    text: `select pg_wal_lsn_diff(pg_current_wal_insert_lsn(), '0/0')::float8 as place`,
    isMaintenance: true,
  })
  return row?.place ?? Number.POSITIVE_INFINITY
}

/** A writable server is not a replica and has its own WAL. */
async function replayedPlace(database: Database): Promise<number> {
  const [row] = await database.query<{ place: number | null }>({
    name: 'replayed-place',
    text: `select case when pg_is_in_recovery() then
      pg_wal_lsn_diff(pg_last_wal_replay_lsn(), '0/0')::float8 end as place`,
    isMaintenance: true,
  })
  return row?.place ?? -1
}

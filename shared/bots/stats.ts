/**
 * Bot statistics for project administrators: counted in workers and added periodically to a Redis hash per project, so
 * that a run costs no command. Totals outlive the workers.
 */

import { getOrInsert } from '../core/cache.ts'
import { BOT_QUEUES, type ExecuteJob, keys } from '../queue/jobs.ts'
import type { Queues } from '../queue/queue.ts'
import type { Redis } from '../redis/redis.ts'
import { PREFIX } from '../redis/script.ts'

/** Upper bounds in ms; the last bucket has none. */
const BUCKETS_MS = [5, 10, 25, 50, 100, 250, 500, 1000, 2500, 5000, 10_000, 30_000, 60_000]
/** Expiring entries checked for the oldest run. */
const OLDEST_OF = 50

export type Stats = ReturnType<typeof createStats>

interface Histogram {
  readonly count: number
  readonly sumMs: number
  /** Counts by upper bound in ms, not cumulative; `more` is above the last. */
  readonly buckets: Readonly<Record<string, number>>
}

interface Outcomes {
  readonly started: number
  readonly succeeded: number
  readonly failed: Readonly<Record<string, number>>
  readonly runTime: Histogram
}

interface BotStats extends Outcomes {
  readonly bot: { readonly reference: string }
  /** Events that later ones have replaced. */
  readonly replaced: number
  readonly queueWait: Histogram
  /** Waits for a key, a rate or a slot: count and total by reason. */
  readonly held: Readonly<Record<string, { readonly count: number; readonly sumMs: number }>>
  /** The same runs by label, `live` included; undefined for a Bot that has run under no other label. */
  readonly labels?: Readonly<Record<string, Outcomes>>
  /** The runs of the last 7 days by version: its name, or the `Binary/id` of code that was deployed without one. */
  readonly versions: Readonly<Record<string, Outcomes>>
}

interface Lane {
  readonly inFlight: number
  readonly oldestWaitingSeconds: number
}

/** Sorted set: projects by the time of their last runs, in epoch ms. */
const ACTIVE = `${PREFIX}:bot-stats-active`
const ACTIVE_MS = 10 * 60_000

const hashKey = (projectId: string) => `${PREFIX}:bot-stats:${projectId}`
/** A hash for each day, so that versions out of use are forgotten. */
const versionHash = (projectId: string, day: number) => `${PREFIX}:bot-versions:${projectId}:${day}`
const DAY_MS = 24 * 3_600_000
const DAYS = 7
const KEEP_MS = DAYS * DAY_MS

export function createStats() {
  const totals: Counter = new Map()
  const versions: Counter = new Map()

  return {
    /** `version` as in `versions` of the statistics; undefined if the code could not be loaded. */
    run(
      job: ExecuteJob,
      version: string | undefined,
      { outcome, queuedMs, ranMs }: EndedRun,
    ): void {
      const { projectId, botId, label } = job
      // Runs of live code are the others.
      for (const owner of label === undefined ? [botId] : [botId, `${botId}@${label}`]) {
        count(totals, projectId, `${owner} outcome ${outcome}`, 1)
        countTime(totals, projectId, `${owner} wait`, queuedMs)
        countTime(totals, projectId, `${owner} run`, ranMs)
      }
      if (version === undefined) return
      const owner = `${botId}@${encodeURIComponent(version)}`
      count(versions, projectId, `${owner} outcome ${outcome}`, 1)
      countTime(versions, projectId, `${owner} run`, ranMs)
    },
    held({ projectId, botId }: ExecuteJob, reason: string, ms: number): void {
      count(totals, projectId, `${botId} held ${reason}`, 1)
      count(totals, projectId, `${botId} heldMs ${reason}`, Math.round(ms))
    },
    replaced({ projectId, botId }: ExecuteJob, events: number): void {
      count(totals, projectId, `${botId} replaced events`, events)
    },
    /** Adds new counts; counts that fail to be added are kept. */
    async flush(redis: Redis): Promise<void> {
      const now = Date.now()
      await add(redis, totals, hashKey, (transaction, projectId) =>
        transaction.zadd(ACTIVE, now, projectId).zremrangebyscore(ACTIVE, 0, now - ACTIVE_MS),
      )
      await add(redis, versions, (projectId) => versionHash(projectId, toDay(now)))
    },
  }
}

interface EndedRun {
  readonly outcome: string
  readonly queuedMs: number
  readonly ranMs: number
}

/** Counts by project and field. */
type Counter = Map<string, Map<string, number>>

function count(counter: Counter, projectId: string, field: string, by: number): void {
  const fields = getOrInsert(counter, projectId, () => new Map<string, number>())
  fields.set(field, (fields.get(field) ?? 0) + by)
}

function countTime(counter: Counter, projectId: string, what: string, ms: number): void {
  const bucket = BUCKETS_MS.find((limit) => ms <= limit) ?? 'more'
  count(counter, projectId, `${what} ${bucket}`, 1)
  count(counter, projectId, `${what} sum`, Math.max(0, Math.round(ms)))
}

function toDay(time: number): number {
  return Math.floor(time / DAY_MS)
}

/** Empties the counter into the hashes of its projects; counts that fail to be added are kept. */
async function add(
  redis: Redis,
  counter: Counter,
  hash: (projectId: string) => string,
  also: (transaction: ReturnType<Redis['multi']>, projectId: string) => unknown = () => {},
): Promise<void> {
  for (const [projectId, fields] of [...counter]) {
    counter.delete(projectId)
    try {
      const transaction = redis.multi()
      for (const [field, by] of fields) transaction.hincrby(hash(projectId), field, by)
      transaction.pexpire(hash(projectId), KEEP_MS)
      also(transaction, projectId)
      await transaction.exec()
    } catch (error) {
      for (const [field, by] of fields) count(counter, projectId, field, by)
      throw error
    }
  }
}

/** Counts the projects with runs in the last 10 minutes. */
export async function countActiveProjects(redis: Redis): Promise<number> {
  return await redis.zcount(ACTIVE, Date.now() - ACTIVE_MS, '+inf')
}

/** Reads the last 7 days with runs; busiest bot first. */
export async function readBotStats(redis: Redis, projectId: string): Promise<readonly BotStats[]> {
  const today = toDay(Date.now())
  const days = Array.from({ length: DAYS }, (_, n) => versionHash(projectId, today - n))
  const [totals = {}, ...ofDays] = await Promise.all(
    [hashKey(projectId), ...days].map((hash) => redis.hgetall(hash)),
  )
  const bots = readOwners([totals])
  const versions = readOwners(ofDays)
  const stats = [...bots].map(([botId, labels]): BotStats => {
    const { '': all = [], ...labelled } = Object.fromEntries(labels)
    const heldMs = pickCounts(all, 'heldMs')
    const held = Object.entries(pickCounts(all, 'held')).map(
      ([reason, count]) => [reason, { count, sumMs: heldMs[reason] ?? 0 }] as const,
    )
    const byLabel = Object.entries(labelled).map(([name, counts]) => [name, outcomes(counts)])
    const others = Object.values(labelled).flat()
    const live = outcomes([...all, ...others.map(([kind, n, count]) => [kind, n, -count] as const)])
    return {
      bot: { reference: `Bot/${botId}` },
      ...outcomes(all),
      replaced: pickCounts(all, 'replaced').events ?? 0,
      queueWait: histogram(pickCounts(all, 'wait')),
      held: Object.fromEntries(held),
      ...(byLabel.length === 0 ? {} : { labels: { live, ...Object.fromEntries(byLabel) } }),
      versions: Object.fromEntries(
        [...(versions.get(botId) ?? [])].map(([version, counts]) => [version, outcomes(counts)]),
      ),
    }
  })
  return stats.sort((a, b) => b.started - a.started)
}

/** Returns the counts by bot and by what follows `@` in the fields: a label or a version; empty for all runs. */
function readOwners(hashes: readonly Readonly<Record<string, string>>[]) {
  const bots = new Map<string, Map<string, Counts>>()
  for (const [field, value] of hashes.flatMap((hash) => Object.entries(hash))) {
    const [owner = '', what = '', name = ''] = field.split(' ')
    const [botId = '', encoded = ''] = owner.split('@')
    const part = decodeURIComponent(encoded)
    const parts = getOrInsert(bots, botId, () => new Map<string, Counts>())
    parts.set(part, [...(parts.get(part) ?? []), [what, name, Number(value)]])
  }
  return bots
}

interface Observed {
  readonly redis: Redis
  readonly queues: Pick<Queues, 'oldestOf'>
}

/** Returns the project's runs per queue, and the wait of the oldest. */
export async function readLanes(
  { redis, queues }: Observed,
  projectId: string,
): Promise<Readonly<Record<string, Lane>>> {
  const lanes = await Promise.all(
    BOT_QUEUES.map(async (queue) => {
      const flight = keys.flight(queue, projectId)
      const inFlight = await redis.zcount(flight, Date.now(), '+inf')
      const ids = await redis.zrangebyscore(flight, Date.now(), '+inf', 'LIMIT', 0, OLDEST_OF)
      const oldest = await queues.oldestOf(queue, ids)
      const oldestMs = oldest === undefined ? 0 : Date.now() - oldest
      return [queue, { inFlight, oldestWaitingSeconds: Math.max(0, oldestMs) / 1000 }] as const
    }),
  )
  return Object.fromEntries(lanes)
}

export async function readAllLanes(
  observed: Observed,
): Promise<readonly (Lane & { readonly queue: string; readonly project: string })[]> {
  const projects = new Set<string>()
  let cursor = '0'
  do {
    const [next, found] = await observed.redis.scan(
      cursor,
      'MATCH',
      keys.flight('*', '*'),
      'COUNT',
      1000,
    )
    cursor = next
    for (const key of found) projects.add(key.slice(key.lastIndexOf(':') + 1))
  } while (cursor !== '0')
  const lanes = await Promise.all(
    [...projects].sort().map(async (project) => {
      const queues = Object.entries(await readLanes(observed, project))
      return queues.map(([queue, lane]) => ({ queue, project, ...lane }))
    }),
  )
  return lanes.flat().filter(({ inFlight }) => inFlight > 0)
}

type Counts = readonly (readonly [kind: string, name: string, count: number])[]

function pickCounts(counts: Counts, kind: string): Record<string, number> {
  const found: Record<string, number> = {}
  for (const [what, name, count] of counts) {
    if (what === kind) found[name] = (found[name] ?? 0) + count
  }
  return Object.fromEntries(Object.entries(found).filter(([, count]) => count > 0))
}

function outcomes(counts: Counts): Outcomes {
  const { ok: succeeded = 0, ...failed } = pickCounts(counts, 'outcome')
  const runTime = histogram(pickCounts(counts, 'run'))
  return { started: succeeded + sumCounts(failed), succeeded, failed, runTime }
}

function histogram({ sum = 0, ...buckets }: Record<string, number>): Histogram {
  return { count: sumCounts(buckets), sumMs: sum, buckets }
}

function sumCounts(counts: Readonly<Record<string, number>>): number {
  return Object.values(counts).reduce((total, count) => total + count, 0)
}

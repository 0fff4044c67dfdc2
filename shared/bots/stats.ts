/**
 * Bot statistics for project administrators: counted in workers and added periodically to a Redis hash per project, so
 * that a run costs no command. Totals outlive the workers.
 */

import { BOT_QUEUES, type ExecuteJob, keys } from '../queue/jobs.ts'
import type { Observation } from '../queue/observation.ts'
import type { Redis } from '../redis/redis.ts'
import { PREFIX } from '../redis/script.ts'

/** Upper bounds in ms; the last bucket has none. */
const BUCKETS_MS = [5, 10, 25, 50, 100, 250, 500, 1000, 2500, 5000, 10_000, 30_000, 60_000]
const KEEP_MS = 7 * 24 * 3_600_000
/** Expiring entries checked for the oldest run. */
const OLDEST_OF = 50

export interface Stats {
  run(job: ExecuteJob, outcome: string, queuedMs: number, ranMs: number): void
  held(job: ExecuteJob, reason: string, ms: number): void
  /** Adds new counts; counts that fail to be added are kept. */
  flush(redis: Redis): Promise<void>
}

export interface Histogram {
  readonly count: number
  readonly sumMs: number
  /** Counts by upper bound in ms, not cumulative; `more` is above the last. */
  readonly buckets: Readonly<Record<string, number>>
}

interface BotStats {
  readonly bot: { readonly reference: string }
  readonly started: number
  readonly succeeded: number
  readonly failed: Readonly<Record<string, number>>
  readonly queueWait: Histogram
  /** Waits for a slot: count and total by reason. */
  readonly held: Readonly<Record<string, { readonly count: number; readonly sumMs: number }>>
  readonly runTime: Histogram
}

export interface Lane {
  readonly inFlight: number
  readonly oldestWaitingSeconds: number
}

const hashOf = (projectId: string) => `${PREFIX}:bot-stats:${projectId}`

export function createStats(): Stats {
  let counted = new Map<string, Map<string, number>>()

  function count(projectId: string, field: string, by: number): void {
    let fields = counted.get(projectId)
    if (fields === undefined) {
      fields = new Map()
      counted.set(projectId, fields)
    }
    fields.set(field, (fields.get(field) ?? 0) + by)
  }

  return {
    run({ projectId, botId }, outcome, queuedMs, ranMs) {
      count(projectId, `${botId} outcome ${outcome}`, 1)
      for (const [what, ms] of [
        ['wait', queuedMs],
        ['run', ranMs],
      ] as const) {
        const bucket = BUCKETS_MS.find((limit) => ms <= limit) ?? 'more'
        count(projectId, `${botId} ${what} ${bucket}`, 1)
        count(projectId, `${botId} ${what} sum`, Math.max(0, Math.round(ms)))
      }
    },
    held({ projectId, botId }, reason, ms) {
      count(projectId, `${botId} held ${reason}`, 1)
      count(projectId, `${botId} heldMs ${reason}`, Math.round(ms))
    },
    async flush(redis) {
      const flushed = counted
      counted = new Map()
      for (const [projectId, fields] of flushed) {
        try {
          const hash = hashOf(projectId)
          const transaction = redis.multi()
          for (const [field, by] of fields) transaction.hincrby(hash, field, by)
          await transaction.pexpire(hash, KEEP_MS).exec()
        } catch (error) {
          for (const [field, by] of fields) count(projectId, field, by)
          throw error
        }
      }
    },
  }
}

/** Reads the last 7 days with runs; busiest bot first. */
export async function readBotStats(redis: Redis, projectId: string): Promise<readonly BotStats[]> {
  const bots = new Map<string, [string, string, number][]>()
  for (const [field, value] of Object.entries(await redis.hgetall(hashOf(projectId)))) {
    const [botId = '', what = '', name = ''] = field.split(' ')
    bots.set(botId, [...(bots.get(botId) ?? []), [what, name, Number(value)]])
  }
  const stats = [...bots].map(([botId, counts]): BotStats => {
    const of = (kind: string) =>
      Object.fromEntries(counts.flatMap(([what, name, n]) => (what === kind ? [[name, n]] : [])))
    const { ok: succeeded = 0, ...failed } = of('outcome')
    const heldMs = of('heldMs')
    const held = Object.entries(of('held')).map(
      ([reason, count]) => [reason, { count, sumMs: heldMs[reason] ?? 0 }] as const,
    )
    return {
      bot: { reference: `Bot/${botId}` },
      started: succeeded + sumOf(failed),
      succeeded,
      failed,
      queueWait: histogram(of('wait')),
      held: Object.fromEntries(held),
      runTime: histogram(of('run')),
    }
  })
  return stats.sort((a, b) => b.started - a.started)
}

interface Observed {
  readonly redis: Redis
  readonly queues: Pick<Observation, 'oldestOf'>
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

function histogram({ sum = 0, ...buckets }: Record<string, number>): Histogram {
  return { count: sumOf(buckets), sumMs: sum, buckets }
}

function sumOf(counts: Readonly<Record<string, number>>): number {
  return Object.values(counts).reduce((total, count) => total + count, 0)
}

/** Reads the contents of the queues, and the workers that are alive. */

import type { Redis } from '../redis/redis.ts'
import { BOT_QUEUES, type BotQueue } from './jobs.ts'
import type { Parts } from './parts.ts'
import { ALIVE, keys, runScript } from './scripts.ts'

/** So many jobs at the head of a queue are looked at for the oldest. */
const OLDEST_OF = 100

export interface Observation {
  /** Ids of the workers that run bots for callers who wait. */
  workers(): Promise<readonly string[]>
  /** Ids of those whose clock is off by more than two seconds. */
  workersOffTime(): Promise<readonly string[]>
  /** Jobs by state of every queue. */
  depths(): Promise<Readonly<Record<string, Readonly<Record<string, number>>>>>
  /** Since when the longest waiting of these runs waits, epoch ms. */
  oldestOf(queue: BotQueue, runIds: readonly string[]): Promise<number | undefined>
  /** Since when the longest waiting job of each queue that has one waits, epoch ms. */
  waitingSince(): Promise<Readonly<Record<string, number>>>
  /** Returns the metrics that each worker published last, as JSON text. */
  workerMetrics(): Promise<readonly string[]>
  ping(): Promise<number>
}

export function observation({ redis, bots, all }: Parts): Observation {
  return {
    workers: () => alive(redis, 'bots-sync'),
    async workersOffTime() {
      const ids = await alive(redis, 'bots-sync')
      const clocks = ids.length === 0 ? [] : await redis.mget(ids.map(keys.clock))
      return ids.filter((_, i) => clocks[i] !== null)
    },
    async depths() {
      const counts = await Promise.all(
        all.map(async (queue) => [queue.name, await queue.getJobCounts()] as const),
      )
      return Object.fromEntries(counts)
    },
    async oldestOf(name, runIds) {
      const jobs = await Promise.all(runIds.map((runId) => bots.get(name)?.getJob(runId)))
      const waiting = jobs.flatMap((job) => (job && !job.processedOn ? [job.timestamp] : []))
      return waiting.length === 0 ? undefined : Math.min(...waiting)
    },
    async waitingSince() {
      const oldest = await Promise.all(
        all.map(async (queue) => {
          // Lanes make the order in the queue another one than that of arrival.
          const found = await Promise.all(
            (['waiting', 'prioritized'] as const).map((state) =>
              queue.getJobs([state], 0, OLDEST_OF - 1, true),
            ),
          )
          // A job that is taken meanwhile is no longer there.
          const times = found.flat().flatMap((job) => job?.timestamp ?? [])
          return times.length === 0 ? [] : [[queue.name, Math.min(...times)] as const]
        }),
      )
      return Object.fromEntries(oldest.flat())
    },
    async workerMetrics() {
      const ids = new Set((await Promise.all(BOT_QUEUES.map((name) => alive(redis, name)))).flat())
      if (ids.size === 0) return []
      const texts = await redis.mget([...ids].map(keys.metrics))
      return texts.filter((text) => text !== null)
    },
    async ping() {
      const started = performance.now()
      await redis.ping()
      return performance.now() - started
    },
  }
}

async function alive(redis: Redis, queue: BotQueue): Promise<readonly string[]> {
  const ids = await runScript(redis, ALIVE, [keys.workers(queue)], [])
  return Array.isArray(ids) ? ids.map(String) : []
}

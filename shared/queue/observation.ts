/** Reads the contents of the queues. */
import type { BotQueue } from './jobs.ts'
import type { Parts } from './parts.ts'

/** So many jobs at the head of a queue are looked at for the oldest. */
const OLDEST_OF = 100

export interface Observation {
  /** Jobs by state of every queue. */
  depths(): Promise<Readonly<Record<string, Readonly<Record<string, number>>>>>
  /** Since when the longest waiting of these runs waits, epoch ms. */
  oldestOf(queue: BotQueue, runIds: readonly string[]): Promise<number | undefined>
  /** Since when the longest waiting job of each queue that has one waits, epoch ms. */
  waitingSince(): Promise<Readonly<Record<string, number>>>
  ping(): Promise<number>
}

export function observation({ redis, bots, all }: Parts): Observation {
  return {
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
    async ping() {
      const started = performance.now()
      await redis.ping()
      return performance.now() - started
    },
  }
}

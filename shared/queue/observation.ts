/** Queue depths and waiting times. */
import type { BotQueue } from './jobs.ts'
import type { Parts } from './parts.ts'

const OLDEST_OF = 100

export interface Observation {
  /** Number of jobs by queue and state. */
  depths(): Promise<Readonly<Record<string, Readonly<Record<string, number>>>>>
  /** Enqueue time of the oldest waiting run among these, epoch ms. */
  oldestOf(queue: BotQueue, runIds: readonly string[]): Promise<number | undefined>
  /** Enqueue time of the oldest waiting job by queue, epoch ms. */
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
          // Priorities change the order of arrival.
          const found = await Promise.all(
            (['waiting', 'prioritized'] as const).map((state) =>
              queue.getJobs([state], 0, OLDEST_OF - 1, true),
            ),
          )
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

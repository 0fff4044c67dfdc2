/** The end of a run: the reply, and a result that nobody waits for into its AsyncJob or the occurrence of its schedule. */
import { settleAsyncJob } from '../../shared/bots/async-jobs.ts'
import { RunLost } from '../../shared/errors.ts'
import type { ExecuteJob, ExecuteReply } from '../../shared/platform/queue/jobs.ts'
import { interrupted } from '../../shared/platform/queue/replies.ts'
import type { Runs } from '../../shared/platform/queue/runs.ts'
import type { Services } from '../../shared/services.ts'
import { settleOccurrence } from './schedules/run.ts'

const ATTEMPTS = 5
const PAUSE_MS = 500

export interface Settling {
  /** Resolves when the job may be acknowledged. */
  finish(job: ExecuteJob, reply: ExecuteReply, ranMs: number): Promise<void>
  /** Waits for results that are on their way. */
  close(): Promise<void>
}

export function createSettling(services: Services, runs: Runs): Settling {
  const settling = new Set<Promise<void>>()

  async function settle(job: ExecuteJob, reply: ExecuteReply, isLate: Promise<boolean>) {
    if (!(await isLate)) return
    await settleRun(services, job, reply.status === 'unavailable' ? interrupted(job.runId) : reply)
  }

  return {
    async finish(job, reply, ranMs) {
      const { isLate, isNearEnd } = await runs.finish(job, reply, ranMs)
      const settled = settle(job, reply, isLate)
      if (isNearEnd) return await settled
      // The caller waits, so there will be nothing to store: the job is acknowledged along with the reply.
      const done = settled
        .catch((cause: unknown) => {
          services.log.error(
            { runId: job.runId, cause },
            'The end of a bot run could not be reported',
          )
        })
        .finally(() => settling.delete(done))
      settling.add(done)
    },
    close: async () => void (await Promise.all(settling)),
  }
}

/** Tries for some seconds. Errors: 503 when PostgreSQL stays away. */
async function settleRun(services: Services, job: ExecuteJob, reply: ExecuteReply): Promise<void> {
  for (let attempt = 1; ; attempt++) {
    try {
      if (job.scheduled === undefined) await settleAsyncJob(services, job, reply)
      else await settleOccurrence(services, job, job.scheduled.attempt, reply)
      return
    } catch (error) {
      // It is for another worker to end, or has been ended.
      if (error instanceof RunLost) return
      if (attempt === ATTEMPTS) throw error
      await new Promise((resolve) => setTimeout(resolve, attempt * PAUSE_MS))
    }
  }
}

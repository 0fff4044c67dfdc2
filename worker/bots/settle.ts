/** The result of a run that nobody waits for, into its AsyncJob or the occurrence of its schedule. */
import { settleAsyncJob } from '../../shared/api/async-jobs.ts'
import type { ExecuteJob, ExecuteReply } from '../../shared/queue-jobs.ts'
import type { Services } from '../../shared/services.ts'
import { settleOccurrence } from '../schedules/run.ts'

const ATTEMPTS = 5
const PAUSE_MS = 500

/** Tries for some seconds. Errors: 503 when PostgreSQL stays away. */
export async function settleRun(
  services: Services,
  job: ExecuteJob,
  reply: ExecuteReply,
): Promise<void> {
  for (let attempt = 1; ; attempt++) {
    try {
      if (job.scheduled === undefined) await settleAsyncJob(services, job, reply)
      else await settleOccurrence(services, job.scheduled.attempt, reply)
      return
    } catch (error) {
      if (attempt === ATTEMPTS) throw error
      await new Promise((resolve) => setTimeout(resolve, attempt * PAUSE_MS))
    }
  }
}

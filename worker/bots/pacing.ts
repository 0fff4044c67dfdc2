/** Waits of a run for its key and for the rate of its bot. */
import type { ExecuteJob } from '../../shared/queue/jobs.ts'
import type { Runs } from '../../shared/queue/runs.ts'
import type { Services } from '../../shared/request/services.ts'
import { hasDelivery } from '../../shared/subscriptions/deliveries.ts'
import type { Hold } from './slots.ts'

/** Until a run looks again after a failure of Redis. */
const AWAY_MS = 1000

/** Returns ms until the run may look again. A run that is no longer wanted does not wait: its end makes room. */
export async function awaitStart(
  { queues, database, log }: Services,
  runs: Runs,
  job: ExecuteJob,
): Promise<number> {
  if (job.turn === undefined && job.rate === undefined) return 0
  if (runs.wasCancelled(job.runId) || runs.presence.now() > job.deadline) return 0
  try {
    return await queues.lines.start(job, (id) => hasDelivery(database, id))
  } catch (cause) {
    log.warn({ runId: job.runId, cause }, 'A run cannot look whether it may start')
    return AWAY_MS
  }
}

/** After a failure the next run of the key finds that this one has ended. */
export async function leaveLines({ queues, log }: Services, job: ExecuteJob): Promise<void> {
  await queues.lines.leave(job).catch((cause: unknown) => {
    log.warn({ runId: job.runId, cause }, 'The turn of a run could not be ended')
  })
}

/** The wait of a first attempt before it got a slot. */
export function paceHold({ waitsFor, failures, added }: ExecuteJob): Hold | undefined {
  if (waitsFor === undefined || failures !== undefined) return undefined
  return { reason: waitsFor, ms: Date.now() - added }
}

/** A run that was asked for later shows `active` in its AsyncJob once it has gone on for a moment. */

import { JobFinished, startAsyncJob } from '../../shared/bots/async-jobs.ts'
import { HttpError } from '../../shared/errors.ts'
import type { ExecuteJob } from '../../shared/platform/queue/jobs.ts'
import type { Services } from '../../shared/services.ts'

/** Clients look once a second; of a shorter run nobody sees that it was active, and it costs nothing. */
const MOMENT_MS = 250

/** Answers what to do at the end of the run: nothing is written any more once that has resolved. */
export function markActive(services: Services, job: ExecuteJob): (() => Promise<void>) | undefined {
  if (!job.asynchronous || job.scheduled !== undefined) return undefined
  let marked: Promise<void> | undefined
  const timer = setTimeout(() => {
    marked = mark(services, job).catch((cause: unknown) => {
      services.log.warn({ runId: job.runId, cause }, 'The start of a bot run could not be reported')
    })
  }, MOMENT_MS)
  return async () => {
    clearTimeout(timer)
    await marked
  }
}

async function mark(services: Services, job: ExecuteJob): Promise<void> {
  const project = await services.principals.project(job.projectId)
  if (project === undefined) return
  try {
    await startAsyncJob(services, project, job.requester, job.runId)
  } catch (error) {
    // Active from an attempt before, cancelled or gone.
    const isGone = error instanceof HttpError && error.status < 500
    if (!isGone && !(error instanceof JobFinished)) throw error
  }
}

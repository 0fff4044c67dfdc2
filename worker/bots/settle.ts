/** Settles the end of a run: the reply, and a stored result in its AsyncJob or occurrence. */
import { JobFinished, settleAsyncJob, startAsyncJob } from '../../shared/bots/async-jobs.ts'
import { HttpError, RunLeaseLost } from '../../shared/core/errors.ts'
import type { ExecuteJob, ExecuteReply } from '../../shared/queue/jobs.ts'
import { interrupted } from '../../shared/queue/replies.ts'
import type { RunEnd, Runs } from '../../shared/queue/runs.ts'
import type { Services } from '../../shared/request/services.ts'
import { settleOccurrence } from './run-schedules.ts'

const ATTEMPTS = 5
const PAUSE_MS = 500

export interface Settling {
  finish(job: ExecuteJob, reply: ExecuteReply, end: RunEnd): Promise<void>
  close(): Promise<void>
}

export function createSettling(services: Services, runs: Runs): Settling {
  const settling = new Set<Promise<void>>()

  async function settle(job: ExecuteJob, reply: ExecuteReply, isLate: Promise<boolean>) {
    if (!(await isLate)) return
    await settleRun(services, job, reply.status === 'unavailable' ? interrupted(job.runId) : reply)
  }

  return {
    async finish(job, reply, end) {
      const { isLate, isNearEnd } = await runs.finish(job, reply, end)
      const settled = settle(job, reply, isLate)
      if (isNearEnd) return await settled
      // The caller waits, so nothing is stored: the job is acknowledged along with the reply.
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

/** Retries for some seconds. Errors: 503 when PostgreSQL stays unavailable. */
async function settleRun(services: Services, job: ExecuteJob, reply: ExecuteReply): Promise<void> {
  for (let attempt = 1; ; attempt++) {
    try {
      const { scheduled, lease } = job
      if (scheduled === undefined) await settleAsyncJob(services, job, reply)
      else if (lease !== undefined)
        await settleOccurrence(services, lease, scheduled.attempt, reply)
      return
    } catch (error) {
      if (error instanceof RunLeaseLost) return
      if (attempt === ATTEMPTS) throw error
      await new Promise((resolve) => setTimeout(resolve, attempt * PAUSE_MS))
    }
  }
}

// `active` in the AsyncJob of an asynchronous run

/** Clients poll once a second, so shorter runs need no `active` status. */
const MOMENT_MS = 250

/** Returns a function to call at the end of the run; nothing is written once it has resolved. */
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
    // Already active, cancelled or gone.
    const isGone = error instanceof HttpError && error.status < 500
    if (!isGone && !(error instanceof JobFinished)) throw error
  }
}

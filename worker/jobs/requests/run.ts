/**
 * Runs asynchronous requests. A request starts once: after a worker crash it may have had an effect, so it is ended;
 * one that was only waiting is queued again.
 */

import { handle } from '../../../shared/api/handle.ts'
import { finishAsyncJob, JobFinished } from '../../../shared/bots/async-jobs.ts'
import { timings } from '../../../shared/core/config/waits.ts'
import { conflict, HttpError, issue, outcome } from '../../../shared/core/errors.ts'
import { runRequest } from '../../../shared/jobs/async-requests.ts'
import { createRenewal, startLoop, withLease } from '../../../shared/jobs/loop.ts'
import type { Runs } from '../../../shared/queue/runs.ts'
import type { Services } from '../../../shared/request/services.ts'
import { JOBS, jobLease, jobRunLease, removeJob } from '../../../shared/store/rows/upkeep-jobs.ts'
import {
  type LeasedRequest,
  leaseLostRequest,
  leaseRequest,
  waitingRequests,
} from '../../../shared/store/write/async-requests.ts'

/** Younger requests may be on their way into the queue. */
const WAITING_MS = 10_000
const SWEPT = 100

export interface Requests {
  process(id: string): Promise<void>
  stop(): Promise<void>
}

export function startRequests(services: Services, runs: Runs): Requests {
  const { database, log } = services
  const running = new Map<string, AbortController>()
  runs.onCancel((id) => running.get(id)?.abort(conflict('The job was cancelled')))
  const sweeping = startLoop(
    { log, name: 'Upkeep of accepted requests', everyMs: timings.sweepMs, level: 'debug' },
    () => sweep(services),
  )
  return {
    async process(id) {
      const leased = await leaseRequest(database, id)
      if (leased === undefined) return
      const controller = new AbortController()
      running.set(id, controller)
      try {
        const renewal = createRenewal(services, JOBS, jobLease(leased))
        await withLease(renewal, controller.signal, (signal) =>
          runRequest(services, leased, signal, handle),
        )
      } finally {
        running.delete(id)
      }
    },
    stop: sweeping.stop,
  }
}

async function sweep(services: Services): Promise<boolean> {
  const { database, queues, log } = services
  const lost = await leaseLostRequest(database)
  if (lost !== undefined) {
    await end(services, lost)
    log.warn({ jobId: lost.id }, 'An accepted request was lost and is ended')
  }
  for (const id of await waitingRequests(database, WAITING_MS, SWEPT)) {
    if (!(await queues.hasRequest(id))) await queues.addRequest(id)
  }
  return lost !== undefined
}

async function end(services: Services, lost: LeasedRequest): Promise<void> {
  const { id, request } = lost
  const { projectId, profile: author } = request
  const text = 'The request was interrupted; a batch may be done in part'
  const resource = outcome(undefined, issue('error', 'exception', text))
  const parameter = [{ name: 'outcome', resource }]
  const project = await services.principals.project(projectId)
  try {
    if (project !== undefined) {
      const end = { status: 'error' as const, parameter, lease: jobRunLease(lost) }
      await finishAsyncJob(services, project, { author, runId: id, end })
    }
  } catch (error) {
    const isGone = error instanceof HttpError && error.status < 500
    if (!isGone && !(error instanceof JobFinished)) throw error
  }
  await removeJob(services.database, lost)
}

/**
 * Requests that were accepted to be answered later. A request is started once: one whose worker is lost
 * may have changed something, so it is ended and not run again; one that only waits is queued again.
 */

import { handle } from '../../../shared/api/handle.ts'
import { finishAsyncJob, JobFinished } from '../../../shared/bots/async-jobs.ts'
import { waits } from '../../../shared/config/waits.ts'
import { conflict, HttpError, issue, outcome } from '../../../shared/errors.ts'
import { runRequest } from '../../../shared/jobs/async-requests.ts'
import type { Runs } from '../../../shared/platform/queue/runs.ts'
import type { Services } from '../../../shared/services.ts'
import {
  type LostRequest,
  quietRequests,
  removeRequest,
  touchRequest,
} from '../../../shared/store/write/async-requests.ts'
import { startLoop, whileLeased } from '../../loop.ts'

const TOUCH_MS = 10_000
/** Three missed touches and more: the worker counts as gone. */
const ACTIVE_MS = 45_000
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
    { log, name: 'Upkeep of accepted requests', everyMs: waits.sweepMs, level: 'debug' },
    () => sweep(services),
  )
  return {
    async process(id) {
      const controller = new AbortController()
      running.set(id, controller)
      const renew = async () => {
        await touchRequest(database, id)
        return true
      }
      try {
        await whileLeased({ log, everyMs: TOUCH_MS, renew }, undefined, () =>
          runRequest(services, id, controller.signal, handle),
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
  for (const lost of await quietRequests(database, WAITING_MS, ACTIVE_MS, SWEPT)) {
    if (lost.state === 'active') {
      await end(services, lost)
      log.warn({ jobId: lost.id }, 'An accepted request was lost and is ended')
    } else if (!(await queues.hasRequest(lost.id))) {
      await queues.addRequest(lost.id)
    }
  }
  return false
}

async function end(services: Services, { id, projectId, profile }: LostRequest): Promise<void> {
  const text = 'The request was interrupted; a batch may be done in part'
  const resource = outcome(undefined, issue('error', 'exception', text))
  const parameter = [{ name: 'outcome', resource }]
  const project = await services.principals.project(projectId)
  try {
    if (project !== undefined) {
      const author = profile ?? undefined
      await finishAsyncJob(services, project, {
        author,
        runId: id,
        end: { status: 'error', parameter },
      })
    }
  } catch (error) {
    const isGone = error instanceof HttpError && error.status < 500
    if (!isGone && !(error instanceof JobFinished)) throw error
  }
  await removeRequest(services.database, id)
}

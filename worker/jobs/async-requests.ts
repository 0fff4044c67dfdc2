/** Runs asynchronous requests. A request starts once: after a worker crash it may have had an effect, so it is ended. */

import { handle } from '../../shared/api/handle.ts'
import { timings } from '../../shared/core/config/waits.ts'
import { conflict } from '../../shared/core/errors.ts'
import { endLostRequest, runRequest } from '../../shared/jobs/async-requests.ts'
import { createRenewal, type Loop, startLoop, withLease } from '../../shared/jobs/loop.ts'
import type { Runs } from '../../shared/queue/runs.ts'
import type { Services } from '../../shared/request/services.ts'
import { JOBS, jobLease } from '../../shared/store/rows/upkeep-jobs.ts'
import { leaseLostRequest, leaseRequest } from '../../shared/store/write/requests.ts'

const AT_ONCE = 2
const LOOK_MS = timings.sweepMs / 5

/** `stop` waits for running requests. */
export function startRequests(services: Services, runs: Runs): Pick<Loop, 'wake' | 'stop'> {
  const { database, log } = services
  const running = new Map<string, AbortController>()
  runs.onCancel((id) => running.get(id)?.abort(conflict('The job was cancelled')))
  return startLoop(
    { log, name: 'Asynchronous requests', everyMs: LOOK_MS, lanes: AT_ONCE, level: 'error' },
    async () => {
      const leased = await leaseRequest(database)
      if (leased === undefined) return endLost(services)
      const controller = new AbortController()
      running.set(leased.id, controller)
      try {
        const renewal = createRenewal(services, JOBS, jobLease(leased))
        await withLease(renewal, controller.signal, (signal) =>
          runRequest(services, leased, signal, handle),
        )
      } finally {
        running.delete(leased.id)
      }
      return true
    },
  )
}

/** Ends a request that a crashed worker had begun. False if there is none. */
async function endLost(services: Services): Promise<boolean> {
  const lost = await leaseLostRequest(services.database)
  if (lost === undefined) return false
  await endLostRequest(services, lost)
  services.log.warn({ jobId: lost.id }, 'An accepted request was lost and is ended')
  return true
}

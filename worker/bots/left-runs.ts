/**
 * Upkeep of accepted runs. Redis may lose recent writes or all data: runs that PostgreSQL has as accepted, but neither
 * a worker nor Redis has, are queued again, or ended if they may have had an effect.
 */
import { systemPrincipal } from '../../shared/access/principal.ts'
import {
  isOpenJob,
  type PendingRun,
  pendingRuns,
  removePendingRun,
  settleAsyncJob,
} from '../../shared/bots/async-jobs.ts'
import { timings } from '../../shared/core/config/waits.ts'
import { ignoreClientError } from '../../shared/core/errors.ts'
import type { Resource } from '../../shared/fhir/resource.ts'
import { type Loop, startLoop } from '../../shared/jobs/loop.ts'
import type { ExecuteJob } from '../../shared/queue/jobs.ts'
import { interrupted } from '../../shared/queue/replies.ts'
import type { Services } from '../../shared/request/services.ts'
import { platformMeta } from '../../shared/store/rows/version.ts'

const PAGE = 200
const BEFORE_ALL = '00000000-0000-0000-0000-000000000000'

/** Runs until `stop`. Workers may run it in parallel: adding a job twice is harmless. */
export function startSweep(services: Services): Loop {
  const { log } = services
  return startLoop({ log, name: 'Upkeep of accepted runs', everyMs: timings.sweepMs }, (signal) =>
    sweep(services, signal),
  )
}

async function sweep(services: Services, signal: AbortSignal): Promise<boolean> {
  let after = BEFORE_ALL
  for (;;) {
    const { database, queues } = services
    const page = await pendingRuns(database, queues.home, after, PAGE)
    for (const run of page) {
      if (signal.aborted) return false
      await look(services, run)
    }
    const last = page.at(-1)
    if (last === undefined || page.length < PAGE) return false
    after = last.id
  }
}

async function look(services: Services, run: PendingRun): Promise<void> {
  const { queues, log, database } = services
  const queue = run.job === null ? 'bots-sync' : 'bots-async'
  if (await queues.has(queue, run.id)) return
  // After the look at the queue: a run that ended in between has its AsyncJob finished.
  const open = await openJob(services, run)
  if (open === undefined) return await removePendingRun(database, run.id)
  if (run.job === null || run.hadEffect) {
    const job = { projectId: run.projectId, requester: open.author, contentType: undefined }
    await settleAsyncJob(services, job, interrupted(run.id))
    log.warn({ runId: run.id }, 'An accepted run was lost and is ended')
    return
  }
  await queues.restore(JSON.parse(run.job) as ExecuteJob)
  log.warn({ runId: run.id }, 'An accepted run was lost and is queued again')
}

async function openJob(
  services: Services,
  { id, projectId }: PendingRun,
): Promise<{ readonly author: string | undefined } | undefined> {
  const project = await services.principals.project(projectId)
  if (project === undefined) return undefined
  const version = await services.repository
    .read(systemPrincipal(project), 'AsyncJob', id)
    .catch(ignoreClientError)
  const job: Resource = JSON.parse(version?.content ?? '{}')
  if (version === undefined || !isOpenJob(job)) return undefined
  return { author: platformMeta(version).author?.reference }
}

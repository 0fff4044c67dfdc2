/** Jobs that the service gives itself: the index of a Project's search parameters, and that of all after an upgrade. */

import { systemPrincipal } from '../../../shared/access/principal.ts'
import { SYSTEM_PROJECT } from '../../../shared/access/project-context.ts'
import {
  createMaintenance,
  type ReindexProgress,
  type ReindexScope,
} from '../../../shared/jobs/upkeep/maintenance.ts'
import type { Services } from '../../../shared/services.ts'
import type { OwnIndexProgress } from '../../../shared/store/index/custom-parameters-index.ts'
import { settleIndexRevision } from '../../../shared/store/index/index-revision.ts'
import {
  deferOwnJob,
  endOwnJob,
  type OwnJob,
  postponeOwnJob,
  releaseUpkeepJob,
  saveProgress,
} from '../../../shared/store/rows/upkeep-jobs.ts'

/** Resources of a step. */
export const STEP = 200
const WAIT_MS = 200

type Outcome = 'done' | 'stopped' | 'postponed'

export function runOwnJob(services: Services, job: OwnJob, signal: AbortSignal): Promise<Outcome> {
  return job.kind === 'own-parameters'
    ? indexOwn(services, job, signal)
    : indexAll(services, job, signal)
}

const system = systemPrincipal(SYSTEM_PROJECT)
const EVERYTHING: ReindexScope = { type: undefined, filter: undefined }

async function indexOwn(
  { repository, database }: Services,
  job: OwnJob,
  signal: AbortSignal,
): Promise<Outcome> {
  // Written by this loop.
  let progress = (job.progress ?? undefined) as OwnIndexProgress | undefined
  while (!signal.aborted) {
    const step = await repository
      .feature(createMaintenance)
      .indexOwnNext(system, job.project, progress, STEP)
    if (step.kind === 'done') {
      await endOwnJob(database, job)
      return 'done'
    }
    if (step.kind === 'changed') {
      await postponeOwnJob(database, job.id)
      return 'postponed'
    }
    progress = step.progress
    await saveProgress(database, job.id, progress)
    if (step.kind === 'wait') {
      await deferOwnJob(database, job.id, WAIT_MS)
      return 'postponed'
    }
  }
  await releaseUpkeepJob(database, job.id)
  return 'stopped'
}

async function indexAll(
  { repository, database }: Services,
  job: OwnJob,
  signal: AbortSignal,
): Promise<Outcome> {
  // As above.
  let progress = (job.progress ?? undefined) as ReindexProgress | undefined
  while (!signal.aborted) {
    const next = await repository
      .feature(createMaintenance)
      .reindexNext(system, EVERYTHING, progress, STEP)
    if (next === undefined) {
      await settleIndexRevision(database)
      await endOwnJob(database, job)
      return 'done'
    }
    progress = next.progress
    await saveProgress(database, job.id, progress)
  }
  await releaseUpkeepJob(database, job.id)
  return 'stopped'
}

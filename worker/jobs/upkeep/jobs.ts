/**
 * Runs `$reindex`, `$expunge` and `$dry-run` jobs of table `job` in idempotent steps, checking the AsyncJob for cancellation in
 * between.
 */
import { type Principal, systemPrincipal } from '../../../shared/access/principal.ts'
import { system } from '../../../shared/access/project-context.ts'
import { type FinishedJob, finishAsyncJob, isJobFinished } from '../../../shared/bots/async-jobs.ts'
import { allOk, forbidden, HttpError, isAbsent, LeaseLost } from '../../../shared/core/errors.ts'
import { type Compartment, resourceTypes } from '../../../shared/fhir/definitions.ts'
import { actingSession } from '../../../shared/identity/principals.ts'
import { createRenewal, type Loop, startLoop, withLease } from '../../../shared/jobs/loop.ts'
import {
  expungeProject,
  expungeResource,
  type ReindexProgress,
  type ReindexScope,
  reindexNext,
} from '../../../shared/jobs/upkeep/maintenance.ts'
import { dryRunNext, dryRunOutput } from '../../../shared/operations/bots/dry-run.ts'
import type { Services } from '../../../shared/request/services.ts'
import { checkIndexRevision, settleIndexRevision } from '../../../shared/store/migrate.ts'
import {
  indexOwnNext,
  type OwnIndexProgress,
} from '../../../shared/store/reindex/custom-parameters-index.ts'
import type { Repository } from '../../../shared/store/repository.ts'
import { SEARCH_PARAMETER } from '../../../shared/store/rows/custom-parameters.ts'
import {
  deferOwnJob,
  endOwnJob,
  isOwnJob,
  JOBS,
  jobLease,
  jobRunLease,
  leaseUpkeepJob,
  type OwnJob,
  releaseUpkeepJob,
  removeJob,
  saveProgress,
  type UpkeepJob,
  type UpkeepKind,
} from '../../../shared/store/rows/upkeep-jobs.ts'
import type { Version } from '../../../shared/store/rows/version.ts'

const EVERY_MS = 500
const WITHOUT_AUDIT = resourceTypes.filter((type) => type !== 'AuditEvent')

export function startUpkeepJobs(services: Services): Loop {
  let isChecked = false
  return startLoop(
    { log: services.log, name: 'Upkeep jobs', everyMs: EVERY_MS },
    async (signal) => {
      if (!isChecked) await checkIndexRevision(services.database)
      isChecked = true
      return takeAndRun(services, signal)
    },
  )
}

/** `lost`: another worker has leased the job. */
type Outcome = 'done' | 'cancelled' | 'refused' | 'stopped' | 'postponed' | 'lost'

async function takeAndRun(services: Services, signal: AbortSignal): Promise<boolean> {
  const { database, log } = services
  const job = await leaseUpkeepJob(database)
  if (job === undefined) return false
  const { id, kind, project } = job
  const outcome = await withLease(createRenewal(services, JOBS, jobLease(job)), signal, (leased) =>
    isOwnJob(job) ? runOwnJob(services, job, leased) : runJob(services, job, leased),
  )
  log.info({ job: id, kind, project, outcome }, 'Upkeep job')
  return true
}

async function runJob(services: Services, job: UpkeepJob, signal: AbortSignal): Promise<Outcome> {
  const { database, log } = services
  try {
    const outcome = await runSteps(services, job, signal)
    if (outcome === 'lost') return outcome
    const isHeld =
      outcome === 'stopped' ? await releaseUpkeepJob(database, job) : await removeJob(database, job)
    return isHeld ? outcome : 'lost'
  } catch (error) {
    if (!(error instanceof HttpError) || error.status >= 500) throw error
    if (error instanceof LeaseLost) return 'lost'
    log.warn({ job: job.id, kind: job.kind, reason: error.message }, 'An upkeep job was refused')
    const parameter = [{ name: 'outcome', resource: error.outcome }]
    if (!(await finish(services, job, { status: 'error', parameter }))) return 'lost'
    return (await removeJob(database, job)) ? 'refused' : 'lost'
  }
}

async function runSteps(
  services: Services,
  job: UpkeepJob,
  signal: AbortSignal,
): Promise<'done' | 'cancelled' | 'stopped' | 'lost'> {
  const session = await actingSession(services.principals, job.input)
  if (session === undefined) throw forbidden()
  const step = STEPS[job.kind]
  let progress = job.progress
  for (;;) {
    if (signal.aborted) return 'stopped'
    if (!(await isOpen(services, job))) return 'cancelled'
    const next = await step(services, session.principal, job, progress)
    if (next === undefined) break
    progress = next
    if (!(await saveProgress(services.database, job, progress))) return 'lost'
    // Its steps take as long as bots, so that other jobs get their turn in between.
    if (job.kind === 'dry-run') return 'stopped'
  }
  const outcome = { name: 'outcome', resource: allOk }
  const { dryRun } = job.input
  const output = dryRun === undefined ? [] : dryRunOutput(progress, dryRun.runs.length)
  const isHeld = await finish(services, job, {
    status: 'completed',
    parameter: [outcome, ...output],
  })
  return isHeld ? 'done' : 'lost'
}

/** False when it was cancelled or expunged itself. */
async function isOpen({ repository, principals }: Services, { id, input }: UpkeepJob) {
  const project = await principals.project(input.homeId)
  if (project === undefined) return false
  const [version] = await repository.readMany(systemPrincipal(project), [{ type: 'AsyncJob', id }])
  const { status }: { status?: string } = JSON.parse(version?.content ?? '{}')
  return status === 'accepted' || status === 'active'
}

async function finish(
  services: Services,
  job: UpkeepJob,
  end: FinishedJob['end'],
): Promise<boolean> {
  const { id, input } = job
  const project = await services.principals.project(input.homeId)
  if (project === undefined) return true
  try {
    await finishAsyncJob(services, project, {
      author: input.requester,
      runId: id,
      end: { ...end, lease: jobRunLease(job) },
    })
    return true
  } catch (error) {
    if (error instanceof LeaseLost) return false
    if (!isJobFinished(error)) throw error
    return true
  }
}

/** Gets the result of the previous step; undefined ends the job. */
type Step = (
  services: Services,
  principal: Principal,
  job: UpkeepJob,
  progress: unknown,
) => Promise<unknown>

/** A comma list of types is processed in order. */
const reindexStep: Step = async ({ repository }, principal, { input }, progress) => {
  const types = input.type?.split(',') ?? [undefined]
  const { place = 0, from } = (progress ?? {}) as { place?: number; from?: ReindexProgress }
  const scope = { type: types[place], filter: input.filter }
  const next = await repository.withStore((store) =>
    reindexNext(store, principal, { scope, from, count: STEP }),
  )
  if (next !== undefined) return { place, from: next }
  return place + 1 < types.length ? { place: place + 1 } : undefined
}

const expungeStep: Step = async ({ repository }, principal, { input }, progress) => {
  const { type = '', id = '', projectId } = input
  if (type === 'Project') {
    return (
      (await repository.withStore((store) => expungeProject(store, principal, projectId))) ||
      undefined
    )
  }
  try {
    // `$expunge` has rejected types without a compartment.
    return await expungeMembers(repository, principal, type as Compartment, id)
  } catch (error) {
    // The previous step was the last but was not recorded.
    if (isAbsent(error) && progress !== null) return undefined
    throw error
  }
}

/** Members go first, so that the rest can be found by the resource; true: there may be more. */
async function expungeMembers(
  repository: Repository,
  principal: Principal,
  type: Compartment,
  id: string,
): Promise<true | undefined> {
  const page = await repository.compartment(principal, {
    type,
    id,
    // The audit trail stays: only super admins expunge it.
    types: principal.isSuperAdmin ? [] : WITHOUT_AUDIT,
    since: undefined,
    start: undefined,
    end: undefined,
    count: STEP,
    offset: 0,
    after: undefined,
  })
  const [own, ...members] = page.versions
  const remove = ({ type, id }: Version) =>
    repository.withStore((store) => expungeResource(store, principal, type, id))
  for (const member of members) await remove(member)
  if (members.length > 0) return true
  if (own !== undefined) await remove(own)
  return undefined
}

const STEPS: Readonly<Record<UpkeepKind, Step>> = {
  reindex: reindexStep,
  expunge: expungeStep,
  'dry-run': dryRunNext,
}

const STEP = 200
const WAIT_MS = 200

function runOwnJob(services: Services, job: OwnJob, signal: AbortSignal): Promise<Outcome> {
  return job.kind === 'own-parameters'
    ? indexOwn(services, job, signal)
    : indexAll(services, job, signal)
}

const EVERYTHING: ReindexScope = { type: undefined, filter: undefined }

async function indexOwn(
  { repository, database, changes }: Services,
  job: OwnJob,
  signal: AbortSignal,
): Promise<Outcome> {
  let progress = (job.progress ?? undefined) as OwnIndexProgress | undefined
  while (!signal.aborted) {
    const step = await repository.withStore((store) =>
      indexOwnNext(store, job.project, progress, STEP),
    )
    if (step.kind === 'done') return (await endOwnJob(database, job)) ? 'done' : 'lost'
    const wasReady = progress?.isReady === true
    progress = step.progress
    if (!(await saveProgress(database, job, progress))) return 'lost'
    if (step.kind === 'next') continue
    if (step.kind === 'ready' && !wasReady) {
      const { project: number } = job
      await changes.report({ type: SEARCH_PARAMETER, id: '', number, home: undefined })
    }
    const waitMs = step.kind === 'wait' ? WAIT_MS : Math.max(0, progress.late.due - Date.now())
    return (await deferOwnJob(database, job, waitMs)) ? 'postponed' : 'lost'
  }
  return (await releaseUpkeepJob(database, job)) ? 'stopped' : 'lost'
}

/** Processes of the previous release, which lack the new keys, have ended by then. */
const LATE_MS = 300_000
/** Bound on clock skew between workers and PostgreSQL. */
const CLOCKS_MS = 60_000

interface RevisionProgress {
  readonly at?: ReindexProgress | undefined
  /** ISO time from which writes are indexed again, after processes of the previous release have ended. */
  readonly since: string
  readonly isLate: boolean
}

async function indexAll(
  { repository, database }: Services,
  job: OwnJob,
  signal: AbortSignal,
): Promise<Outcome> {
  const since = new Date(Date.now() - CLOCKS_MS).toISOString()
  let progress = (job.progress ?? { since, isLate: false }) as RevisionProgress
  while (!signal.aborted) {
    const { at, isLate } = progress
    const scope = isLate ? { ...EVERYTHING, since: progress.since } : EVERYTHING
    const next = await repository.withStore((store) =>
      reindexNext(store, system, { scope, from: at, count: STEP }),
    )
    if (next === undefined && isLate) {
      await settleIndexRevision(database)
      return (await endOwnJob(database, job)) ? 'done' : 'lost'
    }
    progress = { ...progress, at: next, isLate: isLate || next === undefined }
    if (!(await saveProgress(database, job, progress))) return 'lost'
    if (next !== undefined) continue
    return (await deferOwnJob(database, job, LATE_MS)) ? 'postponed' : 'lost'
  }
  return (await releaseUpkeepJob(database, job)) ? 'stopped' : 'lost'
}

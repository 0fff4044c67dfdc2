/**
 * The life cycle of a run, from its job to its end. Every transition is a function here and returns its result.
 *
 *             lease              noteWrite              end
 *   queued ──────────▶ leased ─────────────▶ wrote ──────────▶ ended
 *     ▲                 │  │                   │
 *     │    give back    │  ├─────── end ───────┼─────────────▶ ended
 *     ├─────────────────┘  │                   │
 *     │                    ├─────── lost ──────┴─────────────▶ lost       another worker has the run
 *     │                    └─────── cancel ──────────────────▶ cancelled  no longer wanted
 *     └── again: the bot asks for a retry
 *
 * - queued: a BullMQ job holds the run. Asynchronous, scheduled and delivered runs also have a row in PostgreSQL
 *   (`pending_run`, `occurrence`, `delivery`), which restores the job after a loss of Redis.
 * - leased: a worker has the job and the lease of the row (shared/postgres/leases.ts). A run without a row names each
 *   attempt instead.
 * - wrote: the run may have had an effect, so no other attempt begins. Noted in the row (`effect`) or in the Redis journal,
 *   where only the first attempt may write. Occurrences and deliveries are repeated regardless of effects; their writes name
 *   the lease, and PostgreSQL rejects those of an older one.
 * - ended: the reply is published, and the result is in the AsyncJob, or the row is removed.
 * - lost: the worker has lost the lease and writes nothing more; the new holder ends the run.
 * - cancelled: by its AsyncJob, a disconnected caller, or its deadline.
 *
 * A nested bot is never queued: with every slot held by a caller, it would wait forever. It starts as leased in its caller's slot
 * and lease, has its own time limit, is one level deeper (at most 10), writes under its caller's mark, and stops with its caller.
 */

import { randomUUID } from 'node:crypto'
import type { RunLease } from '../../shared/access/principal.ts'
import {
  JobFinished,
  leasePendingRun,
  PENDING_RUNS,
  recordPendingEffect,
  releasePendingRun,
  settleAsyncJob,
  startAsyncJob,
} from '../../shared/bots/async-jobs.ts'
import { leaseOccurrence, OCCURRENCES, releaseOccurrence } from '../../shared/bots/schedules.ts'
import { HttpError, LeaseLost } from '../../shared/core/errors.ts'
import { mapStrings } from '../../shared/fhir/json.ts'
import { backoffMs, startLoop } from '../../shared/jobs/loop.ts'
import type { Database } from '../../shared/postgres/database.ts'
import { type LeaseTable, renewLeases } from '../../shared/postgres/leases.ts'
import type { ExecuteJob, ExecuteReply } from '../../shared/queue/jobs.ts'
import { interrupted } from '../../shared/queue/replies.ts'
import type { RunEnd, Runs } from '../../shared/queue/runs.ts'
import type { JobEnd, TakenJob } from '../../shared/queue/worker.ts'
import type { Services } from '../../shared/request/services.ts'
import { requireRunLease } from '../../shared/store/rows/write-rows.ts'
import type { Bridge } from './bridge.ts'
import { withRunId } from './load.ts'
import type { RunReport } from './run-reports.ts'
import type { Attempt, Attempted, Done, RunResult } from './run-result.ts'
import { settleOccurrence } from './run-schedules.ts'

const RENEW_MS = Math.min(PENDING_RUNS.leaseMs, OCCURRENCES.leaseMs) / 3

interface LeasedRun {
  readonly attempt: Attempt
  leave(end: JobEnd): Promise<void>
}

export type RunLives = ReturnType<typeof createRunLives>

interface Held {
  /** 0 while the run has no row; a row created meanwhile is leased by its creation. */
  readonly token: number
  readonly lost: () => void
}

export function createRunLives({ database, log }: Services, runs: Runs) {
  const pending: Rows = new Map()
  const occurrences: Rows = new Map()
  const renewing = startLoop({ log, name: 'The lease of runs', everyMs: RENEW_MS }, async () => {
    await Promise.all([
      renew(database, PENDING_RUNS, pending),
      renew(database, OCCURRENCES, occurrences),
    ])
    return false
  })
  return {
    /**
     * queued → leased. `isRepeat`: a worker lost the job before. Calls `lost` when another worker gets the lease.
     * Undefined when another worker has the run, it has ended, or PostgreSQL is unavailable: the row brings it back.
     */
    async lease(taken: TakenJob, lost: () => void): Promise<LeasedRun | undefined> {
      const { job, number, isRepeat } = taken
      if (job.asynchronous) {
        const rows = job.scheduled === undefined ? pending : occurrences
        return await leaseRow(database, rows, taken, lost).catch((error: unknown) => {
          if (error instanceof HttpError) return undefined
          throw error
        })
      }
      // A caller's run gets a row when the caller stops waiting.
      const attempt = { number, isRepeat, id: randomUUID() }
      return held(pending, job.runId, { token: 0, lost }, { attempt, leave: async () => {} })
    },
    async noteWrite(job: ExecuteJob, { lease, id }: Attempt): Promise<'wrote' | 'lost'> {
      if (lease !== undefined) return (await noteIn(database, lease)) ? 'wrote' : 'lost'
      // A nested bot writes under the mark of its caller, which is already set.
      return id === undefined || (await runs.markWrite(job, id)) ? 'wrote' : 'lost'
    },
    stop: () => renewing.stop(),
  }
}

type Rows = Map<string, Held>

async function leaseRow(
  database: Database,
  rows: Rows,
  { job: { runId: run, scheduled }, number, isRepeat }: TakenJob,
  lost: () => void,
): Promise<LeasedRun | undefined> {
  const leased = await (scheduled === undefined
    ? leasePendingRun(database, run, isRepeat)
    : leaseOccurrence(database, run, scheduled.attempt, isRepeat))
  if (leased === undefined) return undefined
  const { token, attempt = number, hadEffect = false } = leased
  const lease: RunLease = { owner: scheduled === undefined ? 'r' : 'o', run, token }
  const leave = async ({ kind }: JobEnd) => {
    if (kind === 'done') return
    if (scheduled === undefined) await releasePendingRun(database, run, token, kind === 'again')
    else await releaseOccurrence(database, run, token)
  }
  const row = { token, lost }
  return held(rows, run, row, { attempt: { number: attempt, isRepeat, hadEffect, lease }, leave })
}

function held(rows: Rows, runId: string, row: Held, run: LeasedRun): LeasedRun {
  rows.set(runId, row)
  const leave = async (end: JobEnd) => {
    if (rows.get(runId) === row) rows.delete(runId)
    // A row that could not be released is free in some seconds.
    await run.leave(end).catch(() => undefined)
  }
  return { ...run, leave }
}

async function renew(database: Database, table: LeaseTable, rows: Rows): Promise<void> {
  const leases = [...rows].map(([run, row]) => ({ key: [run], token: row.token, row }))
  const missing = await renewLeases(database, table, leases)
  for (const { token, row } of missing) if (token > 0) row.lost()
}

/** Notes in the run's row that it may have had an effect. False when the lease was lost. */
async function noteIn(database: Database, lease: RunLease): Promise<boolean> {
  if (lease.owner === 'r') return await recordPendingEffect(database, lease.run, lease.token)
  return await requireRunLease(database, lease).then(
    () => true,
    (error: unknown) => {
      if (error instanceof LeaseLost) return false
      throw error
    },
  )
}

// The end: its outcome, whether a failed run is retried, its reply, and the stored result.

export const SHUTDOWN = new Error('The worker stops')
export const BACK = { kind: 'back', delayMs: 0 } as const

/** True for an external abort; the bot's handling of a rejected write does not count as a result. */
function isCutOff({ aborted, reason }: AbortSignal, failure: Done['failure']): boolean {
  if (!aborted) return false
  if (reason === SHUTDOWN) return failure === 'cancelled'
  return reason instanceof LeaseLost
}

interface EndedAttempt {
  readonly job: ExecuteJob
  readonly signal: AbortSignal
  readonly bridge: Bridge
  readonly report: RunReport
  readonly result: RunResult
}

export function endAttempt(ended: EndedAttempt): Attempted {
  const { job, signal, bridge, report, result } = ended
  const isStopped = isCutOff(signal, result.failure)
  if (isStopped && signal.reason === SHUTDOWN && !bridge.hasWritten) return BACK
  const failure = isStopped ? 'interrupted' : result.failure
  const audited = report.end(result, failure, bridge.made)
  const isLost = signal.reason instanceof LeaseLost
  const reply = isStopped ? interrupted(job.runId) : toReply(ended)
  return { kind: 'done', reply, failure, audited, isLost }
}

function toReply({ job, bridge, report, result }: EndedAttempt): ExecuteReply {
  const { runId } = job
  const { kind, failure } = result
  // An error after an outage is not the bot's answer: the caller gets 503 and may retry, or an interruption.
  if (failure === 'thrown' && bridge.wasRefused && !job.asynchronous) {
    return bridge.hasWritten ? interrupted(runId) : { runId, status: 'unavailable', kind }
  }
  const status = failure === 'interrupted' ? failure : result.status
  const { stream } = bridge.made
  // The caller has the status already.
  if (stream !== undefined) return { runId, status, kind: 'undefined', streamed: stream.chunks }
  if (status === 'ok' && kind === 'undefined' && job.answersLog) {
    return { runId, status, kind: 'string', body: report.cleaned(result.log) }
  }
  if (status === 'ok') return { runId, status, kind, body: result.body }
  const body = cleanedOutcome(result.body, report)
  if (failure !== 'returned') return { runId, status, kind, body: withRunId(body, runId) }
  return { runId, status, kind, body, httpStatus: result.httpStatus ?? 400 }
}

/** Redacts secrets in the texts of a failure, which AsyncJobs and dead letters keep. */
function cleanedOutcome(body: string, { cleaned }: RunReport): string {
  return cleaned(body) === body ? body : JSON.stringify(mapStrings(JSON.parse(body), cleaned))
}

export function unavailable(runId: string): Done {
  const reply = { runId, status: 'unavailable', kind: 'outcome' } as const
  return { kind: 'done', reply, failure: 'unavailable' }
}

// Retries

const FIRST_MS = 1000
const LONGEST_MS = 10 * 60_000
/** Failures that a retry cannot fix, or whose result is no longer wanted. */
const FINAL: ReadonlySet<string> = new Set(['cancelled', 'interrupted', 'unavailable'])

/** Only for asynchronous runs whose bot asks for it; undefined: final. The sender of an event repeats its run. */
export function retryAfterMs(
  { asynchronous, class: kind, failures = 0 }: ExecuteJob,
  failure: Done['failure'],
  maxAttempts: number,
): number | undefined {
  if (!asynchronous || kind === 'event' || failure === undefined || FINAL.has(failure)) {
    return undefined
  }
  if (failures + 1 >= maxAttempts) return undefined
  return backoffMs(failures + 1, FIRST_MS, LONGEST_MS)
}

// The reply, and a stored result in the AsyncJob or occurrence

const SETTLE_ATTEMPTS = 5
const PAUSE_MS = 500

export type Settling = ReturnType<typeof createSettling>

export function createSettling(services: Services, runs: Runs) {
  const settling = new Set<Promise<void>>()

  async function settle(job: ExecuteJob, reply: ExecuteReply, isLate: Promise<boolean>) {
    if (!(await isLate)) return
    await settleRun(services, job, reply.status === 'unavailable' ? interrupted(job.runId) : reply)
  }

  return {
    async finish(job: ExecuteJob, reply: ExecuteReply, end: RunEnd): Promise<void> {
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
    close: () => Promise.all(settling),
  }
}

/** Retries for some seconds. Errors: 503 when PostgreSQL stays unavailable. */
async function settleRun(services: Services, job: ExecuteJob, reply: ExecuteReply): Promise<void> {
  for (let attempt = 1; ; attempt++) {
    try {
      const { scheduled, lease } = job
      if (scheduled === undefined) await settleAsyncJob(services, job, reply)
      else if (lease !== undefined) await settleOccurrence(services, lease, job, reply)
      return
    } catch (error) {
      if (error instanceof LeaseLost) return
      if (attempt === SETTLE_ATTEMPTS) throw error
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

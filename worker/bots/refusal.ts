/** Refusals of runs that have their turn, the answers to their callers, and the lines of those that fail. */

import type { RunTaking } from '../../shared/access/principal.ts'
import { issue, outcome } from '../../shared/errors.ts'
import type { Logger } from '../../shared/log.ts'
import type { ExecuteJob, ExecuteReply } from '../../shared/platform/queue/jobs.ts'
import { interrupted } from '../../shared/platform/queue/replies.ts'
import type { Runs } from '../../shared/platform/queue/runs.ts'
import type { RunFailure } from './run-result.ts'

export interface Attempt {
  /** 1-based, as the bot sees it. */
  readonly number: number
  /** The job was started before, here or elsewhere. */
  readonly isRepeat: boolean
  /** An attempt before may have changed something; undefined where only Redis knows. */
  readonly hadEffect?: boolean
  /** The token of the job's lock in Redis; absent for a run that is no job of it. */
  readonly token?: string
  /** Its writes are checked against this; undefined for a run without a row. */
  readonly taking?: RunTaking | undefined
}

export interface Done {
  readonly reply: ExecuteReply
  readonly failure: RunFailure | 'unavailable' | undefined
  /** Another worker has the run, which is not this one's to end. */
  readonly isLost?: boolean
  /** Settled when its AuditEvent is stored. */
  readonly audited?: Promise<void>
}

/** A caller whose wait is over is sent away with a status URL, if it is still there, within this time. */
const SENT_AWAY_MS = 2000

/** Undefined when the run may start. */
export async function refusal(
  runs: Runs,
  job: ExecuteJob,
  attempt: Attempt,
): Promise<Done | undefined> {
  const { runId } = job
  if (runs.wasCancelled(runId)) return cancelled(runId)
  if (attempt.hadEffect ?? (attempt.isRepeat && (await runs.hasWritten(runId)))) {
    return { reply: interrupted(runId), failure: 'interrupted' }
  }
  const now = runs.now()
  const sentAwayBy = (job.waitUntil ?? Number.POSITIVE_INFINITY) + SENT_AWAY_MS
  const isUnwanted = now > sentAwayBy && !(await runs.isLate(runId))
  if (now <= job.deadline && !isUnwanted) return undefined
  return {
    reply: ended(runId, 'timeout', 'Bot run waited too long for a worker'),
    failure: 'timeout',
  }
}

export function cancelled(runId: string): Done {
  return { reply: ended(runId, 'processing', 'Bot run cancelled'), failure: 'cancelled' }
}

function ended(runId: string, code: string, text: string): ExecuteReply {
  const body = outcome(undefined, issue('error', code, text, { diagnostics: runId }))
  return { runId, status: 'error', kind: 'outcome', body: JSON.stringify(body) }
}

/** The first two are no failures, and the last one has been logged with its cause. */
const SILENT: ReadonlySet<Done['failure']> = new Set([undefined, 'cancelled', 'unavailable'])

/** Without the text of its error, which may be about a patient: `$runs` and the AuditEvent have that. */
export function noteFailure(log: Logger, job: ExecuteJob, failure: Done['failure'], ms: number) {
  if (SILENT.has(failure)) return
  const { runId, botId, projectId, requestId, traceId } = job
  const ids = { runId, bot: botId, project: projectId, requestId, traceId }
  log.warn({ ...ids, failure, ms }, 'A bot run failed')
}

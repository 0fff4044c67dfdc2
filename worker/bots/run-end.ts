/** Ends of runs: replies, failures and interruptions. */
import { RunLeaseLost } from '../../shared/core/errors.ts'
import type { ExecuteJob, ExecuteReply } from '../../shared/queue/jobs.ts'
import { interrupted } from '../../shared/queue/replies.ts'
import type { Bridge } from './bridge.ts'
import { withRunId } from './load.ts'
import type { RunReport } from './run-reports.ts'
import type { Attempted, Done, RunResult } from './run-result.ts'

export const SHUTDOWN = new Error('The worker stops')
export const BACK = { kind: 'back', delayMs: 0 } as const

/** True for an external abort; the bot's handling of a rejected write does not count as a result. */
function isCutOff({ aborted, reason }: AbortSignal, failure: Done['failure']): boolean {
  if (!aborted) return false
  if (reason === SHUTDOWN) return failure === 'cancelled'
  return reason instanceof RunLeaseLost
}

export function endOf(
  { job, signal }: { readonly job: ExecuteJob; readonly signal: AbortSignal },
  bridge: Bridge,
  report: RunReport,
  result: RunResult,
): Attempted {
  const { runId } = job
  const isStopped = isCutOff(signal, result.failure)
  if (isStopped && signal.reason === SHUTDOWN && !bridge.hasWritten) return BACK
  const { kind } = result
  const failure = isStopped ? 'interrupted' : result.failure
  const status = failure === 'interrupted' ? failure : result.status
  const audited = report.end(result, failure, bridge.made)
  const isLost = signal.reason instanceof RunLeaseLost
  if (isStopped) return { kind: 'done', reply: interrupted(runId), failure, audited, isLost }
  // An error after an outage is not the bot's answer: the caller gets 503 and may retry, or an interruption.
  if (failure === 'thrown' && bridge.wasRefused && !job.asynchronous) {
    const again: ExecuteReply = { runId, status: 'unavailable', kind }
    const reply = bridge.hasWritten ? interrupted(runId) : again
    return { kind: 'done', reply, failure, audited }
  }
  const body = status !== 'ok' ? withRunId(result.body, runId) : result.body
  return { kind: 'done', reply: { runId, status, kind, body }, failure, audited }
}

export function unavailable(runId: string): Done {
  const reply = { runId, status: 'unavailable', kind: 'outcome' } as const
  return { kind: 'done', reply, failure: 'unavailable' }
}

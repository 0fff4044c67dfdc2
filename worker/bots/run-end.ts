/** How a run has ended, and what becomes of it. */
import { RunLeaseLost } from '../../shared/core/errors.ts'
import type { ExecuteJob, ExecuteReply } from '../../shared/queue/jobs.ts'
import { interrupted } from '../../shared/queue/replies.ts'
import type { Bridge } from './bridge.ts'
import { withRunId } from './load.ts'
import type { RunReport } from './run-reports.ts'
import type { Attempted, Done, RunResult } from './run-result.ts'

/** Aborts the runs of a worker that stops. */
export const SHUTDOWN = new Error('The worker stops')
/** For a run that had no effect when its worker stops. */
export const BACK = { kind: 'back', delayMs: 0 } as const

/** The run ends although nobody has asked for its end; what a bot makes of a refused write is no result. */
function isCutOff({ aborted, reason }: AbortSignal, failure: Done['failure']): boolean {
  if (!aborted) return false
  if (reason === SHUTDOWN) return failure === 'cancelled'
  return reason instanceof RunLeaseLost
}

/** Reports how a run has ended, and makes its reply. */
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
  // The error that a bot makes of an outage is not its answer: who waits may ask again, or hears that it was cut off.
  if (failure === 'thrown' && bridge.wasRefused && !job.asynchronous) {
    const again: ExecuteReply = { runId, status: 'unavailable', kind }
    const reply = bridge.hasWritten ? interrupted(runId) : again
    return { kind: 'done', reply, failure, audited }
  }
  const body = status !== 'ok' ? withRunId(result.body, runId) : result.body
  return { kind: 'done', reply: { runId, status, kind, body }, failure, audited }
}

/** The run could not start. */
export function unavailable(runId: string): Done {
  const reply = { runId, status: 'unavailable', kind: 'outcome' } as const
  return { kind: 'done', reply, failure: 'unavailable' }
}

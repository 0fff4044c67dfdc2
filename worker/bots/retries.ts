/** Decides whether and when failed runs are retried: only asynchronous ones whose bot asks for it. */

import { backoffMs } from '../../shared/jobs/loop.ts'
import type { ExecuteJob } from '../../shared/queue/jobs.ts'
import type { RunFailure } from './run-result.ts'

const FIRST_MS = 1000
const LONGEST_MS = 10 * 60_000
/** Failures that a retry cannot fix, or whose result is no longer wanted. */
const FINAL: ReadonlySet<string> = new Set(['cancelled', 'interrupted', 'unavailable'])

/** Returns undefined for a final failure. The sender of an event repeats its run. */
export function retryAfterMs(
  { asynchronous, class: kind, failures = 0 }: ExecuteJob,
  failure: RunFailure | 'unavailable' | undefined,
  maxAttempts: number,
): number | undefined {
  if (!asynchronous || kind === 'event' || failure === undefined || FINAL.has(failure)) {
    return undefined
  }
  if (failures + 1 >= maxAttempts) return undefined
  return backoffMs(failures + 1, FIRST_MS, LONGEST_MS)
}

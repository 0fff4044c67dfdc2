/** Whose runs share an executor's places. */
import type { ExecuteJob } from '../../shared/queue-jobs.ts'

/**
 * An executor takes a few runs of a key at a time. Each depth has its own key: a called bot waits for
 * places that only deeper calls hold, so calls that wait for each other in a ring cannot be.
 */
export function botKey({ botId, botVersion, depth }: ExecuteJob): string {
  return depth === 0 ? `${botId}/${botVersion}` : `${botId}/${botVersion}/${depth}`
}

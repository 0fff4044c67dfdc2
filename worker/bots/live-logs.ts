/** What a run says to those who listen to its bot: that it starts, what it logs, how it ended. */
import type { BotLogEvent, Followed } from '../../shared/bot-logs.ts'
import type { ExecuteJob } from '../../shared/queue-jobs.ts'
import type { RunRecord } from './audit.ts'

export interface LiveLog {
  /** For the executor, when somebody listens from the start. */
  readonly onLog: ((text: string) => void) | undefined
  end(record: RunRecord): void
}

export function startLiveLog(
  followed: Followed,
  job: ExecuteJob,
  project: number,
  started: Date,
  attempt: number,
  redact: (log: string) => string,
): LiveLog {
  const { botId, runId, requester, traceId } = job
  const tell = (...events: BotLogEvent[]) => followed.tell(botId, { project, events })
  const start: BotLogEvent = {
    type: 'start',
    runId,
    started: started.toISOString(),
    attempt,
    requester,
    traceId,
  }
  const isHeard = followed.has(botId)
  // A short run is one message; only one that logs before its end is told in several.
  let isTold = false
  let untold: BotLogEvent[] = []
  const onLog = (text: string) => {
    if (text === '') return
    tell(...(isTold ? [] : [start]), { type: 'log', runId, text: redact(text) })
    isTold = true
  }
  return {
    onLog: isHeard ? onLog : undefined,
    end({ failure, startedAt, endedAt, result, log }) {
      if (!isHeard && !followed.has(botId)) return
      if (!isTold) untold = [start]
      if (!isHeard && log !== '') untold.push({ type: 'log', runId, text: log })
      tell(...untold, {
        type: 'end',
        runId,
        status: failure ?? 'ok',
        durationMs: endedAt.getTime() - startedAt.getTime(),
        cpuMs: result.cpuMs,
        memoryMb: result.memoryMb,
      })
    },
  }
}

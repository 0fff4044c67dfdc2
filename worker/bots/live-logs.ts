/** The events of a run for listeners of its bot: its start, its log, its end. */
import type { BotLogEvent, Followed } from '../../shared/bots/live-logs.ts'
import type { RunRecord } from './audit.ts'

export interface LiveLog {
  /** For the executor, when somebody listens from the start. */
  readonly onLog: ((text: string) => void) | undefined
  end(record: RunRecord): void
}

export function startLiveLog(
  followed: Followed,
  {
    job,
    session,
    startedAt,
    attempt,
  }: Pick<RunRecord, 'job' | 'session' | 'startedAt' | 'attempt'>,
  redact: (log: string) => string,
): LiveLog {
  const { botId, runId, requester, traceId } = job
  const project = session.principal.project.number
  const tell = (...events: BotLogEvent[]) => followed.tell(botId, { project, events })
  const start: BotLogEvent = {
    type: 'start',
    runId,
    started: startedAt.toISOString(),
    attempt,
    requester,
    traceId,
  }
  const isHeard = followed.has(botId)
  // A short run is one message; a longer one has several.
  let isStartSent = false
  const onLog = (text: string) => {
    const events = [
      ...(isStartSent ? [] : [start]),
      ...(text === '' ? [] : [{ type: 'log' as const, runId, text: redact(text) }]),
    ]
    if (events.length > 0) tell(...events)
    isStartSent = true
  }
  return {
    onLog: isHeard ? onLog : undefined,
    end({ failure, endedAt, result, log }) {
      if (!isHeard && !followed.has(botId)) return
      const isLogSent = isHeard || log === ''
      tell(
        ...(isStartSent ? [] : [start]),
        ...(isLogSent ? [] : [{ type: 'log' as const, runId, text: log }]),
        {
          type: 'end',
          runId,
          status: failure ?? 'ok',
          durationMs: endedAt.getTime() - startedAt.getTime(),
          cpuMs: result.cpuMs,
          memoryMb: result.memoryMb,
        },
      )
    },
  }
}

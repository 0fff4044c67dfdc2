/** Reports of a run: to listeners of its bot, as an AuditEvent, and in the list of its latest runs. */
import type { BotLogEvent, Followed } from '../../shared/bots/live-logs.ts'
import type { MadeCalls } from '../../shared/bots/run-records.ts'
import { isObject } from '../../shared/fhir/resource.ts'
import type { Audit, RunRecord } from './audit.ts'
import { redact } from './event.ts'
import type { RecentRuns } from './recent-runs.ts'
import type { RunFailure, RunResult } from './run-result.ts'

const MAX_PATH = 500

export type StartedRun = Pick<
  RunRecord,
  'job' | 'bot' | 'session' | 'input' | 'startedAt' | 'attempt' | 'hold'
>

export interface RunReport {
  /** For the executor, when somebody listens. */
  readonly onLog: ((text: string) => void) | undefined
  /** Settled when the AuditEvent is stored. */
  end(result: RunResult, failure: RunFailure | undefined, made: MadeCalls): Promise<void>
}

export interface RunReports {
  /** `secrets` are what no log may show. */
  start(run: StartedRun, secrets: readonly string[]): RunReport
  /** Writes what is queued, if it can be written now. */
  close(): Promise<void>
}

export function createRunReports(audit: Audit, recent: RecentRuns, followed: Followed): RunReports {
  return {
    start(run, secrets) {
      const cleaned = (log: string) => redact(log, secrets)
      const live = startLiveLog(followed, run, cleaned)
      const begun = performance.now()
      return {
        onLog: live.onLog,
        end(result, failure, { calls, callCount }) {
          const log = cleaned(result.log)
          const text = failure === undefined ? undefined : errorOf(result.body)
          const error = text === undefined ? undefined : cleaned(text)
          // By the clock of the service, as the start.
          const endedAt = new Date(run.startedAt.getTime() + performance.now() - begun)
          const made = {
            calls: calls?.map((call) => ({ ...call, path: cleaned(call.path).slice(0, MAX_PATH) })),
            callCount,
          }
          const record = { ...run, endedAt, failure, error, log, result, made, cleaned }
          live.end(record)
          recent.add(record)
          return audit.add(record)
        },
      }
    },
    async close() {
      followed.close()
      await Promise.all([audit.close(), recent.close()])
    },
  }
}

/** The text of an outcome, which may be one that the bot made. */
function errorOf(body: string): string | undefined {
  try {
    const outcome: unknown = JSON.parse(body)
    const [issue]: readonly unknown[] =
      isObject(outcome) && Array.isArray(outcome.issue) ? outcome.issue : []
    const details = isObject(issue) && isObject(issue.details) ? issue.details : {}
    return typeof details.text === 'string' ? details.text : undefined
  } catch {
    return undefined
  }
}

// The events of a run for listeners of its bot: its start, its log, its end.

interface LiveLog {
  /** For the executor, when somebody listens from the start. */
  readonly onLog: ((text: string) => void) | undefined
  end(record: RunRecord): void
}

function startLiveLog(
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

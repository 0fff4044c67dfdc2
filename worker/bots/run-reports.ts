/** Reports a run to listeners of its bot, as an AuditEvent, and in the list of recent runs. */

import { findSetting } from '../../shared/access/project-context.ts'
import { archiveInput, trimRuns } from '../../shared/bots/inputs.ts'
import type { BotLogEvent, FollowedRuns } from '../../shared/bots/live-logs.ts'
import {
  addBotRuns,
  type BotRunRecord,
  type BotRunRow,
  type InputArchive,
  type RecordedCalls,
} from '../../shared/bots/run-records.ts'
import { batchDelayed } from '../../shared/core/batching.ts'
import { isObject } from '../../shared/fhir/resource.ts'
import type { ExecuteJob } from '../../shared/queue/jobs.ts'
import type { Services } from '../../shared/request/services.ts'
import { createAudit, logTail, type RunRecord } from './audit.ts'
import type { RunFailure, RunResult } from './run-result.ts'

const MAX_PATH = 500

type StartedRun = Pick<
  RunRecord,
  'job' | 'bot' | 'session' | 'input' | 'startedAt' | 'attempt' | 'hold'
>

export interface RunReport {
  readonly onLog: ((text: string) => void) | undefined
  end(result: RunResult, failure: RunFailure | undefined, made: RecordedCalls): Promise<void>
}

export interface RunReports {
  /** `secrets` are redacted from logs. */
  start(run: StartedRun, secrets: readonly string[]): RunReport
  close(): Promise<void>
}

export function createRunReports(services: Services, followed: FollowedRuns): RunReports {
  const audit = createAudit(services)
  const recent = createRecentRuns(services)
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
          // Same clock as the start.
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

function redact(log: string, secrets: readonly string[]): string {
  return secrets.reduce((text, secret) => text.replaceAll(secret, '***'), log)
}

/** Returns the text of an outcome, which the bot may have made. */
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

interface LiveLog {
  readonly onLog: ((text: string) => void) | undefined
  end(record: RunRecord): void
}

function startLiveLog(
  followed: FollowedRuns,
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

interface RecentRuns {
  add(record: RunRecord): void
  close(): Promise<void>
}

const TRIM_MS = 30_000
const MAX_ERROR = 1000
/** Inputs being stored; further inputs are dropped when storage is slow. */
const MAX_KEEPING = 50
const ARCHIVE = 'BOT_INPUT_ARCHIVE'

function createRecentRuns(services: Services): RecentRuns {
  const { config, database, log, storage } = services
  const keeping = new Set<Promise<void>>()
  let grown = new Set<string>()
  const batches = batchDelayed<BotRunRow>({
    log,
    what: 'Records of bot runs',
    async write(rows) {
      const failure = await addBotRuns(database, rows).then(
        () => undefined,
        (error: unknown) => error,
      )
      return rows.map(() => failure)
    },
  })

  const trimming = setInterval(() => {
    if (grown.size === 0) return
    const bots = [...grown]
    grown = new Set()
    trimRuns(services, bots).catch((error: Error) => {
      log.debug({ reason: error.message }, 'Records of bot runs could not be trimmed')
    })
  }, TRIM_MS)

  function isKept({ session }: RunRecord): boolean {
    if (!config.botInputArchive || keeping.size >= MAX_KEEPING) return false
    return findSetting(session.project.setting, ARCHIVE)?.valueBoolean === true
  }

  async function keepAndAdd(record: RunRecord): Promise<void> {
    const { session, job, attempt, input } = record
    const { id } = session.principal.project
    const shown = input === undefined ? undefined : record.cleaned(input)
    const kept = { projectId: id, job, attempt, input, shown }
    const archive = await archiveInput(storage, kept).catch((cause: unknown) => {
      log.warn({ runId: job.runId, cause }, 'The input of a bot run could not be kept')
      return undefined
    })
    void batches.add(rowOf(record, archive))
  }

  return {
    add(record) {
      grown.add(record.job.botId)
      if (!isKept(record)) {
        void batches.add(rowOf(record))
        return
      }
      const kept = keepAndAdd(record).finally(() => keeping.delete(kept))
      keeping.add(kept)
    },
    async close() {
      clearInterval(trimming)
      await Promise.all(keeping)
      await batches.close()
    },
  }
}

function rowOf(record: RunRecord, archive?: InputArchive): BotRunRow {
  const { job, session, failure, error, startedAt, endedAt, result, attempt, log } = record
  return {
    bot: job.botId,
    started: startedAt,
    id: job.runId,
    project: session.principal.project.number,
    record: {
      status: failure ?? 'ok',
      durationMs: endedAt.getTime() - startedAt.getTime(),
      cpuMs: rounded(result.cpuMs),
      memoryMb: result.memoryMb === undefined ? undefined : rounded(result.memoryMb),
      version: job.botVersion,
      attempt,
      hold: record.hold,
      mode: modeOf(job),
      requester: job.requester,
      runAs: session.principal.profile,
      traceId: job.traceId,
      error: error?.slice(0, MAX_ERROR),
      log: logTail(log),
      ...record.made,
      archive,
    },
  }
}

function modeOf(job: ExecuteJob): BotRunRecord['mode'] {
  if (job.scheduled !== undefined) return 'schedule'
  if (job.subscription !== undefined) return 'event'
  return job.asynchronous === true ? 'async' : 'sync'
}

function rounded(value: number): number {
  return Math.round(value * 100) / 100
}

/** Reports a run to listeners of its bot, as an AuditEvent, and in the list of recent runs. */
import { EVENT_SYSTEM } from '../../shared/access/guarded/elements.ts'
import { servicePrincipal } from '../../shared/access/principal.ts'
import { findSetting } from '../../shared/access/project-context.ts'
import { outcomeText } from '../../shared/bots/dead-runs.ts'
import type { BotLogEvent, FollowedRuns } from '../../shared/bots/live-logs.ts'
import {
  addBotRuns,
  archiveInput,
  type BotRunRecord,
  type BotRunRow,
  type InputArchive,
  type RecordedCalls,
  type RunsOfBot,
  trimRuns,
} from '../../shared/bots/run-records.ts'
import { batchDelayed } from '../../shared/core/batching.ts'
import { attempt } from '../../shared/core/errors.ts'
import { mapStrings, toStorable } from '../../shared/fhir/json.ts'
import { isResource, type Resource, referenceTo } from '../../shared/fhir/resource.ts'
import type { Session } from '../../shared/identity/principals.ts'
import { botAddress, type ExecuteJob } from '../../shared/queue/jobs.ts'
import { tracingExtension } from '../../shared/request/reply.ts'
import type { Services } from '../../shared/request/services.ts'
import { createFetchRecorder, type FetchRecorder } from './fetch-recording.ts'
import { isKilled, type RunFailure, type RunResult, toRunAnswer } from './run-result.ts'
import type { Hold } from './slots.ts'

const MAX_PATH = 500

type StartedRun = Pick<
  RunRecord,
  'job' | 'bot' | 'session' | 'input' | 'startedAt' | 'attempt' | 'hold' | 'recorder'
>

export type RunReports = ReturnType<typeof createRunReports>
export type RunReport = ReturnType<RunReports['start']>

export function createRunReports(services: Services, followed: FollowedRuns) {
  const audit = createAudit(services)
  const recent = createRecentRuns(services)
  return {
    /** Undefined unless the Project keeps the inputs of its bots. */
    recorder: (session: Session) => (recent.isKept(session) ? createFetchRecorder() : undefined),
    /** `secrets` are redacted from logs. */
    start(run: StartedRun, secrets: readonly string[]) {
      const cleaned = (log: string) => redact(log, secrets)
      const live = startLiveLog(followed, run, cleaned)
      const begun = performance.now()
      return {
        onLog: live.onLog,
        /** Redacts the run's secrets. */
        cleaned,
        end(
          result: RunResult,
          failure: RunFailure | undefined,
          { calls, callCount, stream }: RecordedCalls,
        ): Promise<void> {
          const log = cleaned(result.log)
          const text = failure && attempt(() => outcomeText(JSON.parse(result.body)))
          const error = text === undefined ? undefined : cleaned(text)
          // Same clock as the start.
          const endedAt = new Date(run.startedAt.getTime() + performance.now() - begun)
          const made = {
            calls: calls?.map((call) => ({ ...call, path: cleaned(call.path).slice(0, MAX_PATH) })),
            callCount,
            stream,
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

export function redact(log: string, secrets: readonly string[]): string {
  return secrets.reduce((text, secret) => text.replaceAll(secret, '***'), log)
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
) {
  const { runId, requester, traceId } = job
  const bot = botAddress(job)
  const project = session.principal.project.number
  const report = (...events: BotLogEvent[]) => followed.publish(bot, { project, events })
  const start: BotLogEvent = {
    type: 'start',
    runId,
    started: startedAt.toISOString(),
    attempt,
    requester,
    traceId,
  }
  const isHeard = followed.has(bot)
  let isStartSent = false
  const onLog = (text: string) => {
    const events = [
      ...(isStartSent ? [] : [start]),
      ...(text === '' ? [] : [{ type: 'log' as const, runId, text: redact(text) }]),
    ]
    if (events.length > 0) report(...events)
    isStartSent = true
  }
  return {
    onLog: isHeard ? onLog : undefined,
    end({ failure, endedAt, result, log }: RunRecord): void {
      if (!isHeard && !followed.has(bot)) return
      const isLogSent = isHeard || log === ''
      report(
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

const TRIM_MS = 30_000
const MAX_ERROR = 1000
/** Inputs being stored; further inputs are dropped when storage is slow. */
const MAX_KEEPING = 50
const ARCHIVE = 'BOT_INPUT_ARCHIVE'

function createRecentRuns(services: Services) {
  const { config, database, log, storage } = services
  const keeping = new Set<Promise<void>>()
  let grown = new Map<string, RunsOfBot>()
  const batches = batchDelayed<BotRunRow>({
    log,
    name: 'Records of bot runs',
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
    const bots = [...grown.values()]
    grown = new Map()
    trimRuns(services, bots).catch((error: Error) => {
      log.debug({ reason: error.message }, 'Records of bot runs could not be trimmed')
    })
  }, TRIM_MS)

  function isKept({ project }: Session): boolean {
    return config.botInputArchive && findSetting(project.setting, ARCHIVE)?.valueBoolean === true
  }

  async function keepAndAdd(record: RunRecord): Promise<void> {
    const { runId } = record.job
    const archive = await archiveRun(storage, record).catch((cause: unknown) => {
      log.warn({ runId, cause }, 'The input of a bot run could not be kept')
      return undefined
    })
    void batches.add(toRow(record, archive))
  }

  return {
    isKept,
    add(record: RunRecord): void {
      const bot = record.job.botId
      const project = record.session.principal.project.number
      grown.set(`${project} ${bot}`, { bot, project })
      if (record.recorder === undefined || keeping.size >= MAX_KEEPING) {
        void batches.add(toRow(record))
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

async function archiveRun(storage: Services['storage'], record: RunRecord): Promise<InputArchive> {
  const { session, job, attempt, input, recorder, made, failure, result } = record
  const isStreamed = made.stream !== undefined
  return await archiveInput(storage, {
    projectId: session.principal.project.id,
    job,
    attempt,
    input,
    shown: input === undefined ? undefined : record.cleaned(input),
    answer: isStreamed ? undefined : toRunAnswer(result, failure, record.cleaned),
    fetches: recorder?.fetches ?? [],
  })
}

function toRow(record: RunRecord, archive?: InputArchive): BotRunRow {
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
      label: job.label,
      attempt,
      hold: record.hold,
      key: job.turn?.key.split(':').at(-1),
      replaced: job.replaced,
      mode: runMode(job),
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

function runMode(job: ExecuteJob): BotRunRecord['mode'] {
  if (job.scheduled !== undefined) return 'schedule'
  if (job.subscription !== undefined) return 'event'
  return job.asynchronous === true ? 'async' : 'sync'
}

function rounded(value: number): number {
  return Math.round(value * 100) / 100
}

// Writes one AuditEvent per run, in batches, after the caller has its answer.

interface RunRecord {
  readonly job: ExecuteJob
  readonly bot: Resource
  readonly session: Session
  readonly input: string | undefined
  readonly startedAt: Date
  readonly endedAt: Date
  readonly failure: RunFailure | undefined
  /** Error message with secrets redacted. */
  readonly error: string | undefined
  /** Secrets redacted. */
  readonly log: string
  /** 1-based. */
  readonly attempt: number
  /** Undefined when the run got its slot at once. */
  readonly hold: Hold | undefined
  /** Undefined where the input is not kept. */
  readonly recorder: FetchRecorder | undefined
  readonly result: Pick<RunResult, 'cpuMs' | 'memoryMb' | 'kind' | 'body'>
  /** Secrets redacted. */
  readonly made: RecordedCalls
  /** Redacts the run's secrets. */
  cleaned(text: string): string
}

const LOG_TAIL_BYTES = 10 * 1024

function createAudit({ log, repository }: Services) {
  const batches = batchDelayed<RunRecord>({
    log,
    name: 'AuditEvents',
    async write(records) {
      const results = await Promise.allSettled(
        records.map(async (record) => {
          const { project, profile } = record.session.principal
          const event = mapStrings(auditEvent(record), toStorable)
          return await repository.create(servicePrincipal(project, { profile }), event)
        }),
      )
      return results.map((result) => (result.status === 'rejected' ? result.reason : undefined))
    },
  })
  return {
    /** Resolves when the AuditEvent is stored, or lost, or not wanted. */
    async add(record: RunRecord): Promise<void> {
      if (!isWanted(record)) return
      const { auditEventDestination: named } = record.bot
      const destinations: readonly unknown[] = Array.isArray(named) ? named : ['resource']
      if (destinations.includes('log')) {
        const { outcomeDesc: _, ...event } = auditEvent(record)
        log.info({ auditEvent: event }, 'Bot run')
      }
      if (destinations.includes('resource')) await batches.add(record)
    },
    close: () => batches.close(),
  }
}

function isWanted({ bot, failure, log }: RunRecord): boolean {
  switch (bot.auditEventTrigger) {
    case 'never':
      return false
    case 'on-error':
      return failure !== undefined
    case 'on-output':
      return log !== ''
    default:
      return true
  }
}

function auditEvent(record: RunRecord): Resource {
  const { job, session, failure, error, log, startedAt, endedAt } = record
  const bot = { reference: `Bot/${job.botId}` }
  // Load errors and limits leave no line in the log.
  const isLogged = error === undefined || log.includes(error)
  const described = isLogged ? log : `${log}${endedAt.toISOString()} ERROR ${error}\n`
  const input = inputReference(job, record.input)
  const entities = [bot.reference, input, job.subscription]
  return {
    resourceType: 'AuditEvent',
    extension: [tracingExtension(job)],
    type: { system: EVENT_SYSTEM, code: 'execute' },
    period: { start: startedAt.toISOString(), end: endedAt.toISOString() },
    recorded: endedAt.toISOString(),
    agent: [
      ...(job.requester === undefined
        ? []
        : [{ who: { reference: job.requester }, requestor: true, ...networkAgent(job) }]),
      { who: { reference: session.principal.profile }, requestor: false },
    ],
    source: { observer: bot },
    entity: [
      ...entities.flatMap((reference) =>
        reference === undefined ? [] : [{ what: { reference } }],
      ),
      ...agentEntity(job),
    ],
    outcome: failure === undefined ? '0' : isKilled(failure) ? '8' : '4',
    ...(described === '' ? {} : { outcomeDesc: logTail(described) }),
  }
}

/** https://hl7.org/fhir/R4/valueset-network-type.html: an IP address */
function networkAgent({ agent }: ExecuteJob) {
  return agent === undefined ? {} : { network: { address: agent.remoteAddress, type: '2' } }
}

/** The Agent, with the channel and addresses of the message; `forwardedFor` is the client's claim. */
function agentEntity({ agent }: ExecuteJob): readonly object[] {
  if (agent === undefined) return []
  const { reference, display: _, ...hints } = agent
  const detail = Object.entries(hints).flatMap(([type, valueString]) =>
    valueString === '' ? [] : [{ type, valueString }],
  )
  return [{ what: { reference }, detail }]
}

/** Returns undefined unless the input is a stored resource. */
function inputReference({ inputKind }: ExecuteJob, input: string | undefined): string | undefined {
  if (inputKind !== 'json' || input === undefined) return undefined
  if (!input.includes('"resourceType"') || !input.includes('"id"')) return undefined
  const value: unknown = JSON.parse(input)
  return isResource(value) && typeof value.id === 'string' ? referenceTo(value) : undefined
}

/** Returns the last 10 KiB. */
function logTail(log: string): string {
  const bytes = Buffer.from(log)
  if (bytes.length <= LOG_TAIL_BYTES) return log
  // A character cut in half at the start becomes a replacement mark, which is dropped.
  return bytes
    .subarray(-LOG_TAIL_BYTES)
    .toString()
    .replace(/^\uFFFD+/, '')
}

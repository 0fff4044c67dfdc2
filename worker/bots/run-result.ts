/** The request and the result of a run, and the messages of its failures. */

import type { RunLease } from '../../shared/access/principal.ts'
import { issue, outcome } from '../../shared/core/errors.ts'
import type { Logger } from '../../shared/core/log.ts'
import type { ExecuteJob, ExecuteReply } from '../../shared/queue/jobs.ts'
import { INTERRUPTED, interrupted } from '../../shared/queue/replies.ts'
import type { Runs } from '../../shared/queue/runs.ts'
import type {
  CallKind,
  DoneMessage,
  Failure,
  InputKind,
  Limits,
  ResultKind,
} from '../executor/messages.ts'
import { TURN_MS } from '../executor/shared-isolate.ts'

export interface BotRun {
  readonly runId: string
  readonly projectId: string
  /** Identifies the Bot; its versions differ in `codeHash`. */
  readonly botKey: string
  /** Identity and scope; an isolate is reused only for the same one. */
  readonly asker: string
  readonly code: string
  readonly codeHash: string
  readonly format: 'commonjs' | 'module'
  readonly file?: string
  readonly libraries?: readonly string[]
  readonly limits: Limits
  /** JSON of the event without its input; includes `context` {baseUrl, project, membership, profile}. */
  readonly event: string
  readonly inputKind: InputKind
  /** `bytes` are base64. */
  readonly input: string | undefined
  readonly depth?: number
  /** True: runs in a new isolate, which is not reused. */
  readonly fresh?: boolean
  /** True: may share an isolate with runs of the same bot and asker. */
  readonly concurrent?: boolean
  readonly onLog?: ((text: string) => void) | undefined
}

const FAILURES: readonly Failure[] = [
  'thrown',
  'timeout',
  'memory',
  'cpu',
  'turn',
  'result',
  'cancelled',
]

export type RunFailure = Failure | 'crash' | 'interrupted'

const KILLED: ReadonlySet<RunFailure | undefined> = new Set([
  'timeout',
  'memory',
  'cpu',
  'turn',
  'crash',
])

/** True for failures by a limit rather than by the bot. */
export function isKilled(failure: RunFailure | undefined): boolean {
  return KILLED.has(failure)
}

export interface RunResult {
  readonly status: 'ok' | 'error'
  readonly failure?: RunFailure
  readonly kind: ResultKind
  readonly body: string
  readonly log: string
  readonly cpuMs: number
  readonly wallMs: number
  readonly memoryMb?: number | undefined
  /** Calls with a possible effect: all but FHIR reads and GET fetches. */
  readonly sideEffects: number
}

export interface HostCall {
  readonly kind: CallKind
  readonly payload: string
}

interface Ended {
  readonly body?: string
  readonly log?: string
  readonly cpuMs?: number
  readonly wallMs?: number
  readonly memoryMb?: number | undefined
  readonly sideEffects?: number
}

interface Answer {
  readonly done: DoneMessage
  readonly body: string
  readonly log: string
  readonly sideEffects: number
}

/** Converts the executor's answer; a failure's body becomes an OperationOutcome with the run id. */
export function resultOf(run: BotRun, { done, body, log, sideEffects }: Answer): RunResult {
  const { status, failure, kind, cpuMs, wallMs, memoryMb } = done
  const ended = { body, log, cpuMs, wallMs, memoryMb, sideEffects }
  if (status === 'ok') return { status, kind, ...ended }
  if (failure === 'thrown' && kind === 'outcome') return { status, failure, kind, ...ended }
  return failed(run, FAILURES.find((known) => known === failure) ?? 'crash', ended)
}

/** `body` is the message of a thrown error or of a result that cannot be serialized. */
export function failed(run: BotRun, failure: RunFailure, ended: Ended = {}): RunResult {
  const [code, text] = describe(run, failure, ended.body ?? '')
  return {
    status: 'error',
    failure,
    kind: 'outcome',
    body: JSON.stringify(
      outcome(undefined, issue('error', code, text, { diagnostics: run.runId })),
    ),
    log: ended.log ?? '',
    cpuMs: ended.cpuMs ?? 0,
    wallMs: ended.wallMs ?? 0,
    memoryMb: failure === 'memory' ? run.limits.memoryMb : ended.memoryMb,
    sideEffects: ended.sideEffects ?? 0,
  }
}

function describe({ limits }: BotRun, failure: RunFailure, message: string): [string, string] {
  switch (failure) {
    case 'thrown':
      return ['invalid', message || 'Error']
    case 'timeout':
      return ['timeout', `Bot timed out after ${limits.wallMs / 1000} s`]
    case 'memory':
      return ['too-costly', `Bot exceeded memory limit of ${limits.memoryMb} MB`]
    case 'cpu':
      return ['too-costly', `Bot exceeded CPU limit of ${limits.cpuMs / 1000} s`]
    case 'turn':
      return ['too-costly', `Bot computed for more than ${TURN_MS / 1000} s at a time`]
    case 'result':
      if (message) return ['invalid', `Bot result could not be serialized: ${message}`]
      return ['too-costly', `Bot result is larger than ${megabytes(limits.resultBytes)} MB`]
    case 'crash':
      return ['exception', 'Bot executor crashed']
    case 'cancelled':
      return ['processing', 'Bot run cancelled']
    case 'interrupted':
      return ['transient', INTERRUPTED]
  }
}

function megabytes(bytes: number): number {
  return Math.round((bytes / (1024 * 1024)) * 100) / 100
}

// Refusals before the start, and replies and log lines of failures

export interface Attempt {
  /** 1-based. */
  readonly number: number
  readonly isRepeat: boolean
  /** An earlier attempt may have had an effect; undefined where only Redis has the mark. */
  readonly hadEffect?: boolean
  /** Names the attempt of a run without a row; absent for a nested run. */
  readonly id?: string
  readonly lease?: RunLease | undefined
}

export interface Done {
  readonly kind: 'done'
  readonly reply: ExecuteReply
  readonly failure: RunFailure | 'unavailable' | undefined
  readonly isLost?: boolean
  readonly audited?: Promise<void>
}

/** An ended attempt, or one whose job goes back to the queue as if not begun. */
export type Attempted = Done | { readonly kind: 'back'; readonly delayMs: number }

/** Time within which a caller gets the status URL after its wait is over. */
const SENT_AWAY_MS = 2000

export async function refusal(
  runs: Runs,
  job: ExecuteJob,
  attempt: Attempt,
): Promise<Done | undefined> {
  const { runId } = job
  if (runs.wasCancelled(runId)) return cancelled(runId)
  if (attempt.hadEffect ?? (attempt.isRepeat && (await runs.hasWritten(runId)))) {
    return { kind: 'done', reply: interrupted(runId), failure: 'interrupted' }
  }
  const now = runs.presence.now()
  const sentAwayBy = (job.waitUntil ?? Number.POSITIVE_INFINITY) + SENT_AWAY_MS
  const isUnwanted = now > sentAwayBy && !(await runs.isLate(runId))
  if (now <= job.deadline && !isUnwanted) return undefined
  return {
    kind: 'done',
    reply: ended(runId, 'timeout', 'Bot run waited too long for a worker'),
    failure: 'timeout',
  }
}

export function cancelled(runId: string): Done {
  const reply = ended(runId, 'processing', 'Bot run cancelled')
  return { kind: 'done', reply, failure: 'cancelled' }
}

function ended(runId: string, code: string, text: string): ExecuteReply {
  const body = outcome(undefined, issue('error', code, text, { diagnostics: runId }))
  return { runId, status: 'error', kind: 'outcome', body: JSON.stringify(body) }
}

/** The first two are no failures; the last one is logged with its cause. */
const SILENT: ReadonlySet<Done['failure']> = new Set([undefined, 'cancelled', 'unavailable'])

/** Omits the error text, which may contain patient data: `$runs` and the AuditEvent have it. */
export function noteFailure(log: Logger, job: ExecuteJob, failure: Done['failure'], ms: number) {
  if (SILENT.has(failure)) return
  const { runId, botId, projectId, requestId, traceId } = job
  const ids = { runId, bot: botId, project: projectId, requestId, traceId }
  log.warn({ ...ids, failure, ms }, 'A bot run failed')
}

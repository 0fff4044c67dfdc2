/** The request and the result of a run, and the words for everything that can end it. */

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
  /** The Bot; its versions differ in `codeHash`. */
  readonly botKey: string
  /** As whom it acts, and within which scope: an isolate is used again for the same one alone. */
  readonly asker: string
  readonly code: string
  readonly codeHash: string
  readonly format: 'commonjs' | 'module'
  /** Name of its file in the frames of errors. */
  readonly file?: string
  /** Names of the libraries that the code uses. */
  readonly libraries?: readonly string[]
  readonly limits: Limits
  /** JSON of the event without its input, `context` {baseUrl, project, membership, profile} included. */
  readonly event: string
  readonly inputKind: InputKind
  /** `bytes` travel as base64. */
  readonly input: string | undefined
  /** How many bots called each other to get here; none: 0. */
  readonly depth?: number
  /** True: an isolate of its own that no other run has used or will use. */
  readonly fresh?: boolean
  /** True: it may share an isolate with runs of the same bot for the same asker. */
  readonly concurrent?: boolean
  /** Hears what the run logs, while it runs and before its end. */
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

/** A limit has ended the run, not the bot itself. */
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
  /** Heap at the end, where it was measured. */
  readonly memoryMb?: number | undefined
  /** Calls that may have changed something: all but reads of FHIR and GET fetches. */
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

/** The executor's answer; a failure's body becomes an OperationOutcome with the run id. */
export function resultOf(run: BotRun, { done, body, log, sideEffects }: Answer): RunResult {
  const { status, failure, kind, cpuMs, wallMs, memoryMb } = done
  const ended = { body, log, cpuMs, wallMs, memoryMb, sideEffects }
  if (status === 'ok') return { status, kind, ...ended }
  if (failure === 'thrown' && kind === 'outcome') return { status, failure, kind, ...ended }
  return failed(run, FAILURES.find((known) => known === failure) ?? 'crash', ended)
}

/** `body` of a thrown error or of a result that has no text is the message to tell. */
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

// Refusals of runs that have their turn, the answers to their callers, and the lines of those that fail.

export interface Attempt {
  /** 1-based, as the bot sees it. */
  readonly number: number
  /** The job was started before, here or elsewhere. */
  readonly isRepeat: boolean
  /** An attempt before may have changed something; undefined where only Redis knows. */
  readonly hadEffect?: boolean
  /** Names the attempt of a run without a row; absent for one that another run has called. */
  readonly id?: string
  /** Its writes are checked against this; undefined for a run without a row. */
  readonly lease?: RunLease | undefined
}

export interface Done {
  readonly kind: 'done'
  readonly reply: ExecuteReply
  readonly failure: RunFailure | 'unavailable' | undefined
  /** Another worker has the run, which is not this one's to end. */
  readonly isLost?: boolean
  /** Settled when its AuditEvent is stored. */
  readonly audited?: Promise<void>
}

/** An attempt that has ended, or whose job goes back to the queue as if it had not begun. */
export type Attempted = Done | { readonly kind: 'back'; readonly delayMs: number }

/** A caller whose wait is over is sent away with a status URL, if it is still there, within this time. */
const SENT_AWAY_MS = 2000

/** Undefined when the run may start. */
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

/** The first two are no failures, and the last one has been logged with its cause. */
const SILENT: ReadonlySet<Done['failure']> = new Set([undefined, 'cancelled', 'unavailable'])

/** Without the text of its error, which may be about a patient: `$runs` and the AuditEvent have that. */
export function noteFailure(log: Logger, job: ExecuteJob, failure: Done['failure'], ms: number) {
  if (SILENT.has(failure)) return
  const { runId, botId, projectId, requestId, traceId } = job
  const ids = { runId, bot: botId, project: projectId, requestId, traceId }
  log.warn({ ...ids, failure, ms }, 'A bot run failed')
}

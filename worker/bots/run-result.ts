/** The request and the result of a run, and the messages of its failures. */

import type { RunLease } from '../../shared/access/principal.ts'
import { errorStatus } from '../../shared/bots/execute-reply.ts'
import type { RunAnswer } from '../../shared/bots/run-records.ts'
import { issue, outcome } from '../../shared/core/errors.ts'
import type { Logger } from '../../shared/core/log.ts'
import { isDeeper, MAX_DEPTH } from '../../shared/fhir/json.ts'
import { isObject } from '../../shared/fhir/resource.ts'
import type { ExecuteJob, ExecuteReply } from '../../shared/queue/jobs.ts'
import { INTERRUPTED, interrupted } from '../../shared/queue/replies.ts'
import type { Runs } from '../../shared/queue/runs.ts'
import {
  type CallKind,
  type CodeMessage,
  type DoneMessage,
  FAILURES,
  type Failure,
  type InputKind,
  type Limits,
} from '../executor/messages.ts'
import { TURN_MS } from '../executor/shared-isolate.ts'

export interface BotRun {
  readonly runId: string
  readonly projectId: string
  /** Identifies the Bot; its versions differ in `codeHash`. */
  readonly botKey: string
  /** Identity and scope; an isolate is reused only for the same one. */
  readonly identity: string
  readonly code: string
  readonly codeHash: string
  readonly format: CodeMessage['format']
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
  /** True: may share an isolate with runs of the same bot and identity. */
  readonly concurrent?: boolean
  readonly onLog?: ((text: string) => void) | undefined
}

/** `returned`: the bot returned an outcome that reports an error. */
export type RunFailure = Failure | 'returned' | 'crash' | 'interrupted'

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

export interface RunResult extends Omit<DoneMessage, 't' | 'run' | 'failure'> {
  readonly failure?: RunFailure
  readonly body: string
  /** HTTP status of a `returned` outcome. */
  readonly httpStatus?: number
  readonly log: string
}

/** The end of a run as its executor reports it. */
export interface DoneRun {
  readonly t: 'done'
  readonly message: DoneMessage
  readonly body: string
  readonly log: string
}

export interface HostCall {
  readonly kind: CallKind
  readonly payload: string
}

/** Converts the executor's answer; a failure's body becomes an OperationOutcome with the run id. */
export function toRunResult(
  run: BotRun,
  { message: { t: _, run: __, failure, ...done }, body, log }: DoneRun,
): RunResult {
  const result = { ...done, body, log }
  try {
    const outcome = done.kind === 'outcome' ? readOutcome(body) : undefined
    if (done.status === 'ok') {
      const httpStatus = outcome && errorStatus(outcome)
      if (httpStatus === undefined) return result
      return { ...result, status: 'error', failure: 'returned', httpStatus }
    }
    if (failure === 'thrown' && outcome !== undefined) return { ...result, failure }
  } catch {
    // The bot has run: without a result, it would run again.
    return failed(run, 'result', { ...result, body: 'the OperationOutcome cannot be read' })
  }
  return failed(run, FAILURES.find((known) => known === failure) ?? 'crash', result)
}

/** Errors: no object, as `toJSON` may give, or one that is too deep to be stored. */
function readOutcome(body: string): Readonly<Record<string, unknown>> {
  const value: unknown = JSON.parse(body)
  if (!isObject(value) || isDeeper(value, MAX_DEPTH)) throw new Error('Not an outcome')
  return value
}

/** `body` is the message of a thrown error or of a result that cannot be serialized. */
export function failed(
  run: BotRun,
  failure: RunFailure,
  ended: Partial<RunResult> = {},
): RunResult {
  const [code, text] = describe(run, failure, ended.body ?? '')
  return {
    log: '',
    cpuMs: 0,
    wallMs: 0,
    ...ended,
    status: 'error',
    failure,
    kind: 'outcome',
    body: outcomeText(run.runId, code, text),
    memoryMb: failure === 'memory' ? run.limits.memoryMb : ended.memoryMb,
  }
}

function describe({ limits }: BotRun, failure: RunFailure, message: string): [string, string] {
  switch (failure) {
    case 'thrown':
    case 'returned':
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

/** `cleaned` redacts secrets. */
export function toRunAnswer(
  { kind, body }: Pick<RunResult, 'kind' | 'body'>,
  failure: RunFailure | undefined,
  cleaned: (text: string) => string,
): RunAnswer {
  return { status: failure ?? 'ok', kind, body: cleaned(body) }
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
const DETACH_MS = 2000

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
  const detachedBy = (job.waitUntil ?? Number.POSITIVE_INFINITY) + DETACH_MS
  const isUnwanted = now > detachedBy && !(await runs.isLate(runId))
  if (now <= job.deadline && !isUnwanted) return undefined
  return endedBy(runId, 'timeout', 'timeout', 'Bot run waited too long for a worker')
}

export function cancelled(runId: string): Done {
  return endedBy(runId, 'cancelled', 'processing', 'Bot run cancelled')
}

function endedBy(runId: string, failure: RunFailure, code: string, text: string): Done {
  const body = outcomeText(runId, code, text)
  return { kind: 'done', reply: { runId, status: 'error', kind: 'outcome', body }, failure }
}

function outcomeText(runId: string, code: string, text: string): string {
  return JSON.stringify(outcome(undefined, issue('error', code, text, { diagnostics: runId })))
}

/** Not logged here: success, cancellation, and `unavailable`, which is logged with its cause. */
const SILENT: ReadonlySet<Done['failure']> = new Set([undefined, 'cancelled', 'unavailable'])

/** Omits the error text, which may contain patient data: `$runs` and the AuditEvent have it. */
export function noteFailure(log: Logger, job: ExecuteJob, failure: Done['failure'], ms: number) {
  if (SILENT.has(failure)) return
  const { runId, botId, projectId, requestId, traceId } = job
  const ids = { runId, bot: botId, project: projectId, requestId, traceId }
  log.warn({ ...ids, failure, ms }, 'A bot run failed')
}

/**
 * Messages between worker and executor; bracketed names are the parts of the frame. `run` and `call` are numbers per
 * pipe.
 */

export type InputKind = 'text' | 'json' | 'form' | 'hl7' | 'bytes' | 'none'

export const RESULT_KINDS = ['undefined', 'json', 'string', 'hl7', 'outcome'] as const
export type ResultKind = (typeof RESULT_KINDS)[number]

/** Why a run ended without a result, as known to the executor. */
export type Failure = 'thrown' | 'timeout' | 'memory' | 'cpu' | 'turn' | 'result' | 'cancelled'

export const CALL_KINDS = ['fhir', 'fetch', 'token'] as const
export type CallKind = (typeof CALL_KINDS)[number]

export interface Limits {
  readonly wallMs: number
  readonly cpuMs: number
  readonly memoryMb: number
  readonly resultBytes: number
  readonly logBytes: number
}

/** [source]: precedes the first code that uses it on this pipe. */
interface LibraryMessage {
  readonly t: 'library'
  readonly name: string
}

export interface CodeMessage {
  readonly t: 'code'
  readonly hash: string
  readonly format: 'commonjs' | 'module'
  readonly file: string
  /** Names of the libraries that it uses. */
  readonly libraries: readonly string[]
}

interface ForgetMessage {
  readonly t: 'forget'
  readonly hash: string
}

/** [event, input]; `input` is missing when there is none. */
export interface RunMessage {
  readonly t: 'run'
  readonly run: number
  readonly bot: string
  readonly asker: string
  readonly hash: string
  readonly inputKind: InputKind
  readonly limits: Limits
  readonly fresh: boolean
  /** May share an isolate with runs of its bot and membership. */
  readonly concurrent: boolean
  /** Send `log` messages for a live listener. */
  readonly follow: boolean
}

/** [text]: result of a host call; `ok` false rejects the call with the text. */
export interface ReplyMessage {
  readonly t: 'reply'
  readonly run: number
  readonly call: number
  readonly ok: boolean
  /** No call of the run has had a possible effect so far. */
  readonly mayBeginAnew: boolean
}

interface CancelMessage {
  readonly t: 'cancel'
  readonly run: number
}

export type ToExecutor =
  | LibraryMessage
  | CodeMessage
  | ForgetMessage
  | RunMessage
  | ReplyMessage
  | CancelMessage

/** [payload] */
export interface CallMessage {
  readonly t: 'call'
  readonly run: number
  readonly call: number
  readonly kind: CallKind
}

/** [body, log]; the body of a failure is an OperationOutcome (`kind` outcome) or a message. */
export interface DoneMessage {
  readonly t: 'done'
  readonly run: number
  readonly status: 'ok' | 'error'
  readonly failure?: Failure
  readonly kind: ResultKind
  readonly cpuMs: number
  readonly wallMs: number
  /** Heap in use; the last measurement for a short run. */
  readonly memoryMb?: number | undefined
}

/** [text]: new log of a followed run; all of it precedes `done`. */
interface LogMessage {
  readonly t: 'log'
  readonly run: number
}

/** V8 has lost control of the isolate of this run; the process ends itself. */
interface FatalMessage {
  readonly t: 'fatal'
  readonly run: number
  readonly failure: 'memory' | 'timeout'
}

/** The shared isolate has ended; `isCleared`: because of another run. */
interface LostMessage {
  readonly t: 'lost'
  readonly run: number
  readonly isCleared: boolean
}

/** The thread of a stopped run cannot be ended; the process should end after its other runs. */
interface StuckMessage {
  readonly t: 'stuck'
  readonly run: number
}

/** The run starts or stops waiting without CPU. */
interface RestMessage {
  readonly t: 'rest'
  readonly run: number
  readonly isResting: boolean
}

/** [guest, own]: code caches, sent once before the first beat, by an executor started without. */
interface CacheMessage {
  readonly t: 'cache'
}

/** Heartbeat, each second and once at the start. */
interface BeatMessage {
  readonly t: 'beat'
  readonly isolates: number
}

export type FromExecutor =
  | CacheMessage
  | CallMessage
  | DoneMessage
  | LogMessage
  | FatalMessage
  | LostMessage
  | StuckMessage
  | RestMessage
  | BeatMessage

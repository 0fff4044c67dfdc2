/**
 * The messages between worker and executor; the texts named in brackets are the parts of the frame.
 * `run` and `call` are small numbers that mean something on one pipe only.
 */

export type InputKind = 'text' | 'json' | 'form' | 'hl7' | 'bytes' | 'none'

export const RESULT_KINDS = ['undefined', 'json', 'string', 'hl7', 'outcome'] as const
export type ResultKind = (typeof RESULT_KINDS)[number]

/** Why a run ended without a result, as far as the executor can tell. */
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

/** [code]: precedes the first run of that code on this pipe. */
export interface CodeMessage {
  readonly t: 'code'
  readonly hash: string
  readonly format: 'commonjs' | 'module'
  /** Name of its file, for the frames of its errors. */
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
  /** It may share an isolate with others of its bot and membership. */
  readonly concurrent: boolean
  /** Somebody reads the log while it grows: `log` messages tell of it. */
  readonly follow: boolean
}

/** [text]: what a host call came to; `ok` false makes the call reject with the text. */
export interface ReplyMessage {
  readonly t: 'reply'
  readonly run: number
  readonly call: number
  readonly ok: boolean
  /** No call of the run may have had an effect so far. */
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
  /** Heap in use; as last measured for a run that was too short to be worth measuring. */
  readonly memoryMb?: number | undefined
}

/** [text]: the log of a followed run since the last of these; all of it is sent before the run is done. */
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

/** The isolate that the run shared has ended, and the run with it; `isCleared`: by the fault of another. */
interface LostMessage {
  readonly t: 'lost'
  readonly run: number
  readonly isCleared: boolean
}

/** The thread of a run that was stopped cannot be ended; the process should be, once its other runs are over. */
interface StuckMessage {
  readonly t: 'stuck'
  readonly run: number
}

/** The run waits for a host call or a timer and uses no CPU; or it does so no longer. */
interface RestMessage {
  readonly t: 'rest'
  readonly run: number
  readonly isResting: boolean
}

/** [guest, own]: code caches, said once, before the first beat, by an executor that was given none. */
interface CacheMessage {
  readonly t: 'cache'
}

/** Each second, and once at the start: the event loop of the executor turns. */
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

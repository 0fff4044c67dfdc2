/** The interface between an isolate and its executor: its runs, and their ends. */
import type ivm from 'isolated-vm'
import type { BotCode } from './bot-code.ts'
import type { FollowedLog } from './followed-log.ts'
import type { GuestCode } from './guest-code.ts'
import type { CallKind, DoneMessage, RunMessage } from './messages.ts'
import type { ProcessorShare } from './processor-share.ts'

export interface IsolatePort {
  readonly ivm: typeof ivm
  /** Set before the first run. */
  guest: GuestCode
  readonly share: ProcessorShare
  /** Has `watch` of the isolate called often, until that answers false. */
  watch(isolate: Watched): void
  call(run: number, call: number, kind: CallKind, payload: string): void
  log(run: number, text: string): void
  fatal(run: number, failure: 'memory' | 'timeout'): void
  /** A thread still runs though its isolate was disposed of. */
  stuck(run: number): void
  /** Tells when a run begins or ends to wait without using CPU. */
  rest(run: number, isResting: boolean): void
}

/** An isolate as the executor sees it that looks after it while code may run there. */
export interface Watched {
  watch(): boolean
}

export interface RunEnd {
  /** The isolate was lost by the fault of another run, or nobody knows whose. */
  readonly lostBy?: 'another' | 'unknown'
  /** It was begun on the executor's thread and took too long; nothing of it has come out. */
  readonly isTooLong?: true
  readonly message: Omit<DoneMessage, 't' | 'run'>
  readonly body: string
  readonly log: string
  /** For a followed run: the part of its log that was not sent yet. */
  readonly unsent: string
}

export interface BotRun {
  readonly message: RunMessage
  readonly code: BotCode
  readonly event: string
  readonly input: string | undefined
}

export interface ActiveRun {
  readonly run: number
  readonly message: RunMessage
  readonly startedAt: number
  /** Time inside the isolate when its processor time was last counted. */
  countedNs: bigint
  readonly timers: Map<number, NodeJS.Timeout>
  readonly deadline: NodeJS.Timeout
  readonly end: (end: RunEnd) => void
  /** Length of the payload by number of the call. */
  readonly calls: Map<number, number>
  made: number
  readonly followed: FollowedLog | undefined
  seenCpuMs: number
  isResting: boolean
  isWatchedSoon: boolean
}

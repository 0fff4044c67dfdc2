/** The interface between an isolate and its executor: its runs, and their ends. */
import type ivm from 'isolated-vm'
import type { GuestCode } from './guest-code.ts'
import type { CallKind, DoneMessage } from './messages.ts'
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
  readonly message: Omit<DoneMessage, 't' | 'run'>
  readonly body: string
  readonly log: string
  /** For a followed run: the part of its log that was not sent yet. */
  readonly unsent: string
}

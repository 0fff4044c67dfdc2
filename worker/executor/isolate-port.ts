/** The interface between an isolate and its executor: its runs, and their ends. */
import { type BotCode, HERE_MS } from './bot-code.ts'
import type { CallKind, DoneMessage, RunMessage } from './messages.ts'
import type { Code, Engine } from './sandbox.ts'

export interface IsolatePort {
  readonly engine: Engine
  /** Set before the first run. */
  glue: Code
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
  /** It took too long on the executor's thread, and has had no effect yet: it may begin anew. */
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
  countedMs: number
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
  /** Nothing of it was done on another thread so far; one that may still be at work there would have to be waited for. */
  isHere: boolean
  /** How long it may still be at work there. */
  hereMs: number
}

type Begun = Pick<ActiveRun, 'countedMs' | 'deadline' | 'end' | 'followed' | 'isHere'>

export function activeRun(message: RunMessage, begun: Begun): ActiveRun {
  return {
    ...begun,
    run: message.run,
    message,
    startedAt: performance.now(),
    timers: new Map(),
    calls: new Map(),
    made: 0,
    seenCpuMs: 0,
    isResting: false,
    isWatchedSoon: false,
    hereMs: HERE_MS,
  }
}

const MAX_IN_FLIGHT = 32
const MAX_LENGTH_IN_FLIGHT = 16 * 1024 * 1024
export const MAX_CALLS = 10_000
export const MAX_TIMERS = 100

/** Notes a call of such a length; false beyond bounds that the glue keeps, too: they hold against one that was tricked. */
export function admitCall(active: ActiveRun, call: number, length: number): boolean {
  if (active.calls.size >= MAX_IN_FLIGHT || ++active.made > MAX_CALLS) return false
  const inFlight = active.calls.values().reduce((sum, one) => sum + one, length)
  if (inFlight > MAX_LENGTH_IN_FLIGHT) return false
  active.calls.set(call, length)
  return true
}

/**
 * How much of the time that isolates were at work they had a processor. Isolated-vm 7.0.1 counts the time for which
 * code is entered, so a run that others keep from the processor would use up its CPU limit by waiting. The process
 * knows what all of its threads have used: each isolate gets its part of that.
 */
export class ProcessorShare {
  #usedMs = 0
  #hereMs = 0
  /** Share of a millisecond of entered code that ran on a core. */
  value = 1

  /** The next `measure` counts from now. */
  restart(): void {
    this.#usedMs = usedMs()
    this.#hereMs = 0
    this.value = 1
  }

  /** Counts an entry that was made on the executor's own thread. */
  enter(ms: number): void {
    this.#hereMs += ms
  }

  /** `elsewhereMs` is what all isolates were entered for on other threads since the last time. */
  measure(elsewhereMs: number): void {
    const now = usedMs()
    const enteredMs = elsewhereMs + this.#hereMs
    if (enteredMs > 0) this.value = Math.min(1, (now - this.#usedMs) / enteredMs)
    this.#usedMs = now
    this.#hereMs = 0
  }
}

function usedMs(): number {
  const { user, system } = process.cpuUsage()
  return (user + system) / 1000
}

/** The log of a run that somebody reads while it grows: read now and then, and answered by its new lines. */

export interface FollowedLog {
  /** Called often while the run is under way. */
  look(): void
  /** Returns the part of the whole log that was not sent yet. */
  rest(log: string): string
}

const EVERY_MS = 250

/** `ask` gives the whole log, or rejects when its isolate has ended. */
export function followLog(ask: () => Promise<unknown>, tell: (text: string) => void): FollowedLog {
  let sent = ''
  let sentAt = performance.now()
  let isOver = false

  async function tellNews(): Promise<void> {
    const log = await ask()
    if (isOver || typeof log !== 'string') return
    tell(newLines(sent, log))
    sent = log
    sentAt = performance.now()
  }

  return {
    look() {
      if (performance.now() - sentAt < EVERY_MS) return
      // A busy isolate answers when it comes to rest, so one question at a time is enough.
      sentAt = Number.POSITIVE_INFINITY
      // Its end is reported otherwise.
      tellNews().catch(() => {})
    },
    rest(log) {
      isOver = true
      return newLines(sent, log)
    },
  }
}

/** Returns what a log has more than before; its middle may have been left out meanwhile. */
function newLines(before: string, log: string): string {
  if (log.startsWith(before)) return log.slice(before.length)
  const last = before.slice(before.lastIndexOf('\n', before.length - 2) + 1)
  const at = log.lastIndexOf(last)
  return at < 0 ? log : log.slice(at + last.length)
}

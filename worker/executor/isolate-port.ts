/** Interface between an isolate and its executor. */
import { type BotCode, MAIN_THREAD_MS } from './bot-code.ts'
import type { CallKind, DoneMessage, RunMessage } from './messages.ts'
import type { Code, Engine } from './sandbox.ts'

export interface IsolatePort {
  readonly engine: Engine
  glue: Code
  readonly share: ProcessorShare
  /** Calls `watch` of the isolate repeatedly until it returns false. */
  watch(isolate: Watched): void
  call(run: number, call: number, kind: CallKind, payload: string): void
  log(run: number, text: string): void
  fatal(run: number, failure: 'memory' | 'timeout'): void
  stuck(run: number): void
  /** Reports the start or end of a wait without CPU. */
  idle(run: number, isIdle: boolean): void
}

export interface Watched {
  watch(): boolean
}

export interface RunEnd {
  /** The isolate was lost because of another run, or for an unknown reason. */
  readonly lostBy?: 'another' | 'unknown'
  /** Too long for the main thread and without effect: it may start again. */
  readonly isTooLong?: true
  readonly message: Omit<DoneMessage, 't' | 'run'>
  readonly body: string
  readonly log: string
  readonly unsent: string
}

export interface BotRun {
  readonly message: RunMessage
  readonly code: BotCode
  readonly event: string
  readonly input: string | undefined
}

interface Begun {
  /** Time inside the isolate when its CPU time was last counted. */
  countedMs: number
  readonly deadline: NodeJS.Timeout
  readonly end: (end: RunEnd) => void
  readonly followed: FollowedLog | undefined
  /** True while no other thread has worked on it; such a thread would have to be awaited. */
  isOnMainThread: boolean
}

export type ActiveRun = ReturnType<typeof activeRun>

export function activeRun(message: RunMessage, begun: Begun) {
  return {
    ...begun,
    run: message.run,
    message,
    startedAt: performance.now(),
    timers: new Map<number, NodeJS.Timeout>(),
    calls: new Map<number, number>(),
    made: 0,
    seenCpuMs: 0,
    isIdle: false,
    isWatchedSoon: false,
    /** Remaining time on the main thread. */
    mainThreadMs: MAIN_THREAD_MS,
  }
}

const MAX_IN_FLIGHT = 32
const MAX_LENGTH_IN_FLIGHT = 16 * 1024 * 1024
export const MAX_CALLS = 10_000
export const MAX_TIMERS = 100

/** Calls that have limits of bytes instead. */
const UNCOUNTED: ReadonlySet<string> = new Set(['body', 'stream'])

interface AdmittedCall {
  readonly id: number
  readonly kind: string
  readonly length: number
}

/** Admits a call; false beyond the glue's own bounds, checked again here because bot code may have tricked the glue. */
export function admitCall(active: ActiveRun, { id, kind, length }: AdmittedCall): boolean {
  if (!UNCOUNTED.has(kind)) active.made++
  if (active.calls.size >= MAX_IN_FLIGHT || active.made > MAX_CALLS) return false
  const inFlight = active.calls.values().reduce((sum, one) => sum + one, length)
  if (inFlight > MAX_LENGTH_IN_FLIGHT) return false
  active.calls.set(id, length)
  return true
}

/**
 * Estimates CPU time. Isolated-vm 7.0.1 counts the time for which code is entered, so a run starved of CPU would use up
 * its CPU limit by waiting. Each isolate gets its share of the CPU time of the process.
 */
export class ProcessorShare {
  #usedMs = 0
  #mainThreadMs = 0
  /** CPU time per entered time. */
  value = 1

  /** Restarts the interval of the next `measure`. */
  restart(): void {
    this.#usedMs = usedMs()
    this.#mainThreadMs = 0
    this.value = 1
  }

  enter(ms: number): void {
    this.#mainThreadMs += ms
  }

  /** `elsewhereMs`: time for which isolates were entered on other threads since the last call. */
  measure(elsewhereMs: number): void {
    const now = usedMs()
    const enteredMs = elsewhereMs + this.#mainThreadMs
    if (enteredMs > 0) this.value = Math.min(1, (now - this.#usedMs) / enteredMs)
    this.#usedMs = now
    this.#mainThreadMs = 0
  }
}

function usedMs(): number {
  const { user, system } = process.cpuUsage()
  return (user + system) / 1000
}

/** A log with a live listener, polled for new lines. */
export interface FollowedLog {
  look(): void
  /** Returns the unsent part of the whole log. */
  rest(log: string): string
}

const EVERY_MS = 250

/** `ask` returns the whole log, or rejects when its isolate has ended. */
export function followLog(
  ask: () => Promise<unknown>,
  report: (text: string) => void,
): FollowedLog {
  let sent = ''
  let sentAt = performance.now()
  let isOver = false

  async function reportNews(): Promise<void> {
    const log = await ask()
    if (isOver || typeof log !== 'string') return
    report(newLines(sent, log))
    sent = log
    sentAt = performance.now()
  }

  return {
    look() {
      if (performance.now() - sentAt < EVERY_MS) return
      // A busy isolate answers when idle, so one request at a time is enough.
      sentAt = Number.POSITIVE_INFINITY
      reportNews().catch(() => {})
    },
    rest(log) {
      isOver = true
      return newLines(sent, log)
    },
  }
}

/** Returns the lines added since `before`; the middle of the log may have been cut. */
function newLines(before: string, log: string): string {
  if (log.startsWith(before)) return log.slice(before.length)
  const last = before.slice(before.lastIndexOf('\n', before.length - 2) + 1)
  const at = log.lastIndexOf(last)
  return at < 0 ? log : log.slice(at + last.length)
}

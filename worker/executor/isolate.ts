/**
 * One isolate, built for a bot version and membership and reused by consecutive runs. It is disposed of after any
 * failure by V8 or a limit, and by the rules of warm-isolates.ts.
 */
import { type BotCode, MAIN_THREAD_MS } from './bot-code.ts'
import type { ActiveRun, BotRun, IsolatePort, RunEnd, Watched } from './isolate-port.ts'
import { activeRun, admitCall, type FollowedLog, followLog, MAX_TIMERS } from './isolate-port.ts'
import { CALL_KINDS, type Failure, RESULT_KINDS, type ReplyMessage } from './messages.ts'
import { answerCryptoCall, answerSyncCall } from './node-calls.ts'
import { type Context, type Copied, type Isolate, isolateStack } from './sandbox.ts'
import { type IsolateContext, type SharedIsolate, TURN_MS } from './shared-isolate.ts'

/** Time for a timed-out run to hand over its log. */
const LOG_GRACE_MS = 150
const STUCK_MS = 1000
/** Shorter runs skip the heap measurement, which would add to their cost. */
const WORTH_MEASURING_CPU_MS = 3
const MEASURING_MS = 25
/** A waiting run with less CPU since the last look counts as idle. */
const IDLE_CPU_MS = 0.5
/** A run with a longer timer is checked soon after: it most likely waits, which frees its slot. */
const LONG_TIMER_MS = 10
const SOON_MS = 1

export class BotIsolate implements Watched, IsolateContext {
  runs = 0
  idleSince = 0
  readonly #port: IsolatePort
  readonly #shared: SharedIsolate | undefined
  readonly #isolate: Isolate
  readonly #context: Context
  lastHeapMb: number | undefined
  #isLoaded = false
  #isDropped = false
  #isReleased = false
  #active: ActiveRun | undefined
  #lastCpuMs = 0
  #sentOnMainThread: unknown[][] = []
  readonly #spend = (ms: number) => {
    this.#lastCpuMs += ms
  }

  /** With `shared`, a context of that isolate. */
  constructor(port: IsolatePort, memoryMb: number, shared?: SharedIsolate) {
    this.#port = port
    this.#shared = shared
    shared?.join(this)
    const onFatal = (failure: 'memory' | 'timeout') => port.fatal(this.runNumber, failure)
    this.#isolate = shared?.isolate ?? port.engine.openIsolate({ memoryMb, onFatal })
    this.#context = this.#isolate.openContext(port.glue, {
      send: (...message) => this.#onSent(message),
      sendSync: (...message) => void this.#sentOnMainThread.push(message),
      ask: (kind, question) => this.#answer(kind, question),
    })
  }

  get isUsable(): boolean {
    return this.#isLoaded && !this.#isGone
  }

  get runNumber(): number {
    return this.#active?.run ?? 0
  }

  onLost(fault: Failure | 'another' | 'unknown'): void {
    this.#isDropped = true
    if (fault !== 'another' && fault !== 'unknown') this.stop(fault)
    else {
      const message = { status: 'error', kind: 'undefined', cpuMs: this.#cpuMs() } as const
      this.#end(message, '', '', { lostBy: fault })
    }
  }

  onInterrupted(): void {
    // At the deadline another path ends the run.
    if (this.#remainingMs() > 1) this.stop('turn')
  }

  get #isGone(): boolean {
    return this.#isDropped || this.#isolate.isDisposed
  }

  /** `onEnd` may be called synchronously. */
  run({ message, code, event, input }: BotRun, onEnd: (end: RunEnd) => void): void {
    const { wallMs, resultBytes, logBytes } = message.limits
    this.#lastCpuMs = 0
    this.#active = activeRun(message, {
      countedMs: this.#isolate.enteredMs,
      deadline: setTimeout(() => void this.#onDeadline(), wallMs),
      end: onEnd,
      followed: message.follow ? this.#follow(message.run) : undefined,
      isOnMainThread:
        this.#isLoaded && !this.#shared && !message.follow && code.shortRuns.areTheRule,
    })
    const begin = [message.run, event, message.inputKind, input, resultBytes, logBytes]
    if (this.#active.isOnMainThread) this.#enterOnMainThread(this.#active, 'begin', begin)
    else this.#reenter('begin', ...begin)
    if (!this.#isLoaded) void this.#load(code, message.run)
  }

  /** Enters on the main thread. If that takes too long, output is discarded and the run starts again on another thread. */
  #enterOnMainThread(active: ActiveRun, what: string, args: Copied[]): void {
    this.#sentOnMainThread = []
    const beganAt = performance.now()
    try {
      this.#context.callSync(Math.ceil(active.mainThreadMs), `${what} here`, ...args)
    } catch {
      this.dispose()
      this.#end({ status: 'error', kind: 'undefined', cpuMs: 0 }, '', '', { isTooLong: true })
      return
    }
    const ms = performance.now() - beganAt
    active.mainThreadMs -= ms
    this.#port.share.enter(ms)
    for (const message of this.#sentOnMainThread) this.#onSent(message)
    // No work is left: a run with a longer timer is idle at once.
    if (this.#active && (!active.isWatchedSoon || this.watch())) this.#port.watch(this)
    active.isWatchedSoon = false
  }

  #continue(active: ActiveRun, what: string, ...args: Copied[]): void {
    // A call in flight may have an effect, and its answer would go to the next attempt.
    active.isOnMainThread &&= active.calls.size === 0 && active.mainThreadMs > MAIN_THREAD_MS / 2
    if (active.isOnMainThread) this.#enterOnMainThread(active, what, args)
    else this.#reenter(what, ...args)
  }

  /** Delivers the answer of a host call; dropped after the end of its run. */
  reply({ run, call, ok, mayBeginAnew }: Omit<ReplyMessage, 't'>, text: string): void {
    const active = this.#active
    if (active?.run !== run || !active.calls.delete(call)) return
    active.isOnMainThread &&= mayBeginAnew
    this.#continue(active, 'settle', run, call, ok, text)
  }

  stop(failure: Failure, log = ''): void {
    const cpuMs = this.#cpuMs()
    if (!this.#shared && !this.#isolate.isDisposed) this.#reportStuckThread()
    this.dispose()
    this.#end({ status: 'error', failure, kind: 'undefined', cpuMs }, '', log)
  }

  /** Polls conditions without events. Returns whether to poll again soon: false for a run that only waits. */
  watch(): boolean {
    const active = this.#active
    if (!active) return false
    this.#shared?.check()
    if (this.#isolate.isDisposed) this.stop('memory')
    const cpuMs = this.#cpuMs()
    if (cpuMs > active.message.limits.cpuMs) this.stop('cpu')
    if (this.#active !== active) return false
    active.followed?.look()
    const isWaiting = active.calls.size > 0 || active.timers.size > 0
    const isIdle = isWaiting && cpuMs - active.seenCpuMs < IDLE_CPU_MS
    active.seenCpuMs = cpuMs
    if (isIdle !== active.isIdle) {
      active.isIdle = isIdle
      this.#port.idle(active.run, isIdle)
    }
    return !isIdle || active.followed !== undefined || this.#shared?.isBusy === true
  }

  #follow(run: number): FollowedLog {
    return followLog(
      () => this.#context.call(LOG_GRACE_MS, 'log', run),
      (text) => this.#port.log(run, text),
    )
  }

  async heapMb(): Promise<number> {
    this.lastHeapMb = await this.#isolate.heapMb()
    return this.lastHeapMb
  }

  makeGlueCache(): Promise<string> {
    return this.#isolate.makeCache(this.#port.glue)
  }

  /** True after the first run and after CPU-heavy ones. */
  isWorthMeasuring(cpuMs: number): boolean {
    const isWorthIt = cpuMs >= WORTH_MEASURING_CPU_MS || this.lastHeapMb === undefined
    return isWorthIt && !this.#isolate.isDisposed
  }

  /** Returns the last known heap when a measurement takes too long. */
  async heapMbSoon(): Promise<number | undefined> {
    const late = Promise.withResolvers<undefined>()
    const timer = setTimeout(late.resolve, MEASURING_MS, undefined)
    const measured = this.heapMb().catch(() => undefined)
    const heapMb = await Promise.race([measured, late.promise])
    clearTimeout(timer)
    return heapMb
  }

  dispose(): void {
    if (!this.#shared) {
      this.#isolate.dispose()
      return
    }
    this.#isDropped = true
    if (this.#isReleased) return
    this.#isReleased = true
    this.#context.release()
    this.#shared.leave(this)
  }

  async #load(code: BotCode, run: number): Promise<void> {
    const load = () => code.load(this.#isolate, this.#context, this.#turnMs())
    const error = await (this.#shared
      ? this.#shared.enter(this, load, this.#spend)
      : load().catch((reason: unknown) => reason))
    if (error === undefined || this.#active?.run !== run) return
    if (this.#isolate.isDisposed) this.#shared ? this.#shared.check() : this.stop('memory')
    // Unhandled rejections arrive here, too; otherwise the deadline ends the run.
    else if (!this.#isLoaded && this.#remainingMs() > 1) this.#failLoading(error)
  }

  // Isolated-vm builds this error from primitive copies, so reading it runs no bot code.
  #failLoading(error: unknown): void {
    const cpuMs = this.#cpuMs()
    const message = error instanceof Error ? error.message : 'Bot could not be loaded'
    const log =
      error instanceof Error ? `${new Date().toISOString()} ERROR ${isolateStack(error)}\n` : ''
    this.#end({ status: 'error', failure: 'thrown', kind: 'string', cpuMs }, message, log)
  }

  #remainingMs(): number {
    if (!this.#active) return 1
    const { startedAt, message } = this.#active
    return Math.max(1, Math.ceil(startedAt + message.limits.wallMs - performance.now()))
  }

  /** Returns the limit on continuous work. */
  #turnMs(): number {
    const remainingMs = this.#remainingMs()
    return this.#shared ? Math.min(TURN_MS, remainingMs) : remainingMs
  }

  // A waiting handler hands over its log, as does a busy one just interrupted by its entry timeout. Others lose it.
  async #onDeadline(): Promise<void> {
    const run = this.#active?.run
    const log = this.#context.call(LOG_GRACE_MS, 'log', run).catch(() => '')
    const late = new Promise<string>((resolve) => setTimeout(resolve, LOG_GRACE_MS, ''))
    const text = await Promise.race([log, late])
    if (this.#active?.run === run) this.stop('timeout', typeof text === 'string' ? text : '')
  }

  // Native code (filling an array, multiplying a BigInt) may ignore interrupts for long. Queued work fails once the
  // thread has left the isolate.
  #reportStuckThread(): void {
    const run = this.#active?.run ?? 0
    const late = setTimeout(() => this.#port.stuck(run), STUCK_MS)
    const settle = () => clearTimeout(late)
    this.#context.call(1, 'log', 0).then(settle, settle)
  }

  #onSent(message: readonly unknown[]): void {
    const [what, run, first, second, third, fourth] = message
    const active = this.#active
    if (!active || run !== active.run) return
    if (what === 'done') this.#onDone(String(first), String(second), String(third), String(fourth))
    else if (what === 'call') this.#onCall(active, Number(first), String(second), String(third))
    else if (what === 'loaded') this.#isLoaded = true
    else if (what === 'timer') this.#setTimer(active, Number(first), Number(second))
    else if (what === 'untimer') this.#clearTimer(active, Number(first))
  }

  #onDone(failure: string, kind: string, body: string, log: string): void {
    const cpuMs = this.#cpuMs()
    const resultKind = RESULT_KINDS.find((known) => known === kind) ?? 'undefined'
    const known = failure === 'result' ? 'result' : 'thrown'
    const failed = failure === '' ? {} : ({ failure: known } as const)
    const status = failure === '' ? 'ok' : 'error'
    this.#end({ status, ...failed, kind: resultKind, cpuMs }, body, log)
  }

  #onCall(active: ActiveRun, call: number, kind: string, payload: string): void {
    const known = CALL_KINDS.find((one) => one === kind)
    if (!admitCall(active, { id: call, kind, length: payload.length })) return
    if (kind === 'crypto') void this.#answerLater(active, call, payload)
    else if (known) this.#port.call(active.run, call, known, payload)
    else this.#reenter('settle', active.run, call, false, `Unknown call ${kind.slice(0, 100)}`)
  }

  /** Work of this process for a run counts as the run's CPU time. */
  #answer(kind: unknown, question: unknown): string {
    const beganAt = performance.now()
    const answer = answerSyncCall(kind, question)
    this.#count(performance.now() - beganAt)
    return answer
  }

  async #answerLater(active: ActiveRun, call: number, payload: string): Promise<void> {
    const { text, ms } = await answerCryptoCall(payload, () => this.#active === active)
    if (this.#active !== active) return
    this.#count(ms)
    this.reply({ run: active.run, call, ok: true, mayBeginAnew: true }, text)
  }

  #count(ms: number): void {
    this.#spend(ms * this.#port.share.value)
  }

  #setTimer(active: ActiveRun, id: number, delayMs: number): void {
    if (active.timers.size >= MAX_TIMERS || active.timers.has(id)) return
    const fire = () => {
      active.timers.delete(id)
      this.#continue(active, 'fire', active.run, id)
    }
    active.timers.set(id, setTimeout(fire, delayMs))
    if (delayMs >= LONG_TIMER_MS) this.#watchSoon(active)
  }

  #watchSoon(active: ActiveRun): void {
    if (active.isIdle || active.isWatchedSoon) return
    active.isWatchedSoon = true
    active.seenCpuMs = this.#cpuMs()
    if (active.isOnMainThread) return
    setTimeout(() => {
      active.isWatchedSoon = false
      if (this.#active === active) this.watch()
    }, SOON_MS)
  }

  #clearTimer(active: ActiveRun, id: number): void {
    clearTimeout(active.timers.get(id))
    active.timers.delete(id)
  }

  #reenter(what: string, ...args: Copied[]): void {
    if (this.#isGone) return
    if (this.#active) this.#active.isOnMainThread = false
    this.#port.watch(this)
    const timeout = this.#turnMs()
    if (!this.#shared) this.#context.send(timeout, what, ...args)
    else {
      const entry = () => this.#context.call(timeout, what, ...args)
      void this.#shared.enter(this, entry, this.#spend)
    }
  }

  /** True while no other thread uses it. */
  get isOnMainThread(): boolean {
    return this.#active?.isOnMainThread === true
  }

  /** Time entered since CPU time was last counted. */
  get uncountedMs(): number {
    if (!this.#active || this.#shared || this.#isolate.isDisposed) return 0
    return this.#isolate.enteredMs - this.#active.countedMs
  }

  #cpuMs(): number {
    if (this.#active && !this.#shared && !this.#isolate.isDisposed) {
      this.#lastCpuMs += this.uncountedMs * this.#port.share.value
      this.#active.countedMs = this.#isolate.enteredMs
    }
    return this.#lastCpuMs
  }

  #end(
    message: Omit<RunEnd['message'], 'wallMs'>,
    body: string,
    log: string,
    loss: Pick<RunEnd, 'lostBy' | 'isTooLong'> = {},
  ): void {
    const active = this.#active
    if (!active) return
    this.#active = undefined
    this.runs++
    this.idleSince = Date.now()
    clearTimeout(active.deadline)
    for (const timer of active.timers.values()) clearTimeout(timer)
    const wallMs = performance.now() - active.startedAt
    const unsent = active.followed?.rest(log) ?? ''
    active.end({ ...loss, message: { ...message, wallMs }, body, log, unsent })
  }
}

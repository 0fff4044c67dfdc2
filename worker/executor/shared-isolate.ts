/**
 * An isolate whose contexts serve runs of one bot and membership side by side. A context has globals of its own, so a
 * run finds nothing of another; what they share is the thread and the memory. Entries are made one after the other:
 * the oldest is under way, and its run is at fault when the isolate is lost.
 */
import type { IsolatePort } from './isolate-port.ts'
import type { Failure } from './messages.ts'
import { type Isolate, isInterruption, saysDisposed } from './sandbox.ts'

/** For so long a run may keep the thread from its neighbours at a time. */
export const TURN_MS = 2000
/** How much longer one that cannot be interrupted is waited for. */
const STUCK_MS = 4000
/** A context that waits takes so much; the isolate gets it for each, beyond the limit of a run. */
const CONTEXT_MB = 1
export const MOST_CONTEXTS = 64

/** A context of the isolate, as the isolate sees it. */
export interface IsolateContext {
  /** Number of its run in the executor; 0 without one. */
  readonly runNumber: number
  /** The isolate has ended: by its own fault, by that of another, or nobody knows. */
  onLost(fault: Failure | 'another' | 'unknown'): void
  /** It was interrupted, since it took too long. */
  onInterrupted(): void
}

interface Entry {
  readonly by: IsolateContext
}

export class SharedIsolate {
  readonly isolate: Isolate
  readonly #port: IsolatePort
  readonly #inmates = new Set<IsolateContext>()
  /** Entries under way and in line, the oldest first. */
  readonly #entries = new Set<Entry>()
  /** When an entry ended last, or began after a rest. */
  #movedAt = 0
  #countedMs = 0
  #made = 0

  constructor(port: IsolatePort, memoryMb: number) {
    this.#port = port
    this.isolate = port.engine.openIsolate({
      memoryMb: memoryMb + MOST_CONTEXTS * CONTEXT_MB,
      onFatal: (failure) => port.fatal(this.#head?.runNumber ?? 0, failure),
    })
  }

  /** A context that goes is not replaced: what it leaves behind would fill the memory of its neighbours. */
  get hasRoom(): boolean {
    return this.#made < MOST_CONTEXTS && !this.isolate.isDisposed
  }

  get isBusy(): boolean {
    return this.#entries.size > 0
  }

  join(inmate: IsolateContext): void {
    this.#made++
    this.#inmates.add(inmate)
  }

  /** The last one takes the isolate along. */
  leave(inmate: IsolateContext): void {
    this.#inmates.delete(inmate)
    if (this.#inmates.size === 0) this.isolate.dispose()
  }

  /** Answers what it was rejected with, undefined otherwise. `spent` hears the processor time of the entry. */
  async enter(
    by: IsolateContext,
    work: () => Promise<unknown>,
    spent: (ms: number) => void,
  ): Promise<unknown> {
    if (this.#entries.size === 0) this.#movedAt = performance.now()
    const entry = { by }
    this.#entries.add(entry)
    try {
      await work()
      return undefined
    } catch (error) {
      // Only V8 ends an isolate; a message alone may be of a bot's making.
      if (this.isolate.isDisposed && saysDisposed(error)) this.lose(by, 'memory')
      else if (isInterruption(error)) by.onInterrupted()
      return error
    } finally {
      this.#entries.delete(entry)
      this.#movedAt = performance.now()
      spent(this.#spentMs())
    }
  }

  /** Called often: an entry that cannot be interrupted costs its run, and the neighbours another attempt elsewhere. */
  check(): void {
    if (this.isolate.isDisposed) {
      // A run at fault would have heard of it.
      this.lose(undefined, 'memory')
      return
    }
    const head = this.#head
    if (head === undefined || performance.now() - this.#movedAt < TURN_MS + STUCK_MS) return
    this.#port.stuck(head.runNumber)
    this.lose(head, 'turn')
  }

  /** Ends it for all; `guilty` is whose fault it was, where that is known. */
  lose(guilty: IsolateContext | undefined, failure: Failure): void {
    this.isolate.dispose()
    for (const one of [...this.#inmates]) {
      if (guilty === undefined) one.onLost('unknown')
      else one.onLost(one === guilty ? failure : 'another')
    }
  }

  get #head(): IsolateContext | undefined {
    const [head] = this.#entries
    return head?.by
  }

  #spentMs(): number {
    if (this.isolate.isDisposed) return 0
    const before = this.#countedMs
    this.#countedMs = this.isolate.enteredMs
    return (this.#countedMs - before) * this.#port.share.value
  }
}

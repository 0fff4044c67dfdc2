/**
 * An isolate whose contexts serve concurrent runs of one bot and membership. Contexts have separate globals and share
 * the thread and memory. Entries run in order: when the isolate is lost, the oldest entry's run is at fault.
 */
import type { IsolatePort } from './isolate-port.ts'
import type { Failure } from './messages.ts'
import { type Isolate, isDisposalError, isInterruption } from './sandbox.ts'

/** Limit on blocking the thread at a time. */
export const TURN_MS = 2000
/** Grace for code that cannot be interrupted. */
const STUCK_MS = 4000
/** Memory of a waiting context, added to the isolate's limit. */
const CONTEXT_MB = 1
export const MOST_CONTEXTS = 64

export interface IsolateContext {
  /** Run number in the executor; 0 without a run. */
  readonly runNumber: number
  /** The isolate has ended: by its own fault, by another's, or for an unknown reason. */
  onLost(fault: Failure | 'another' | 'unknown'): void
  /** Interrupted after its time limit. */
  onInterrupted(): void
}

interface Entry {
  readonly by: IsolateContext
}

export class SharedIsolate {
  readonly isolate: Isolate
  readonly #port: IsolatePort
  readonly #contexts = new Set<IsolateContext>()
  /** Current and queued entries, oldest first. */
  readonly #entries = new Set<Entry>()
  /** When an entry last ended, or began on an idle isolate. */
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

  /** Contexts are not replaced: their leftovers would fill the shared memory. */
  get hasRoom(): boolean {
    return this.#made < MOST_CONTEXTS && !this.isolate.isDisposed
  }

  get isBusy(): boolean {
    return this.#entries.size > 0
  }

  join(context: IsolateContext): void {
    this.#made++
    this.#contexts.add(context)
  }

  leave(context: IsolateContext): void {
    this.#contexts.delete(context)
    if (this.#contexts.size === 0) this.isolate.dispose()
  }

  /** Returns the rejection, or undefined. Calls `spent` with the CPU time of the entry. */
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
      // Only V8 ends an isolate; a bot can forge the message alone.
      if (this.isolate.isDisposed && isDisposalError(error)) this.end(by, 'memory')
      else if (isInterruption(error)) by.onInterrupted()
      return error
    } finally {
      this.#entries.delete(entry)
      this.#movedAt = performance.now()
      spent(this.#spentMs())
    }
  }

  /** Called often: an uninterruptible entry fails its run, and the others are retried elsewhere. */
  check(): void {
    if (this.isolate.isDisposed) {
      // A guilty run would have been notified.
      this.end(undefined, 'memory')
      return
    }
    const head = this.#head
    if (head === undefined || performance.now() - this.#movedAt < TURN_MS + STUCK_MS) return
    this.#port.stuck(head.runNumber)
    this.end(head, 'turn')
  }

  /** Ends the isolate for all; `guilty` is the context at fault, if known. */
  end(guilty: IsolateContext | undefined, failure: Failure): void {
    this.isolate.dispose()
    for (const one of [...this.#contexts]) {
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

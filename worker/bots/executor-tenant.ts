/** The executor of one project, and the runs waiting for it. */
import type { ActiveRun, Ended, ExecutorProcess } from './executor-process.ts'
import { addTo } from './slots.ts'

/** Places shrink with call depth, as each run may call several bots. */
const FEWEST_CALLED = 16
/** An executor serves at most so many runs, and for so long. */
const MAX_RUNS = 100_000
const MAX_AGE_MS = 60 * 60_000

/** Assumed pause of a project that has called only once. */
const UNKNOWN_PAUSE_MS = 60_000

interface Waiting {
  readonly since: number
  readonly active: ActiveRun
  readonly resolve: (ended: Ended | undefined) => void
  /** The run waits without CPU, so its place is free. */
  isIdle: boolean
}

export class Tenant {
  executor: ExecutorProcess | undefined
  boundAt = 0
  lastUsedAt = Date.now()
  readonly draining = new Set<ExecutorProcess>()
  readonly #places: number
  readonly #waiting: Waiting[] = []
  #pauseMs = 2 * UNKNOWN_PAUSE_MS
  readonly #byDepth = new Map<number, number>()
  #active = 0

  /** `places`: runs in the executor at a time; nested bot calls have extra places. */
  constructor(places: number) {
    this.#places = places
  }

  get isIdle(): boolean {
    return this.#active === 0 && this.#waiting.length === 0
  }

  /** The pause between calls, or the current one, as a power of two in ms. */
  get pause(): number {
    return Math.floor(Math.log2(Math.max(1, this.#pauseMs, Date.now() - this.lastUsedAt)))
  }

  get waiting(): number {
    return this.#waiting.length
  }

  /** Epoch ms since when a run has waited for an executor; undefined otherwise. */
  get missesSince(): number | undefined {
    return this.executor?.isAlive ? undefined : this.#waiting[0]?.since
  }

  /** Resolves with the end of the run, or undefined when it was cancelled before its start. */
  run(active: ActiveRun): Promise<Ended | undefined> {
    const { promise, resolve } = Promise.withResolvers<Ended | undefined>()
    const waiting: Waiting = { since: Date.now(), active, resolve, isIdle: false }
    // Calls that come in pairs count the pause between pairs.
    if (this.isIdle) this.#pauseMs = Math.max(waiting.since - this.lastUsedAt, this.#pauseMs / 2)
    this.#waiting.push(waiting)
    this.pump()
    if (this.#waiting.includes(waiting)) {
      if (!this.executor?.isAlive) {
        waiting.isIdle = true
        active.onIdle(true)
      }
      const onAbort = () => {
        const at = this.#waiting.indexOf(waiting)
        if (at < 0) return
        this.#waiting.splice(at, 1)
        resolve(undefined)
      }
      active.signal.addEventListener('abort', onAbort, { once: true })
      void promise.then(() => active.signal.removeEventListener('abort', onAbort))
    }
    return promise
  }

  /** Starts waiting runs when a place or the executor becomes free. */
  pump(): void {
    for (let at = 0; at < this.#waiting.length; ) {
      const waiting = this.#waiting[at]
      if (!this.executor?.isAlive || !waiting) return
      const { depth = 0 } = waiting.active.run
      // Callers keep their places while they wait, so each depth has its own: no deadlock.
      const places = Math.max(depth && FEWEST_CALLED, Math.floor(this.#places / 2 ** depth))
      if ((this.#byDepth.get(depth) ?? 0) >= places) at++
      else {
        this.#waiting.splice(at, 1)
        void this.#start(this.executor, waiting)
      }
    }
  }

  /** Fails all waiting runs: the executor could not be started. */
  abandon(): void {
    for (const { resolve } of this.#waiting.splice(0)) resolve(undefined)
  }

  retire(): void {
    const old = this.executor
    this.executor = undefined
    if (!old) return
    this.draining.add(old)
    void old.died.then(() => this.draining.delete(old))
    if (old.active.size === 0) old.kill({ cause: 'closed' })
  }

  async #start(executor: ExecutorProcess, { active, resolve, isIdle }: Waiting) {
    const { depth = 0 } = active.run
    this.#active++
    addTo(this.#byDepth, depth, 1)
    this.lastUsedAt = Date.now()
    if (isIdle) active.onIdle(false)
    const ended = await executor.start(active)
    this.#active--
    addTo(this.#byDepth, depth, -1)
    this.#recycle(executor)
    resolve(ended)
    this.pump()
  }

  // The allocator keeps the memory of disposed isolates; only a new process returns it.
  #recycle(executor: ExecutorProcess): void {
    if (executor !== this.executor) {
      if (executor.active.size === 0) executor.kill({ cause: 'closed' })
      return
    }
    const isOld = Date.now() - executor.startedAt > MAX_AGE_MS
    if (executor.isBloated || executor.runs >= MAX_RUNS || isOld) this.retire()
  }
}

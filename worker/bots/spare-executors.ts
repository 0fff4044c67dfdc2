/**
 * Blank executors, started before anybody needs one: a start takes about 35 ms of processor time, a bind nothing. While
 * they are taken faster than others start there are more of them: one more whenever none is ready.
 */
import type { Logger } from '../../shared/core/log.ts'
import type { ExecutorProcess } from './executor-process.ts'

const START_MS = 10_000
const MAX_ATTEMPTS = 3
const RETRY_MS = 1000
/** While many are taken there may be so many times the fewest; each takes the memory of an executor that rests. */
const MOST_TIMES = 3
/** After so long without a take the fewest are enough. */
const CALM_MS = 2000

export class Spares {
  readonly #log: Logger
  readonly #fewest: number
  readonly #start: () => ExecutorProcess
  readonly #spares: ExecutorProcess[] = []
  readonly #ready = new WeakSet<ExecutorProcess>()
  #wanted: number
  #isClosed = false
  #retry: NodeJS.Timeout | undefined
  #calm: NodeJS.Timeout | undefined

  constructor(log: Logger, fewest: number, start: () => ExecutorProcess) {
    this.#log = log
    this.#fewest = fewest
    this.#wanted = fewest
    this.#start = start
    this.#refill()
  }

  get processes(): readonly ExecutorProcess[] {
    return this.#spares
  }

  /** A blank executor, ready to run; rejects when none can be started. */
  async take(): Promise<ExecutorProcess> {
    for (let attempt = 1; ; attempt++) {
      if (this.#isClosed) throw new Error('Executors are closed')
      this.#adapt()
      const spare = this.#spares.shift() ?? this.#start()
      // The one who waits comes first.
      setImmediate(() => this.#refill())
      const timer = setTimeout(() => spare.kill({ cause: 'heartbeat' }), START_MS)
      try {
        await spare.ready
        if (spare.isAlive) return spare
      } catch (error) {
        if (attempt >= MAX_ATTEMPTS) throw error
      } finally {
        clearTimeout(timer)
      }
    }
  }

  close(): void {
    this.#isClosed = true
    clearTimeout(this.#retry)
    clearTimeout(this.#calm)
    for (const spare of this.#spares.splice(0)) spare.kill({ cause: 'closed' })
  }

  #adapt(): void {
    const isLate = !this.#spares.some((spare) => this.#ready.has(spare))
    if (isLate) this.#wanted = Math.min(this.#wanted + 1, this.#fewest * MOST_TIMES)
    clearTimeout(this.#calm)
    this.#calm = setTimeout(() => this.#shrink(), CALM_MS)
  }

  #shrink(): void {
    this.#wanted = this.#fewest
    for (const spare of this.#spares.splice(this.#fewest)) spare.kill({ cause: 'closed' })
  }

  #refill(): void {
    while (!this.#isClosed && this.#spares.length < this.#wanted && !this.#retry) {
      const spare = this.#start()
      this.#spares.push(spare)
      spare.ready.then(
        () => this.#ready.add(spare),
        (error: Error) => {
          if (this.#spares.includes(spare)) this.#log.error({ err: error.message }, 'No executor')
        },
      )
      void spare.died.then(() => this.#replace(spare))
    }
  }

  // One that dies while it waits is replaced, but not in a tight circle.
  #replace(spare: ExecutorProcess): void {
    const at = this.#spares.indexOf(spare)
    if (at < 0) return
    this.#spares.splice(at, 1)
    this.#retry ??= setTimeout(() => {
      this.#retry = undefined
      this.#refill()
    }, RETRY_MS)
  }
}

/** Blank executors started in advance. Their number grows by one whenever none is ready. */
import type { Logger } from '../../shared/core/log.ts'
import type { ExecutorProcess } from './executor-process.ts'

const START_MS = 10_000
const MAX_ATTEMPTS = 3
const RETRY_MS = 1000
/** Limit as a multiple of the minimum; each takes the memory of an idle executor. */
const MOST_TIMES = 3
/** Idle time after which the number returns to the minimum. */
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

  async take(): Promise<ExecutorProcess> {
    for (let attempt = 1; ; attempt++) {
      if (this.#isClosed) throw new Error('Executors are closed')
      this.#adapt()
      const spare = this.#spares.shift() ?? this.#start()
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

  // Replaces one that died while waiting, without a tight loop.
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

/** Blank executors, started before anybody needs one: a start takes about 100 ms, a bind nothing. */
import type { Logger } from '../../../shared/log.ts'
import type { ExecutorProcess } from './process.ts'

const START_MS = 10_000
const MAX_ATTEMPTS = 3
const RETRY_MS = 1000

export class Spares {
  readonly #log: Logger
  readonly #wanted: number
  readonly #start: () => ExecutorProcess
  readonly #spares: ExecutorProcess[] = []
  #isClosed = false
  #retry: NodeJS.Timeout | undefined

  constructor(log: Logger, wanted: number, start: () => ExecutorProcess) {
    this.#log = log
    this.#wanted = wanted
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
    for (const spare of this.#spares.splice(0)) spare.kill({ cause: 'closed' })
  }

  #refill(): void {
    while (!this.#isClosed && this.#spares.length < this.#wanted && !this.#retry) {
      const spare = this.#start()
      this.#spares.push(spare)
      spare.ready.catch((error: Error) => {
        if (!this.#isClosed) this.#log.error({ err: error.message }, 'No executor')
      })
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

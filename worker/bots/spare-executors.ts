/** Blank executors started in advance. */
import type { Logger } from '../../shared/core/log.ts'
import type { ExecutorProcess } from './executor-process.ts'

const START_MS = 10_000
const MAX_ATTEMPTS = 3
const RETRY_MS = 1000
/** How long executors beyond the usual number are kept. */
const EXTRA_MS = 60_000

export class Spares {
  readonly #log: Logger
  readonly #count: number
  readonly #start: () => ExecutorProcess
  readonly #spares: ExecutorProcess[] = []
  #isClosed = false
  #retry: NodeJS.Timeout | undefined
  readonly #extra: NodeJS.Timeout

  /** Begins with `first` executors if those are more than `count`, which are kept from then on. */
  constructor(log: Logger, count: number, first: number, start: () => ExecutorProcess) {
    this.#log = log
    this.#count = count
    this.#start = start
    this.#refill(Math.max(first, count))
    this.#extra = setTimeout(() => this.#end(this.#spares.splice(count)), EXTRA_MS)
  }

  get processes(): readonly ExecutorProcess[] {
    return this.#spares
  }

  async take(): Promise<ExecutorProcess> {
    for (let attempt = 1; ; attempt++) {
      if (this.#isClosed) throw new Error('Executors are closed')
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
    clearTimeout(this.#extra)
    this.#end(this.#spares.splice(0))
  }

  #end(spares: readonly ExecutorProcess[]): void {
    for (const spare of spares) spare.kill({ cause: 'closed' })
  }

  #refill(count = this.#count): void {
    while (!this.#isClosed && this.#spares.length < count && !this.#retry) {
      const spare = this.#start()
      this.#spares.push(spare)
      spare.ready.catch((error: Error) => {
        if (this.#spares.includes(spare)) this.#log.error({ err: error.message }, 'No executor')
      })
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

/** Order and back-pressure of a socket's messages. */

interface Source {
  pause(): void
  resume(): void
}

interface Limits {
  readonly messages: number
  readonly bytes: number
}

/**
 * Messages with the same key are handled one after another, in their order; those of different keys concurrently. Past
 * a limit of unfinished messages the source pauses.
 */
export class Flow {
  readonly #source: Source
  readonly #limits: Limits
  readonly #last = new Map<string, Promise<void>>()
  #messages = 0
  #bytes = 0
  #isPaused = false
  #isStopped = false

  constructor(source: Source, limits: Limits) {
    this.#source = source
    this.#limits = limits
  }

  get isPaused(): boolean {
    return this.#isPaused
  }

  /** Runs `work`, which must not reject, after `ready` and the messages before it. */
  add(key: string, bytes: number, ready: Promise<void>, work: () => Promise<void>): void {
    this.#count(1, bytes)
    const before = this.#last.get(key)
    const done = Promise.all([before, ready])
      .then(work)
      .finally(() => {
        if (this.#last.get(key) === done) this.#last.delete(key)
        this.#count(-1, -bytes)
      })
    this.#last.set(key, done)
  }

  /** Takes no further messages, and resolves when all are finished. */
  async stop(): Promise<void> {
    this.#isStopped = true
    this.#source.pause()
    await this.finished()
  }

  /** Resolves when all messages so far are finished. */
  async finished(): Promise<void> {
    await Promise.all(this.#last.values())
  }

  #count(messages: number, bytes: number): void {
    this.#messages += messages
    this.#bytes += bytes
    const isFull = this.#messages >= this.#limits.messages || this.#bytes >= this.#limits.bytes
    if (this.#isStopped || isFull === this.#isPaused) return
    this.#isPaused = isFull
    if (isFull) this.#source.pause()
    else this.#source.resume()
  }
}

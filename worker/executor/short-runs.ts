/**
 * Runs of a bot version that are known to be short begin on the executor's own thread: handing one to a thread of its
 * isolate and back wakes several, which costs more than such a run. One that turns out to be longer is begun again on
 * a thread of its own, in another isolate, and nothing of it has come out before.
 */

/** How long the executor's thread may be kept; hardly a beat is late by it. */
export const HERE_MS = 20
const SHORT_MS = 2
const FEWEST_SHORT = 20
const MOST_SHORT = 100_000

export class ShortRuns {
  #inARow = 0
  #wanted = FEWEST_SHORT

  /** True when the next one will be short, too, as far as one can tell. */
  get areTheRule(): boolean {
    return this.#inARow >= this.#wanted
  }

  note(cpuMs: number): void {
    this.#inARow = cpuMs <= SHORT_MS ? this.#inARow + 1 : 0
  }

  /** One was begun here and took too long: it takes twice as many in a row from now on. */
  refute(): void {
    this.#inARow = 0
    this.#wanted = Math.min(MOST_SHORT, this.#wanted * 2)
  }
}

/**
 * Long work in slices of a few milliseconds: other requests get their turns of the event loop in between.
 * Work is counted in values of a list, so that a slice is short wherever the clock is coarse.
 */
import { setImmediate as nextTurn } from 'node:timers/promises'

const SLICE_MS = 5
const SLICE_WORK = 2_000

export class TimeSlicer {
  #work = 0
  #began = performance.now()
  #last: Promise<void> = Promise.resolve()

  spend(work: number): void {
    this.#work += work
  }

  /** A slice begins: others had their turns while a statement ran. */
  begin(): void {
    this.#work = 0
    this.#began = performance.now()
  }

  get isUsedUp(): boolean {
    return this.#work > SLICE_WORK || performance.now() - this.#began > SLICE_MS
  }

  /** Gives others a turn. Several that wait go on one after the other, each in a turn of its own. */
  async rest(): Promise<void> {
    this.#last = this.#last.then(() => nextTurn())
    await this.#last
    this.begin()
  }

  /** Counts work and waits where the slice is used up. */
  spendAndYield(work: number): Promise<void> | undefined {
    this.#work += work
    return this.isUsedUp ? this.rest() : undefined
  }
}

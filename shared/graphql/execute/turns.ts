/** Splits long work into slices of a few milliseconds. Work is counted in list values: clocks may be coarse. */
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

  /** Starts a slice after the turns that others had during a statement. */
  begin(): void {
    this.#work = 0
    this.#began = performance.now()
  }

  get isUsedUp(): boolean {
    return this.#work > SLICE_WORK || performance.now() - this.#began > SLICE_MS
  }

  /** Yields. Several waiters resume one per turn. */
  async rest(): Promise<void> {
    this.#last = this.#last.then(() => nextTurn())
    await this.#last
    this.begin()
  }

  /** Counts work; yields when the slice is used up. */
  spendAndYield(work: number): Promise<void> | undefined {
    this.#work += work
    return this.isUsedUp ? this.rest() : undefined
  }
}

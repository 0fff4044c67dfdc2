/**
 * Yields the event loop. Hundreds of requests, or of replies in one chunk, may arrive in one turn, and long work has
 * many steps: both let timers, sockets and other requests run in between.
 */

/** Short enough that nobody notices, long enough that yielding costs little next to the work. */
const BUDGET_MS = 5
/** Work is counted, too, so that a slice is short wherever the clock is coarse. */
const BUDGET_WORK = 2_000

let waiting = 0
let beganAt: number | undefined
let isGiven = false

/** Resolves in one of the next turns, in the order of the calls. */
export function nextTurn(): Promise<void> {
  waiting++
  return new Promise((resolve) => setImmediate(attempt, resolve))
}

/** Undefined while this turn is young and no caller waits, otherwise `nextTurn()`. */
export function yieldTurn(): Promise<void> | undefined {
  if (waiting > 0 || isGiven || !isYoung()) return nextTurn()
  // Other callers in this callback would be served behind it, before the clock is read again.
  isGiven = true
  queueMicrotask(endOfCallback)
  return undefined
}

function endOfCallback(): void {
  isGiven = false
}

/** Resolves behind all that has arrived by now, read from its socket or not. */
export async function yieldAfterPendingIo(): Promise<void> {
  // Timers come before sockets, immediates after them.
  await new Promise((resolve) => setImmediate(resolve))
  await yieldTurn()
}

// An immediate each: what one has resolved is done before the next is looked at.
function attempt(resolve: () => void): void {
  if (!isYoung()) {
    setImmediate(attempt, resolve)
    return
  }
  waiting--
  resolve()
}

function isYoung(): boolean {
  const now = performance.now()
  if (beganAt === undefined) {
    beganAt = now
    setImmediate(() => {
      beganAt = undefined
    })
  }
  return now - beganAt < BUDGET_MS
}

/** Divides work whose steps are too small to look at the clock for each, and that decides itself where to stop. */
export class TimeSlicer {
  #work = 0
  #began = performance.now()
  #last: Promise<void> = Promise.resolve()

  /** Counts work, in values of a list. */
  spend(work: number): void {
    this.#work += work
  }

  /** Begins a slice: others had their turns while a statement ran. */
  begin(): void {
    this.#work = 0
    this.#began = performance.now()
  }

  get isUsedUp(): boolean {
    return this.#work > BUDGET_WORK || performance.now() - this.#began > BUDGET_MS
  }

  /** Several that rest go on one after the other, each in a turn of its own. */
  async rest(): Promise<void> {
    this.#last = this.#last.then(nextTurn)
    await this.#last
    this.begin()
  }

  /** Counts work and rests where the slice is used up. */
  spendAndYield(work: number): Promise<void> | undefined {
    this.#work += work
    return this.isUsedUp ? this.rest() : undefined
  }
}

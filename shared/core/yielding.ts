/**
 * Yields the event loop, so that timers, sockets and other requests run between the steps of long work and between
 * the hundreds of requests or replies that may arrive in one turn.
 */

/** Short enough to be unnoticeable, long enough to make yielding cheap next to the work. */
const BUDGET_MS = 5
/** Limits work, too, so that slices stay short on a coarse clock. */
const BUDGET_WORK = 2_000

let waiting = 0
let beganAt: number | undefined
let isGiven = false

/** Resolves in a later turn, in the order of the calls. */
export function nextTurn(): Promise<void> {
  waiting++
  return new Promise((resolve) => setImmediate(attempt, resolve))
}

/** Returns undefined while this turn is young and no caller waits, otherwise `nextTurn()`. */
export function yieldTurn(): Promise<void> | undefined {
  if (waiting > 0 || isGiven || !isYoung()) return nextTurn()
  // Other callers in this callback must queue after it until the clock is read again.
  isGiven = true
  queueMicrotask(endOfCallback)
  return undefined
}

function endOfCallback(): void {
  isGiven = false
}

/** Resolves after all input that has arrived so far, even if not yet read from its socket. */
export async function yieldAfterPendingIo(): Promise<void> {
  // Timers come before sockets, immediates after them.
  await new Promise((resolve) => setImmediate(resolve))
  await yieldTurn()
}

// One immediate each: work resolved by one finishes before the next is considered.
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

/** Slices work whose steps are too small for reading the clock each time, and which chooses its own yield points. */
export class TimeSlicer {
  #work = 0
  #began = performance.now()
  #last: Promise<void> = Promise.resolve()

  /** Counts work, in values of a list. */
  spend(work: number): void {
    this.#work += work
  }

  /** Starts a slice: other work ran during the statement. */
  begin(): void {
    this.#work = 0
    this.#began = performance.now()
  }

  get isUsedUp(): boolean {
    return this.#work > BUDGET_WORK || performance.now() - this.#began > BUDGET_MS
  }

  /** Resumes concurrent callers one by one, each in its own turn. */
  async rest(): Promise<void> {
    this.#last = this.#last.then(nextTurn)
    await this.#last
    this.begin()
  }

  /** Counts work and yields when the slice is used up. */
  spendAndYield(work: number): Promise<void> | undefined {
    this.#work += work
    return this.isUsedUp ? this.rest() : undefined
  }
}

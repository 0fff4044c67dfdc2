/** Cooperative yielding: handling all requests of one event loop turn at once would delay timers and other callers. */

/** Unnoticeable as a delay, long enough to amortize the yield. */
const BUDGET_MS = 5

let waiting = 0
let beganAt: number | undefined
let isGiven = false

/** Resolves at once while the turn is within budget and has no waiters; otherwise in a later turn, in FIFO order. */
export async function yieldTurn(): Promise<void> {
  await yieldTurnIfNeeded()
}

/** Like `yieldTurn`, but returns undefined instead of a resolved promise. */
export function yieldTurnIfNeeded(): Promise<void> | undefined {
  if (waiting > 0 || isGiven || !isYoung()) {
    waiting++
    return new Promise((resolve) => setImmediate(attempt, resolve))
  }
  // Other callers in this callback would run before the clock is read again.
  isGiven = true
  queueMicrotask(endOfCallback)
  return undefined
}

function endOfCallback(): void {
  isGiven = false
}

/** Resolves after all pending I/O events. */
export async function yieldAfterPendingIo(): Promise<void> {
  // Timers run before sockets, immediates after them.
  await new Promise((resolve) => setImmediate(resolve))
  await yieldTurn()
}

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

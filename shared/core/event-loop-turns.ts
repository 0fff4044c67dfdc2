/**
 * Turns of the event loop. Hundreds of requests, or of replies in one chunk, may arrive in one turn, and what is
 * done for all of them at once keeps timers and everybody else waiting; so each asks for its turn.
 */

/** Short enough that nobody notices, long enough that waiting costs little beside the work. */
const BUDGET_MS = 5

let waiting = 0
let beganAt: number | undefined
let isGiven = false

/** Resolves at once while the turn is young and nobody waits, else in one of the next, in the order of asking. */
export async function yieldTurn(): Promise<void> {
  await yieldTurnIfNeeded()
}

/** As `yieldTurn`; undefined in place of a promise that resolves at once. */
export function yieldTurnIfNeeded(): Promise<void> | undefined {
  if (waiting > 0 || isGiven || !isYoung()) {
    waiting++
    return new Promise((resolve) => setImmediate(attempt, resolve))
  }
  // Other callers in this callback would be served behind it, before the clock is read again.
  isGiven = true
  queueMicrotask(endOfCallback)
  return undefined
}

function endOfCallback(): void {
  isGiven = false
}

/** Resolves behind all that has come by now, read from its socket or not. */
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

/** Retries of work that loses races. */
import { setTimeout as delay } from 'node:timers/promises'
import { RaceLost, TransactionConflict } from './errors.ts'

/** Returned by work that lost a race and may succeed on the new state. */
export const LOST = Symbol('lost race')

const ATTEMPTS = 9
const PAUSED = 3
const PAUSE_MS = 50

interface Retry {
  readonly attempts?: number
  /** PostgreSQL aborted the whole transaction, so only its owner can retry. */
  readonly inTransaction?: boolean
}

/** Repeats `work` when it returns LOST or PostgreSQL aborts the transaction in favour of another. Errors: 409. */
export async function retryOnConflict<T>(
  work: () => Promise<T | typeof LOST>,
  { attempts = ATTEMPTS, inTransaction = false }: Retry = {},
): Promise<T> {
  let paused = 0
  for (let attempt = 1; attempt <= attempts; attempt++) {
    try {
      const done = await work()
      if (done !== LOST) return done
    } catch (error) {
      if (inTransaction || !(error instanceof TransactionConflict)) throw error
      if (paused === PAUSED) throw new RaceLost(undefined, error.sqlState)
      await delay(PAUSE_MS * 2 ** paused++ * (0.75 + Math.random() / 2))
    }
  }
  throw new RaceLost()
}

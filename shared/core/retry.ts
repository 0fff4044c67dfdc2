/** Retries of work that loses races. */
import { setTimeout as delay } from 'node:timers/promises'
import { conflict, retriesExhausted, TransactionConflict } from './errors.ts'

/** Returned by work that has lost a race and may succeed on the new state. */
export const LOST = Symbol('lost race')

/** Writes of this process take turns, so only other processes win races: one of them at a time. */
const ATTEMPTS = 9
/** Attempts after those that PostgreSQL has ended, each after a longer pause. */
const PAUSED = 3
const PAUSE_MS = 50

interface Retry {
  readonly attempts?: number
  /** PostgreSQL has ended the whole transaction, so only what began it can try again. */
  readonly inTransaction?: boolean
}

/** Runs `work` again when it returns LOST or PostgreSQL gives way to another transaction. Errors: 409. */
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
      if (paused === PAUSED) throw retriesExhausted(error.sqlState)
      await delay(PAUSE_MS * 2 ** paused++ * (0.75 + Math.random() / 2))
    }
  }
  throw conflict('Too many concurrent changes, try again')
}

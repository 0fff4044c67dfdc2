/** How long a request has waited for PostgreSQL, for whoever asks for its timing. */
import { AsyncLocalStorage } from 'node:async_hooks'

const asked = new AsyncLocalStorage<{ ms: number }>()

/** Milliseconds that the statements of `work` took; those sent for several requests count for one of them. */
export async function databaseTimeOf<T>(
  work: () => Promise<T>,
): Promise<{ readonly result: T; readonly ms: number }> {
  const time = { ms: 0 }
  const result = await asked.run(time, work)
  return { result, ms: time.ms }
}

/** Nothing is counted when nobody asks. */
export function countDatabaseTime(startedAt: number): void {
  const time = asked.getStore()
  if (time !== undefined) time.ms += performance.now() - startedAt
}

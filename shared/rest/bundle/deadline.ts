/**
 * The wall time of a batch or transaction. The signal of its request aborts then, which cancels searches, GraphQL and
 * runs of bots; a write ends within the time of its statement.
 */
import { HttpError, serverTimeout, tooCostly } from '../../errors.ts'
import type { ResponseEntry } from '../../fhir/bundle.ts'
import type { Interaction } from '../../request/request.ts'
import type { Step } from './identities.ts'

/** Nobody waits for what was accepted to be done later, so it may take its time: `late` never aborts. */
export async function withDeadline<T>(
  outer: Interaction,
  work: (inner: Interaction, late: AbortSignal) => Promise<T>,
): Promise<T> {
  const { request, services } = outer
  const late = new AbortController()
  if (request.mayWait !== undefined) return await work(outer, late.signal)
  const timer = setTimeout(() => late.abort(serverTimeout()), services.config.batchTimeoutMs)
  const signals = [late.signal, ...(request.signal === undefined ? [] : [request.signal])]
  try {
    const signal = AbortSignal.any(signals)
    return await work({ ...outer, request: { ...request, signal } }, late.signal)
  } finally {
    clearTimeout(timer)
  }
}

/** Throws why a request is not to go on: an accepted one was cancelled, or its time is over. */
export function requireWanted({ request }: Interaction): void {
  if (request.signal?.reason instanceof HttpError) throw request.signal.reason
}

export interface AnswerRoom {
  /** Errors: 400 too-costly once an answer had no room. */
  require(): void
  /** The answer of an entry. Errors: 400 too-costly when it has no room. */
  fill(step: Step, response: ResponseEntry): ResponseEntry
}

export function createAnswerRoom(maxBytes: number): AnswerRoom {
  let left = maxBytes
  const require = () => {
    if (left < 0) throw tooCostly(`The entries of a bundle may read ${maxBytes} bytes`)
  }
  return {
    require,
    fill({ identity }, response) {
      if (identity === undefined) left -= response.resource?.length ?? 0
      require()
      return response
    },
  }
}

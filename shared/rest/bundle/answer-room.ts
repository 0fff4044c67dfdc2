/**
 * The size of what the entries of a bundle read: an entry of 50 bytes may ask for 16 MB, and there may be ten
 * thousand of them. Answers to writes are about as large as what was sent, and do not count.
 */
import { tooCostly } from '../../errors.ts'
import type { ResponseEntry } from '../../fhir/bundle.ts'
import type { Step } from './identities.ts'

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

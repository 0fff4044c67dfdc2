/** A storage that counts what it could not do, for metrics. */
import { HttpError } from '../../errors.ts'
import type { Storage } from './storage.ts'

export function counted(storage: Storage): Storage {
  let failures = 0
  const counting = async <T>(work: Promise<T>, isFault = (_: unknown) => true): Promise<T> => {
    try {
      return await work
    } catch (error) {
      const isRefusal = error instanceof HttpError && error.status < 500
      if (!isRefusal && isFault(error)) failures += 1
      throw error
    }
  }
  const { sign } = storage
  return {
    get failures() {
      return failures
    },
    put(key, source) {
      const watched = watch(source)
      return counting(storage.put(key, watched.chunks), () => !watched.hasFailed())
    },
    get: (key, range) => counting(storage.get(key, range)),
    ...(sign && { sign: (key, seconds, headers) => counting(sign(key, seconds, headers)) }),
    delete: (key) => counting(storage.delete(key)),
    removeAbandoned: (before) => counting(storage.removeAbandoned(before)),
    check: () => counting(storage.check()),
    close: () => storage.close(),
  }
}

/** Whether it is the source that fails: a caller that goes away is no fault of the storage. */
function watch(source: AsyncIterable<Uint8Array>) {
  let failed = false
  async function* chunks() {
    try {
      yield* source
    } catch (error) {
      failed = true
      throw error
    }
  }
  return { chunks: chunks(), hasFailed: () => failed }
}

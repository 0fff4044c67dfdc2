/**
 * Where the content of files goes: a folder, or a bucket of an S3 service. Slices of buffers pass it on; nothing
 * holds a whole file.
 */
import { finished, type Readable } from 'node:stream'
import { HttpError } from '../core/errors.ts'

/** Offsets of the first and the last byte. */
export interface ByteRange {
  readonly start: number
  readonly end: number
}

export interface ContentHeaders {
  readonly 'Content-Type': string
  readonly 'Content-Disposition': string
}

/** Keys are ours: lower-case letters, digits and hyphens, in parts with slashes between. */
export interface Storage {
  /**
   * Keeps all that `source` gives under a new key, or nothing when `source` or the storage fails.
   * The chunks are the storage's from then on: nobody else may read them again.
   */
  put(key: string, source: AsyncIterable<Uint8Array>): Promise<void>
  /** The caller reads the stream or destroys it. Errors: 404 when it is not there. */
  get(key: string, range?: ByteRange): Promise<Readable>
  /**
   * An address that anybody may read the content at for a while, answered with these headers. Undefined unless
   * the storage was opened with `presigned`.
   */
  readonly sign?: (key: string, seconds: number, headers: ContentHeaders) => Promise<string>
  /** Idempotent. */
  delete(key: string): Promise<void>
  /** Removes what a crash has left of uploads that were begun before a time. */
  removeAbandoned(before: Date): Promise<void>
  /** Throws when nothing can be stored at present. */
  check(): Promise<void>
  /** Calls that have failed since the process started, by no fault of who called; absent where nobody counts. */
  readonly failures?: number
  close(): Promise<void>
}

/*
 * A part of a buffer, given by its bounds. To give each field of each row a Buffer of its own took longer than to
 * copy what it holds.
 */

export interface Slice {
  readonly bytes: Buffer
  readonly start: number
  readonly end: number
}

/** One that is set anew for each thing that it shows. */
export interface MovingSlice extends Slice {
  bytes: Buffer
  start: number
  end: number
}

/** All of it. */
export function toSlice(bytes: Buffer): Slice {
  return { bytes, start: 0, end: bytes.length }
}

/** The same memory. */
export function sliceToBuffer({ bytes, start, end }: Slice): Buffer {
  return bytes.subarray(start, end)
}

// A storage that counts what it could not do, for metrics.

export function withFailureCount(storage: Storage): Storage {
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

// * The chunks of a stream, as they arrive, and the release of their memory. Node's own iterator joins those that
// have gathered into larger ones; the small ones, which nobody can release, cost up to 64 MiB until V8 collects
// garbage. The stream is left as it is when the reader stops early.

/** Throws what the stream fails with, also when it is cut off. */
export async function* readChunks(stream: Readable): AsyncGenerator<Buffer> {
  const arrived: Buffer[] = []
  let end: { readonly error: Error | null | undefined } | undefined
  let wake = () => {}
  const onData = (chunk: Buffer) => {
    arrived.push(chunk)
    stream.pause()
    wake()
  }
  const stopWatching = finished(stream, { writable: false }, (error) => {
    end = { error }
    wake()
  })
  stream.on('data', onData)
  try {
    for (;;) {
      const chunk = arrived.shift()
      if (chunk !== undefined) yield chunk
      else if (end === undefined) {
        const woken = new Promise<void>((resolve) => {
          wake = resolve
        })
        stream.resume()
        await woken
      } else if (end.error) throw end.error
      else return
    }
  } finally {
    stream.off('data', onData)
    stopWatching()
    stream.pause()
  }
}

/*
 * Gives the memory of a chunk back that nobody will read again. V8 does so only when it collects garbage,
 * and lets 64 MiB of chunks gather until then: so much a download of 100 MB cost, and now it costs 10 MiB.
 */

export function release(chunk: Uint8Array): void {
  // A part of a larger buffer shares its memory with others.
  if (chunk.buffer instanceof ArrayBuffer && chunk.byteLength === chunk.buffer.byteLength) {
    chunk.buffer.transfer(0)
  }
}

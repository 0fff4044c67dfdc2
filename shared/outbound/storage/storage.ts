/** File content storage: a folder or an S3 bucket. Content is streamed, never held whole. */
import { finished, type Readable } from 'node:stream'
import { timings } from '../../core/config/waits.ts'
import { HttpError, unavailable } from '../../core/errors.ts'

export interface ByteRange {
  readonly start: number
  readonly end: number
}

export interface ContentHeaders {
  readonly 'Content-Type': string
  readonly 'Content-Disposition': string
}

/** Keys are generated here: lower-case letters, digits and hyphens, in parts separated by slashes. */
export interface Storage {
  /** Stores `source` under a new key, or nothing on failure. The caller must not read the chunks again. */
  put(key: string, source: AsyncIterable<Uint8Array>): Promise<void>
  /** The caller reads or destroys the stream. Errors: 404. */
  get(key: string, range?: ByteRange): Promise<Readable>
  /** Returns a public, expiring URL with these response headers. Undefined unless opened with `presigned`. */
  readonly sign?: (key: string, seconds: number, headers: ContentHeaders) => Promise<string>
  /** Idempotent. */
  delete(key: string): Promise<void>
  /** Removes uploads abandoned by a crash before this time. */
  removeAbandoned(before: Date): Promise<void>
  /** Throws when storage is unavailable. */
  check(): Promise<void>
  /** Failed calls since the process started, except caller errors; absent where not counted. */
  readonly failures?: number
  close(): Promise<void>
}

// A range of a buffer. Cheaper than a Buffer per field of each row.

export interface Slice {
  readonly bytes: Buffer
  readonly start: number
  readonly end: number
}

/** Updated for each item it shows. */
export interface MovingSlice extends Slice {
  bytes: Buffer
  start: number
  end: number
}

export function toSlice(bytes: Buffer): Slice {
  return { bytes, start: 0, end: bytes.length }
}

/** Shares the memory. */
export function sliceToBuffer({ bytes, start, end }: Slice): Buffer {
  return bytes.subarray(start, end)
}

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

/** Distinguishes failures of the source: a disconnected caller is not a storage failure. */
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

// Yields chunks as they arrive and releases their memory; an early stop leaves the stream intact.

/**
 * Throws the stream's error, also on a premature close; and `late()`, which destroys it, when it brings less than 64 KiB
 * in `silenceMs` of waiting.
 */
export async function* readChunks(stream: Readable, late?: () => Error): AsyncGenerator<Buffer> {
  const patience = late && createPatience(() => stream.destroy(late()))
  const arrived: Buffer[] = []
  let end: { readonly error: Error | null | undefined } | undefined
  let wake = () => {}
  const onData = (chunk: Buffer) => {
    arrived.push(chunk)
    patience?.received(chunk.length)
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
        patience?.begin()
        await woken
        patience?.end()
      } else if (end.error) throw end.error
      else return
    }
  } finally {
    stream.off('data', onData)
    stopWatching()
    stream.pause()
  }
}

const LEAST_BYTES = 64 * 1024

/** Counts only the time between `begin` and `end`. */
function createPatience(giveUp: () => void) {
  let leftMs = timings.silenceMs
  let bytes = 0
  let since = 0
  let timer: NodeJS.Timeout | undefined
  return {
    begin() {
      since = performance.now()
      timer = setTimeout(giveUp, leftMs)
    },
    end() {
      clearTimeout(timer)
      leftMs -= performance.now() - since
      if (bytes < LEAST_BYTES) return
      bytes = 0
      leftMs = timings.silenceMs
    },
    received(size: number) {
      bytes += size
    },
  }
}

/** Chunks of `get`. Errors: 503 when the storage stalls. */
export function readStored(stream: Readable): AsyncGenerator<Buffer> {
  return readChunks(stream, () => unavailable('The storage', new Error('It stalled')))
}

/** Small content of `get`. Errors: as `readStored`. */
export async function readWholeStored(stream: Readable): Promise<Buffer> {
  return Buffer.concat(await Array.fromAsync(readStored(stream)))
}

// Frees a chunk's memory, which V8 otherwise does only on garbage collection.

export function release(chunk: Uint8Array): void {
  // A slice of a larger buffer shares its memory.
  if (chunk.buffer instanceof ArrayBuffer && chunk.byteLength === chunk.buffer.byteLength) {
    chunk.buffer.transfer(0)
  }
}

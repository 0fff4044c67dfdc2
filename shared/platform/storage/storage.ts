/**
 * Where the content of files goes: a folder, or a bucket of an S3 service. Slices of buffers pass it on; nothing
 * holds a whole file.
 */
import type { Readable } from 'node:stream'

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
export function sliceOf(bytes: Buffer): Slice {
  return { bytes, start: 0, end: bytes.length }
}

/** The same memory. */
export function bufferOf({ bytes, start, end }: Slice): Buffer {
  return bytes.subarray(start, end)
}

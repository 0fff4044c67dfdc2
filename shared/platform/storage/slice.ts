/**
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

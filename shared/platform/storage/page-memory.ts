/**
 * Memory that begins on a page, as a disk needs it that is to read it by itself. Of what V8 allocates only buffers
 * that may be resized are sure to.
 */
const PAGE_BYTES = 4096

/**
 * Zeros; the bytes are rounded up to whole pages. No Buffer: of a class that extends V8's own, each array of memory that
 * may be resized gets a hidden class of its own, so that code that works on it is never compiled for good.
 */
export function allocatePages(bytes: number): Uint8Array<ArrayBuffer> {
  const length = Math.ceil(bytes / PAGE_BYTES) * PAGE_BYTES
  return new Uint8Array(new ArrayBuffer(length, { maxByteLength: length }), 0, length)
}

/** How many bytes of the chunk, from its start, are whole pages, in memory and at that place of a file. */
export function pageBytes({ buffer, byteOffset, byteLength }: Uint8Array, place: number): number {
  const isOnPages = buffer instanceof ArrayBuffer && buffer.resizable
  if (!isOnPages || byteOffset % PAGE_BYTES > 0 || place % PAGE_BYTES > 0) return 0
  return byteLength - (byteLength % PAGE_BYTES)
}

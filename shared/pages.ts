/**
 * Memory that begins on a page, as a disk needs it that is to read it by itself. Of what V8 allocates only buffers
 * that may be resized are sure to.
 */
const PAGE_BYTES = 4096

/** Zeros; the bytes are rounded up to whole pages. */
export function allocatePages(bytes: number): Buffer {
  const length = Math.ceil(bytes / PAGE_BYTES) * PAGE_BYTES
  return Buffer.from(new ArrayBuffer(length, { maxByteLength: length }), 0, length)
}

/** How many bytes of the chunk, from its start, are whole pages, in memory and at that place of a file. */
export function pageBytes({ buffer, byteOffset, byteLength }: Uint8Array, place: number): number {
  const isOnPages = buffer instanceof ArrayBuffer && buffer.resizable
  if (!isOnPages || byteOffset % PAGE_BYTES > 0 || place % PAGE_BYTES > 0) return 0
  return byteLength - (byteLength % PAGE_BYTES)
}

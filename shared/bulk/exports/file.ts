/**
 * Files of exports as they are stored: blocks of whole lines, each packed by itself and ended with a sync
 * flush, so that one after the other, between a header and a trailer, they are one member of gzip. Several
 * members would be legal too, but some clients stop after the first.
 * https://www.rfc-editor.org/rfc/rfc1952
 */
import { constants, createDeflateRaw, inflateRaw } from 'node:zlib'

/** Lines of a block, about; one that is longer is a block of its own. */
export const BLOCK_BYTES = 4 * 1024 * 1024

/** Deflate, no name, no time, unknown system. */
export const GZIP_HEADER = Buffer.from([0x1f, 0x8b, 8, 0, 0, 0, 0, 0, 0, 0xff])
/** An empty block that is the last one. */
const LAST_BLOCK = Buffer.from([3, 0])
export const GZIP_TRAILER_BYTES = LAST_BLOCK.length + 8

const { Z_SYNC_FLUSH } = constants
/** Each piece is a way to the thread pool and back: by the default of 16 KiB there were 30 of a block. */
const PIECE_BYTES = 1024 * 1024

/** In the thread pool. */
export async function packBlock(lines: Uint8Array, level: number): Promise<Buffer> {
  const packing = createDeflateRaw({ level, finishFlush: Z_SYNC_FLUSH, chunkSize: PIECE_BYTES })
  const pieces: Buffer<ArrayBuffer>[] = []
  packing.end(lines)
  for await (const piece of packing) pieces.push(piece)
  const packed = Buffer.concat(pieces)
  // Each has a MiB of its own, however little is in it, which V8 would keep until it collects garbage.
  for (const { buffer } of pieces) if (buffer.byteLength === PIECE_BYTES) buffer.transfer(0)
  return packed
}

export async function unpackBlock(packed: Buffer): Promise<Buffer> {
  const stored = storedPieces(packed)
  if (stored !== undefined) return Buffer.concat(stored)
  return new Promise((resolve, reject) => {
    const options = { finishFlush: Z_SYNC_FLUSH, chunkSize: PIECE_BYTES }
    inflateRaw(packed, options, (error, lines) => (error ? reject(error) : resolve(lines)))
  })
}

/** The most that a stored block holds, behind a header: a byte for its form, and its length twice. */
export const STORED_BYTES = 0xffff
export const STORED_HEADER_BYTES = 5

/** https://www.rfc-editor.org/rfc/rfc1951#section-3.2.4 */
export function writeStoredHeader(target: Uint8Array, at: number, length: number): void {
  const rest = STORED_BYTES - length
  target[at] = 0
  target[at + 1] = length
  target[at + 2] = length >> 8
  target[at + 3] = rest
  target[at + 4] = rest >> 8
}

/** Undefined when one of the blocks is not a stored one. */
function storedPieces(packed: Buffer): Buffer[] | undefined {
  const pieces: Buffer[] = []
  for (let at = 0; at < packed.length; ) {
    if (packed[at] !== 0) return undefined
    const start = at + STORED_HEADER_BYTES
    at = start + packed.readUInt16LE(at + 1)
    pieces.push(packed.subarray(start, at))
  }
  return pieces
}

/** `crc` and `bytes` are those of all lines. */
export function gzipTrailer(crc: number, bytes: number): Buffer {
  const trailer = Buffer.alloc(GZIP_TRAILER_BYTES)
  LAST_BLOCK.copy(trailer)
  trailer.writeUInt32LE(crc >>> 0, 2)
  trailer.writeUInt32LE(bytes % 2 ** 32, 6)
  return trailer
}

/** Storage key of a file that is one object. */
export function fileKey(projectId: string, job: string, part: number, seq: number): string {
  return `exports/${projectId}/${job}/${part}-file-${seq}`
}

/** Storage key of a block. */
export function blockKey(
  projectId: string,
  job: string,
  part: number,
  epoch: number,
  seq: number,
): string {
  return `exports/${projectId}/${job}/${part}-${epoch}-${seq}`
}

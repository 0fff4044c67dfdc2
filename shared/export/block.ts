/** Reused buffers of lines in stored form: at level 0 with deflate's block headers, so that lines are copied once. */
import { crc32 } from 'node:zlib'
import { allocatePages } from '../outbound/storage/disk.ts'
import { release, type Slice, sliceToBuffer, toSlice } from '../outbound/storage/storage.ts'
import {
  BLOCK_BYTES,
  packBlock,
  STORED_BYTES,
  STORED_HEADER_BYTES,
  writeStoredHeader,
} from './file.ts'

export interface Blocks {
  /** Fits at least this line. */
  take(first: Slice): Block
  /** Returns a block whose bytes are no longer read. */
  give(block: Block): void
  clear(): void
}

const [LINE_FEED = 10] = Buffer.from('\n')

/** `level` is zlib's; 0 stores without compression. */
export function createBlocks(level: number): Blocks {
  const rooms = new WeakMap<Block, Uint8Array>()
  const free: Uint8Array[] = []
  return {
    take(first) {
      const bytes = Math.max(BLOCK_BYTES, roomFor(first))
      const room = (bytes === BLOCK_BYTES && free.pop()) || allocatePages(bytes)
      const block = new Block(room, level)
      rooms.set(block, room)
      return block
    },
    give(block) {
      const room = rooms.get(block)
      rooms.delete(block)
      if (room?.length === BLOCK_BYTES) free.push(room)
    },
    clear() {
      for (const room of free.splice(0)) release(room)
    },
  }
}

/** Includes headers. One byte stays free, because storage frees buffers that it receives whole. */
function roomFor({ start, end }: Slice): number {
  const bytes = end - start + 1
  return bytes + STORED_HEADER_BYTES * (2 + Math.floor(bytes / STORED_BYTES)) + 1
}

export class Block {
  rows = 0
  bytes = 0
  readonly #room: Uint8Array
  readonly #level: number
  readonly #most: number
  readonly #header: number
  #at = 0
  #edge = 0

  constructor(room: Uint8Array, level: number) {
    this.#room = room
    this.#level = level
    this.#most = level === 0 ? STORED_BYTES : room.length
    this.#header = level === 0 ? STORED_HEADER_BYTES : 0
  }

  fits(line: Slice): boolean {
    return this.#at + roomFor(line) <= this.#room.length
  }

  /** Copies one line, or several with line feeds between them. */
  add({ bytes: source, start, end }: Slice, lines = 1): void {
    this.#put(source, start, end)
    this.#turn()
    this.#room[this.#at] = LINE_FEED
    this.#at += 1
    this.bytes += end - start + 1
    this.rows += lines
  }

  crc(crc: number): number {
    return this.#pieces().reduce((sum, piece) => crc32(piece, sum), crc)
  }

  /** Ends the block. The result is valid until the block is returned. */
  async pack(): Promise<Uint8Array> {
    const text = this.#room.subarray(0, this.#at)
    if (this.#level > 0) return packBlock(text, this.#level)
    for (let start = 0; start < this.#at; start += this.#most + this.#header) {
      writeStoredHeader(text, start, Math.min(this.#most, this.#at - start - this.#header))
    }
    return text
  }

  /** Makes room for a byte, after the next header if the current one is full. */
  #turn(): void {
    if (this.#at < this.#edge) return
    this.#at += this.#header
    this.#edge = this.#at + this.#most
  }

  #put(source: Buffer, start: number, end: number): void {
    for (let from = start; from < end; ) {
      this.#turn()
      const to = Math.min(end, from + this.#edge - this.#at)
      source.copy(this.#room, this.#at, from, to)
      this.#at += to - from
      from = to
    }
  }

  *#pieces(): Generator<Uint8Array> {
    const step = this.#most + this.#header
    for (let start = this.#header; start < this.#at; start += step) {
      yield this.#room.subarray(start, Math.min(start + this.#most, this.#at))
    }
  }
}

/** Joins a header and its line, so that both are written or neither. */
export function joinHeader(header: Slice, line: Slice): Slice {
  return toSlice(Buffer.concat([sliceToBuffer(header), Buffer.of(LINE_FEED), sliceToBuffer(line)]))
}

/**
 * Lines in a buffer, in the form that is stored: of level 0 they have the headers of deflate's stored blocks
 * between them, so that they are copied once. The buffers are taken again by the next blocks: what each part
 * allocated for itself had V8 go through all of its memory three times in an export of 95 MiB.
 */
import { crc32 } from 'node:zlib'
import { allocatePages } from '../storage/disk.ts'
import { release, type Slice, sliceToBuffer, toSlice } from '../storage/storage.ts'
import {
  BLOCK_BYTES,
  packBlock,
  STORED_BYTES,
  STORED_HEADER_BYTES,
  writeStoredHeader,
} from './file.ts'

export interface Blocks {
  /** Holds that line at least. */
  take(first: Slice): Block
  /** Nobody reads what it has answered any more. */
  give(block: Block): void
  /** Lets go of the memory of those that were given back. */
  clear(): void
}

const [LINE_FEED = 10] = Buffer.from('\n')

/** `level` is zlib's; 0 packs nothing. */
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

/** With headers. One byte stays free: of a buffer that it has as a whole the storage lets go. */
function roomFor({ start, end }: Slice): number {
  const bytes = end - start + 1
  return bytes + STORED_HEADER_BYTES * (2 + Math.floor(bytes / STORED_BYTES)) + 1
}

export class Block {
  /** Lines in it. */
  rows = 0
  /** Bytes of its lines. */
  bytes = 0
  readonly #room: Uint8Array
  readonly #level: number
  /** The bytes between two headers, and those of a header. */
  readonly #most: number
  readonly #header: number
  #at = 0
  #edge = 0
  #before = { bytes: 0, at: 0, edge: 0 }

  constructor(room: Uint8Array, level: number) {
    this.#room = room
    this.#level = level
    this.#most = level === 0 ? STORED_BYTES : room.length
    this.#header = level === 0 ? STORED_HEADER_BYTES : 0
  }

  fits(line: Slice): boolean {
    return this.#at + roomFor(line) <= this.#room.length
  }

  /** Copies the line, or several with line feeds between them. */
  add({ bytes: source, start, end }: Slice, lines = 1): void {
    const before = this.#before
    before.bytes = this.bytes
    before.at = this.#at
    before.edge = this.#edge
    this.#put(source, start, end)
    this.#turn()
    this.#room[this.#at] = LINE_FEED
    this.#at += 1
    this.bytes += end - start + 1
    this.rows += lines
  }

  /** Takes the last line back, once. */
  undo(): void {
    this.rows -= 1
    this.bytes = this.#before.bytes
    this.#at = this.#before.at
    this.#edge = this.#before.edge
  }

  /** Continues the checksum `crc` with its lines. */
  crc(crc: number): number {
    return this.#pieces().reduce((sum, piece) => crc32(piece, sum), crc)
  }

  /** Nothing is added any more. What is answered may be stored until the block is given back. */
  async pack(): Promise<Uint8Array> {
    const text = this.#room.subarray(0, this.#at)
    if (this.#level > 0) return packBlock(text, this.#level)
    for (let start = 0; start < this.#at; start += this.#most + this.#header) {
      writeStoredHeader(text, start, Math.min(this.#most, this.#at - start - this.#header))
    }
    return text
  }

  /** There is room for a byte: behind the next header, when one is full. */
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

/** In one piece: who goes on behind it has both, or none. */
export function lineBehind(header: Slice, line: Slice): Slice {
  return toSlice(Buffer.concat([sliceToBuffer(header), Buffer.of(LINE_FEED), sliceToBuffer(line)]))
}

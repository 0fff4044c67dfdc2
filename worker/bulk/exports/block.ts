/**
 * Lines in a buffer, in the form that is stored: of level 0 they have the headers of deflate's stored blocks
 * between them, so that they are copied once. The buffers are taken again by the next blocks: what each part
 * allocated for itself had V8 go through all of its memory three times in an export of 95 MiB. While others wait
 * blocks are written in bursts, with rests between them.
 */

import { setTimeout as delay } from 'node:timers/promises'
import { crc32 } from 'node:zlib'
import {
  BLOCK_BYTES,
  packBlock,
  STORED_BYTES,
  STORED_HEADER_BYTES,
  writeStoredHeader,
} from '../../../shared/bulk/exports/file.ts'
import { release } from '../../../shared/platform/storage/chunks.ts'
import { allocatePages } from '../../../shared/platform/storage/disk.ts'
import { bufferOf, type Slice, sliceOf } from '../../../shared/platform/storage/storage.ts'

export interface Block {
  readonly rows: number
  /** Bytes of its lines. */
  readonly bytes: number
  fits(line: Slice): boolean
  /** Copies the line, or several with line feeds between them. */
  add(line: Slice, lines?: number): void
  /** Takes the last line back, once. */
  undo(): void
  /** Continues the checksum `crc` with its lines. */
  crc(crc: number): number
  /** Nothing is added any more. What is answered may be stored until the block is given back. */
  pack(): Promise<Uint8Array>
}

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
      const block = createBlock(room, level)
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

function createBlock(room: Uint8Array, level: number): Block {
  const [most, header] = level === 0 ? [STORED_BYTES, STORED_HEADER_BYTES] : [room.length, 0]
  let rows = 0
  let bytes = 0
  let at = 0
  let edge = 0
  let bytesBefore = 0
  let atBefore = 0
  let edgeBefore = 0

  /** There is room for a byte: behind the next header, when one is full. */
  function turn(): void {
    if (at < edge) return
    at += header
    edge = at + most
  }

  function put(source: Buffer, start: number, end: number): void {
    for (let from = start; from < end; ) {
      turn()
      const to = Math.min(end, from + edge - at)
      source.copy(room, at, from, to)
      at += to - from
      from = to
    }
  }

  function* pieces(): Generator<Uint8Array> {
    for (let start = header; start < at; start += most + header) {
      yield room.subarray(start, Math.min(start + most, at))
    }
  }

  return {
    get rows() {
      return rows
    },
    get bytes() {
      return bytes
    },
    fits: (line) => at + roomFor(line) <= room.length,
    add({ bytes: source, start, end }, lines = 1) {
      bytesBefore = bytes
      atBefore = at
      edgeBefore = edge
      put(source, start, end)
      turn()
      room[at] = LINE_FEED
      at += 1
      bytes += end - start + 1
      rows += lines
    },
    undo() {
      rows -= 1
      bytes = bytesBefore
      at = atBefore
      edge = edgeBefore
    },
    crc: (crc) => pieces().reduce((sum, piece) => crc32(piece, sum), crc),
    async pack() {
      if (level > 0) return packBlock(room.subarray(0, at), level)
      for (let start = 0; start < at; start += most + header) {
        writeStoredHeader(room, start, Math.min(most, at - start - header))
      }
      return room.subarray(0, at)
    },
  }
}

/** In one piece: who goes on behind it has both, or none. */
export function lineBehind(header: Slice, line: Slice): Slice {
  return sliceOf(Buffer.concat([bufferOf(header), Buffer.of(LINE_FEED), bufferOf(line)]))
}

/*
 * Slows exports down while others wait: they go on in bursts, with rests between them. Rests must be
 * longer than it takes PostgreSQL to fill the buffers of a connection, some megabytes: after a shorter one the
 * next block is there already, and only this process has rested.
 */

const BURST_MS = 100
/** Beside each burst. */
const REST = 2
const LONGEST_REST_MS = 500
/** A look sees only callers that wait at that moment. */
const REMEMBERED_MS = 500

export interface Pace {
  /** To be awaited now and then, by all that goes on. */
  keep(): Promise<void>
  /** Others wait, or did a moment ago. */
  isAwaited(): boolean
}

/** `isBusy`: somebody waits for the processors that exports use. */
export function createPace(isBusy: () => boolean): Pace {
  let awaitedUntil = Number.NEGATIVE_INFINITY
  let begun = 0
  let resting: Promise<void> | undefined

  function isAwaited(): boolean {
    const now = performance.now()
    if (isBusy()) {
      if (now > awaitedUntil) begun = now
      awaitedUntil = now + REMEMBERED_MS
    }
    return now <= awaitedUntil
  }

  async function rest(ms: number): Promise<void> {
    await delay(Math.min(ms, LONGEST_REST_MS))
    resting = undefined
    begun = performance.now()
  }

  return {
    isAwaited,
    async keep() {
      if (isAwaited()) {
        const burst = performance.now() - begun
        if (burst > BURST_MS) resting ??= rest(burst * REST)
      }
      await resting
    },
  }
}

/**
 * Lines → blocks → storage. Three blocks are on their way at most: one is filled, one packed, one stored.
 * A block is written down when it is stored and those before it are, so that whoever takes the part over
 * goes on behind it.
 */
import { setTimeout as delay } from 'node:timers/promises'
import { crc32 } from 'node:zlib'
import type { CopySessions } from '../../shared/database-copy.ts'
import { BLOCK_BYTES, blockKey, packBlock } from '../../shared/export-file.ts'
import type { Services } from '../../shared/services.ts'
import { addBlock, type FileKind, lastFile, nameFile } from '../../shared/store/exports/files.ts'
import type { TakenPart } from '../../shared/store/exports/parts.ts'
import { uuidOf } from '../../shared/store/exports/row-id.ts'
import type { ExportMetrics } from './metrics.ts'

/** A file is followed by the next one beyond. */
const FILE_ROWS = 100_000
const FILE_BYTES = 256 * 1024 * 1024
const ON_THEIR_WAY = 2
/** Of a block that took longer somebody else has had the processor meanwhile. */
const LONGEST_REST_MS = 200
/** Rows that have arrived when no more are wanted may fill a few more. */
export const MOST_UNDER_WAY = 8

export interface ExportWriter {
  /** Copies the line; a promise: no more until then. Throws what a block has failed with. */
  add(id: Buffer, line: Buffer): Promise<void> | undefined
}

/** What a worker exports with. */
export type Exporting = Services & {
  readonly metrics: ExportMetrics
  readonly copies: CopySessions
  /** Somebody waits for a bot of this worker: half of the time is theirs. */
  isBusy(): boolean
}

/** The part is no longer this worker's. */
export class LeaseLost extends Error {}

interface File {
  readonly seq: number
  rows: number
  bytes: number
  crc: number
}

/**
 * Goes on in the file that was begun, if there is one; when `write` has ended all is stored and the file has
 * a name. Nothing is on its way to the storage any more when it answers or throws: what came there after the
 * part is given back could be missed by whoever takes the files of the export away.
 */
export async function writeFile(
  exporting: Exporting,
  taken: TakenPart,
  kind: FileKind,
  type: string,
  write: (writer: ExportWriter) => Promise<void>,
): Promise<void> {
  const { settled, end, ...writer } = await openWriter(exporting, taken, kind, type)
  try {
    await write(writer)
    await end()
  } finally {
    await settled()
  }
}

async function openWriter(
  { database, storage, metrics, isBusy }: Exporting,
  { job, part }: TakenPart,
  kind: FileKind,
  type: string,
) {
  const last = await lastFile(database, job.id, part.n)
  let file = fileAfter(last)
  let block: Buffer = Buffer.allocUnsafeSlow(BLOCK_BYTES)
  let size = 0
  let rows = 0
  let blocks = 0
  const lastId = Buffer.alloc(16)
  const free: Buffer[] = []
  const underWay = new Set<Promise<void>>()
  let written = Promise.resolve()
  let failure: { readonly reason: unknown } | undefined
  let begun = performance.now()

  async function store(lines: Buffer, at: File, seq: number, count: number, after: string) {
    const bytes = lines.length
    const { crc } = at
    const packed = await packBlock(lines)
    if (lines.buffer.byteLength === BLOCK_BYTES) free.push(Buffer.from(lines.buffer))
    const packedBytes = packed.length
    const key = blockKey(job.input.projectId, job.id, part.n, part.epoch, seq)
    await storage.put(key, chunksIn(packed))
    const block = [part.epoch, seq, bytes, packedBytes, count] as const
    const writeDown = () =>
      addBlock(database, job.id, part, { seq: at.seq, kind, type, crc }, block, after)
    return { key, writeDown, counted: () => metrics.wrote(count, bytes, packedBytes) }
  }

  /** Of what is not written down nobody knows, once the files of the export are taken away. */
  async function inOrder(
    { key, writeDown, counted }: Awaited<ReturnType<typeof store>>,
    before: Promise<void>,
  ): Promise<void> {
    const discard = () => storage.delete(key).catch(() => undefined)
    await before.catch(async (error: unknown) => {
      await discard()
      throw error
    })
    if (await writeDown()) return counted()
    await discard()
    throw new LeaseLost()
  }

  /** The block is on its way; the next one is begun. */
  function flush(): void {
    if (rows === 0) return
    const lines = block.subarray(0, size)
    file.crc = crc32(lines, file.crc)
    file.bytes += size
    file.rows += rows
    const storing = store(lines, { ...file }, blocks, rows, uuidOf(lastId))
    blocks += 1
    const before = written
    const done = storing.then((stored) => inOrder(stored, before))
    written = done
    const tracked = done.then(
      () => void underWay.delete(tracked),
      (reason: unknown) => {
        underWay.delete(tracked)
        failure ??= { reason }
      },
    )
    underWay.add(tracked)
    block = free.pop() ?? Buffer.allocUnsafeSlow(BLOCK_BYTES)
    size = 0
    rows = 0
  }

  function nextFile(): void {
    flush()
    const { seq } = file
    const before = written
    written = before.then(() => nameFile(database, job.id, part, seq))
    written.catch((reason: unknown) => {
      failure ??= { reason }
    })
    file = { seq: seq + 1, rows: 0, bytes: 0, crc: 0 }
  }

  async function room(): Promise<void> {
    if (isBusy()) await delay(Math.min(performance.now() - begun, LONGEST_REST_MS))
    while (underWay.size >= ON_THEIR_WAY) await Promise.race(underWay)
    begun = performance.now()
    if (failure !== undefined) throw failure.reason
  }

  return {
    add(id: Buffer, line: Buffer) {
      if (failure !== undefined) throw failure.reason
      const before = blocks
      const isFull = file.rows + rows >= FILE_ROWS || file.bytes + size >= FILE_BYTES
      if (isFull) nextFile()
      else if (size + line.length + 1 > block.length) flush()
      if (line.length + 1 > block.length) block = Buffer.allocUnsafeSlow(line.length + 1)
      line.copy(block, size)
      block[size + line.length] = 10
      size += line.length + 1
      rows += 1
      id.copy(lastId)
      return blocks > before || underWay.size >= ON_THEIR_WAY ? room() : undefined
    },
    async end() {
      flush()
      await written
      if (failure !== undefined) throw failure.reason
      if (file.rows > 0) await nameFile(database, job.id, part, file.seq)
    },
    async settled() {
      await Promise.allSettled([...underWay, written])
    },
  }
}

function fileAfter(last: Awaited<ReturnType<typeof lastFile>>): File {
  if (last === undefined) return { seq: 0, rows: 0, bytes: 0, crc: 0 }
  if (last.number !== null) return { seq: last.seq + 1, rows: 0, bytes: 0, crc: 0 }
  const { seq, rows, bytes, crc } = last
  return { seq, rows, bytes, crc }
}

async function* chunksIn(packed: Buffer): AsyncGenerator<Uint8Array> {
  yield packed
}

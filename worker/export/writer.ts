/**
 * Lines → blocks → storage. Three blocks of a part are on their way at most, or four: one is filled, the others are
 * packed and stored. A block is written down when it is stored and those before it are, so that whoever takes the
 * part over goes on behind it.
 */
import { setTimeout as delay } from 'node:timers/promises'
import type { CopySessions } from '../../shared/database-copy.ts'
import { blockKey } from '../../shared/export-file.ts'
import type { Services } from '../../shared/services.ts'
import type { Slice } from '../../shared/slice.ts'
import { addBlock, type FileKind, lastFile, nameFile } from '../../shared/store/exports/files.ts'
import { finishPart, type TakenPart } from '../../shared/store/exports/parts.ts'
import { ROW_ID_BYTES, uuidOf } from '../../shared/store/exports/row-id.ts'
import type { Block, Blocks } from './block.ts'
import type { ExportMetrics } from './metrics.ts'

/** A file is followed by the next one beyond. */
const FILE_ROWS = 100_000
const FILE_BYTES = 256 * 1024 * 1024
/** What is not packed takes longer to be stored than the next one to be filled; packed ones are in memory twice. */
const ON_THEIR_WAY = { plain: 3, packed: 2 }
/** Of a block that took longer somebody else has had the processor meanwhile. */
const LONGEST_REST_MS = 200
/** Rows that have arrived when no more are wanted may fill a few more. */
export const MOST_UNDER_WAY = 8

export interface ExportWriter {
  /** Copies the line; a promise: no more until then. Throws what a block has failed with. */
  add(id: Slice, line: Slice): Promise<void> | undefined
  /** Takes the last line back, once: it is in a block that is not full. */
  undo(): void
}

/** What a worker exports with. */
export type Exporting = Services & {
  readonly metrics: ExportMetrics
  readonly copies: CopySessions
  readonly blocks: Blocks
  /** Somebody waits for a bot of this worker: half of the time is theirs. */
  isBusy(): boolean
  /** There may be parts to be taken, by this worker. */
  wake(): void
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
 * Goes on in the file that was begun, if there is one; when `write` has ended all is stored, the file has a
 * name, and the part is done unless there is more to do: at the close, and where files become objects of their
 * own. Nothing is on its way to the storage any more when it answers or throws: what came there after the part
 * is given back could be missed by whoever takes the files of the export away.
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
  { database, storage, metrics, blocks, config, isBusy }: Exporting,
  { job, part }: TakenPart,
  kind: FileKind,
  type: string,
) {
  const isNew = part.epoch === 1
  const onTheirWay = ON_THEIR_WAY[config.exportCompressionLevel === 0 ? 'plain' : 'packed']
  const last = isNew ? undefined : await lastFile(database, job.id, part.n)
  let file = fileAfter(last)
  let block: Block | undefined
  let flushed = 0
  let lastId = Buffer.alloc(ROW_ID_BYTES)
  let idBefore = Buffer.alloc(ROW_ID_BYTES)
  const underWay = new Set<Promise<void>>()
  let written = Promise.resolve()
  let failure: { readonly reason: unknown } | undefined
  let begun = performance.now()

  async function store(lines: Block, at: File, seq: number, after: string, isLast: boolean) {
    const { rows, bytes } = lines
    const packed = await lines.pack()
    const packedBytes = packed.length
    const key = blockKey(job.input.projectId, job.id, part.n, part.epoch, seq)
    await storage.put(key, chunksIn(packed))
    blocks.give(lines)
    const block = [part.epoch, seq, bytes, packedBytes, rows] as const
    const file = { seq: at.seq, kind, type, crc: at.crc }
    const writeDown = () => addBlock(database, job.id, part, file, block, after, isLast)
    return { key, writeDown, counted: () => metrics.wrote(rows, bytes, packedBytes) }
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

  /** The block is on its way; the next one is begun. False when there is none. */
  function flush(isLast = false): boolean {
    if (block?.rows === 0) {
      blocks.give(block)
      block = undefined
    }
    if (block === undefined) return false
    file.crc = block.crc(file.crc)
    file.bytes += block.bytes
    file.rows += block.rows
    const storing = store(block, { ...file }, flushed, uuidOf(lastId), isLast)
    block = undefined
    flushed += 1
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
    return true
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
    while (underWay.size >= onTheirWay) await Promise.race(underWay)
    begun = performance.now()
    if (failure !== undefined) throw failure.reason
  }

  return {
    add(id: Slice, line: Slice) {
      if (failure !== undefined) throw failure.reason
      const before = flushed
      const { rows = 0, bytes = 0 } = block ?? {}
      const isFull = file.rows + rows >= FILE_ROWS || file.bytes + bytes >= FILE_BYTES
      if (isFull) nextFile()
      else if (block?.fits(line) === false) flush()
      block ??= blocks.take(line)
      block.add(line)
      ;[lastId, idBefore] = [idBefore, lastId]
      id.bytes.copy(lastId, 0, id.start, id.end)
      return flushed > before || underWay.size >= onTheirWay ? room() : undefined
    },
    undo() {
      block?.undo()
      ;[lastId, idBefore] = [idBefore, lastId]
    },
    async end() {
      const endsPart = part.kind !== 'close' && !job.input.presigned
      const isDone = flush(endsPart) && endsPart
      await written
      if (failure !== undefined) throw failure.reason
      if (isDone) return
      if (file.rows > 0) await nameFile(database, job.id, part, file.seq)
      if (endsPart && !(await finishPart(database, job.id, part))) throw new LeaseLost()
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

async function* chunksIn(packed: Uint8Array): AsyncGenerator<Uint8Array> {
  yield packed
}

/**
 * Lines → blocks → storage. Three blocks of a part are on their way at most, or four: one is filled, the others are
 * packed and stored. Blocks are written down when they are stored and those before them are, so that whoever takes
 * the part over goes on behind them. What files end with is written down together, where several are small.
 */
import { BLOCK_BYTES, blockKey } from '../../../shared/bulk/exports/file.ts'
import {
  addBlocks,
  type FileKind,
  lastFile,
  nameFile,
  type Position,
  type StoredBlock,
} from '../../../shared/bulk/exports/rows/files.ts'
import { type PartKind, ROW_ID_BYTES, uuidOf } from '../../../shared/bulk/exports/rows/jobs.ts'
import { type Ended, finishPart, type TakenPart } from '../../../shared/bulk/exports/rows/parts.ts'
import { HttpError, unavailable } from '../../../shared/errors.ts'
import type { CopySessions } from '../../../shared/platform/postgres/copy.ts'
import type { Slice } from '../../../shared/platform/storage/storage.ts'
import type { Services } from '../../../shared/services.ts'
import { LeaseLost } from '../../loop.ts'
import { type Block, type Blocks, lineBehind, type Pace } from './block.ts'
import type { ExportMetrics } from './metrics.ts'

/** A file is followed by the next one beyond. */
const FILE_LIMITS: FileLimits = { rows: 100_000, bytes: 256 * 1024 * 1024 }
/** Share of the limits beyond which a file takes no other patient, so that none is torn that fits into the next one. */
const WITH_ROOM = 0.5
/** Storing a plain block takes longer than filling the next one; packed blocks are in memory twice. */
const ON_THEIR_WAY = { plain: 3, packed: 2 }
/** Files that are small: their blocks are written down by one statement. */
const FILES_TOGETHER = 16
/** Rows that have arrived when no more are wanted may fill a few more. */
const FEW_MORE = 6

/** Blocks of a part that may be stored and not written down. */
export function mostUnderWay(kind: PartKind): number {
  const { plain: most } = ON_THEIR_WAY
  return FEW_MORE + (kind === 'shared' ? (most + 1) * FILES_TOGETHER : most)
}

export interface ExportWriter {
  /**
   * Copies the line; a promise: no more until then. Throws what a block has failed with. `header` is what goes
   * before the first line of a patient, and again at the beginning of a file that goes on with one.
   */
  add(id: Slice, line: Slice, header?: Slice, isFirst?: boolean): Promise<void> | undefined
  /** Takes the last line back, once: it is in a block that is not full. */
  undo(): void
  /** The next lines have this type, and files of their own. */
  turn(type: string): void
}

interface FileLimits {
  readonly rows: number
  readonly bytes: number
}

/** The services of a worker that exports. */
export type Exporting = Services & {
  readonly metrics: ExportMetrics
  readonly copies: CopySessions
  readonly blocks: Blocks
  readonly pace: Pace
  /** Absent: the usual ones. */
  readonly fileLimits?: FileLimits
  /** There may be parts to be taken, by this worker. */
  wake(): void
}

interface Stored extends StoredBlock {
  readonly key: string
}

interface File {
  readonly seq: number
  readonly type: string
  rows: number
  bytes: number
  crc: number
  /** It begins in the middle of the lines of a patient. */
  goesOn: boolean
}

/**
 * Goes on in the file that was begun, if there is one; when `write` has ended all is stored, the files have
 * names, and the part is done unless there is more to do: at the close, and where files become objects of their
 * own. Nothing is on its way to the storage any more when it answers or throws: what came there after the part
 * is given back could be missed by whoever takes the files of the export away.
 */
export async function writeFiles(
  exporting: Exporting,
  taken: TakenPart,
  kind: FileKind,
  type: string,
  write: (writer: ExportWriter) => Promise<void>,
): Promise<Ended | undefined> {
  const { settled, end, ...writer } = await openWriter(exporting, taken, kind, type)
  try {
    await write(writer)
    return await end()
  } finally {
    await settled()
  }
}

async function openWriter(
  { database, storage, metrics, blocks, pace, config, fileLimits = FILE_LIMITS }: Exporting,
  { job, part }: TakenPart,
  kind: FileKind,
  type: string,
) {
  const isNew = part.epoch === 1
  const onTheirWay = ON_THEIR_WAY[config.exportCompressionLevel === 0 ? 'plain' : 'packed']
  const last = isNew ? undefined : await lastFile(database, job.id, part.n)
  let file = fileAfter(last, type)
  let block: Block | undefined
  let flushed = 0
  let lastId = Buffer.alloc(ROW_ID_BYTES)
  let idBefore = Buffer.alloc(ROW_ID_BYTES)
  let together: Promise<Stored>[] = []
  let togetherBytes = 0
  const underWay = new Set<Promise<void>>()
  let position: Position = { type, after: '' }
  let written: Promise<Ended | undefined> = Promise.resolve(undefined)
  let failure: { readonly reason: unknown } | undefined

  async function store(lines: Block, at: File, seq: number, isWhole: boolean): Promise<Stored> {
    const { rows, bytes } = lines
    const packed = await lines.pack()
    const packedBytes = packed.length
    const key = blockKey(job.input.projectId, job.id, part.n, part.epoch, seq)
    await storage.put(key, chunksIn(packed)).catch(storageFailed)
    blocks.give(lines)
    return { key, file: at, block: [part.epoch, seq, bytes, packedBytes, rows], isWhole }
  }

  /** Deletes blocks without a row: the removal of an export's files would not find them. */
  async function discard(storing: readonly Promise<Stored>[]): Promise<void> {
    for (const result of await Promise.allSettled(storing)) {
      if (result.status === 'rejected') continue
      await storage.delete(result.value.key).catch(() => undefined)
    }
  }

  async function inOrder(
    storing: readonly Promise<Stored>[],
    before: Promise<unknown>,
    reached: Position,
    isLast: boolean,
  ): Promise<Ended | undefined> {
    const [stored] = await Promise.all([Promise.all(storing), before]).catch(async (reason) => {
      await discard(storing)
      throw reason
    })
    const ended = await addBlocks(database, job, part, kind, stored, reached, isLast)
    if (ended === undefined) {
      await discard(storing)
      throw new LeaseLost()
    }
    for (const { block } of stored) {
      const [, , bytes, packed, rows] = block
      metrics.wrote(rows, bytes, packed)
    }
    return isLast ? ended : undefined
  }

  /** The block is on its way; the next one is begun. False when there is none. */
  function flush(isWhole: boolean): boolean {
    if (block?.rows === 0) {
      blocks.give(block)
      block = undefined
    }
    if (block === undefined) return false
    file.crc = block.crc(file.crc)
    file.bytes += block.bytes
    file.rows += block.rows
    const storing = store(block, { ...file }, flushed, isWhole)
    position = { type: file.type, after: uuidOf(lastId) }
    togetherBytes += block.bytes
    storing.catch(fail)
    together.push(storing)
    block = undefined
    flushed += 1
    return true
  }

  /** Records the blocks since the last call once they are stored. False when there is none. */
  function writeDown(isLast = false): boolean {
    if (together.length === 0) return false
    written = inOrder(together, written, position, isLast)
    together = []
    togetherBytes = 0
    const tracked = written.then(() => undefined, fail).then(() => void underWay.delete(tracked))
    underWay.add(tracked)
    return true
  }

  function fail(reason: unknown): void {
    failure ??= { reason }
  }

  /** It is whole, with what is in the block; one that was so already when it was left has no name yet. */
  function endFile(): void {
    if (flush(true) || file.rows === 0) return
    const { seq } = file
    written = written.then(async () => {
      await nameFile(database, job.id, part, seq)
      return undefined
    })
    written.catch(fail)
  }

  function nextFile(type: string): void {
    endFile()
    const seq = file.rows > 0 ? file.seq + 1 : file.seq
    file = { ...NEW_FILE, seq, type }
    if (togetherBytes >= BLOCK_BYTES || together.length >= FILES_TOGETHER) writeDown()
  }

  /** True when the file has reached the share of its limits. */
  function holds(share: number): boolean {
    const { rows = 0, bytes = 0 } = block ?? {}
    const { rows: mostRows, bytes: mostBytes } = fileLimits
    return file.rows + rows >= share * mostRows || file.bytes + bytes >= share * mostBytes
  }

  async function room(): Promise<void> {
    await pace.keep()
    while (underWay.size >= onTheirWay) await Promise.race(underWay)
    if (failure !== undefined) throw failure.reason
  }

  return {
    add(id: Slice, line: Slice, header?: Slice, isFirst = false) {
      if (failure !== undefined) throw failure.reason
      const before = flushed
      if (holds(isFirst ? WITH_ROOM : 1)) nextFile(file.type)
      const isNew = file.rows === 0 && block === undefined
      const isHeaded = header !== undefined && (isFirst || isNew)
      if (isHeaded && !isFirst) file.goesOn = true
      const text = isHeaded ? lineBehind(header, line) : line
      if (block?.fits(text) === false) {
        flush(false)
        writeDown()
      }
      block ??= blocks.take(text)
      block.add(text, isHeaded ? 2 : 1)
      ;[lastId, idBefore] = [idBefore, lastId]
      id.bytes.copy(lastId, 0, id.start, id.end)
      return flushed > before || underWay.size >= onTheirWay ? room() : undefined
    },
    undo() {
      block?.undo()
      ;[lastId, idBefore] = [idBefore, lastId]
    },
    turn(next: string) {
      if (next !== file.type) nextFile(next)
    },
    async end() {
      const endsPart = part.kind !== 'close' && !job.input.presigned
      endFile()
      const isLast = writeDown(endsPart) && endsPart
      const ended = await written
      if (failure !== undefined) throw failure.reason
      if (isLast || !endsPart) return ended
      const last = await finishPart(database, job, part)
      if (last === undefined) throw new LeaseLost()
      return last
    },
    async settled() {
      await Promise.allSettled([...underWay, written])
      await discard(together)
    },
  }
}

function fileAfter(last: Awaited<ReturnType<typeof lastFile>>, type: string): File {
  if (last === undefined) return { ...NEW_FILE, type }
  if (last.number !== null) return { ...NEW_FILE, seq: last.seq + 1, type }
  const { seq, rows, bytes, crc, goesOn } = last
  return { seq, type, rows, bytes, crc, goesOn }
}

const NEW_FILE: Readonly<Omit<File, 'type'>> = { seq: 0, rows: 0, bytes: 0, crc: 0, goesOn: false }

async function* chunksIn(packed: Uint8Array): AsyncGenerator<Uint8Array> {
  yield packed
}

/** A storage that is full or away may have room again: the part is written then. Errors: 503. */
export function storageFailed(error: unknown): never {
  const isOwn = error instanceof HttpError || error instanceof LeaseLost
  throw isOwn ? error : unavailable('The storage', error)
}

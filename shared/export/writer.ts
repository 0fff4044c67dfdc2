/**
 * Writes lines to storage in blocks, three or four in progress. A block is recorded once all earlier ones are stored,
 * so that another worker can continue after it. Blocks of small files are recorded together.
 */

import { issue, LeaseLost } from '../core/errors.ts'
import { UUID_BYTES, uuidFromBytes } from '../core/uuid.ts'
import { endPart } from '../jobs/part-queue.ts'
import type { Slice } from '../outbound/storage/storage.ts'
import { type Block, joinHeader } from './block.ts'
import { BLOCK_BYTES, blockKey } from './file.ts'
import {
  addBlocks,
  type FileKind,
  lastFile,
  nameFile,
  type Position,
  type StoredBlock,
} from './rows/files.ts'
import { addIssues, type LineWriter, type PartKind, UNREADABLE } from './rows/jobs.ts'
import { type LeasedExportPart, PARTS, partLease } from './rows/parts.ts'
import { ExportAborted, type Exporting, type FileLimits, storageFailed } from './worker-services.ts'

const FILE_LIMITS: FileLimits = { rows: 100_000, bytes: 256 * 1024 * 1024 }
/** Share of the limits after which a file takes no further patient, so that few patients are split. */
const WITH_ROOM = 0.5
/** Storing a plain block takes longer than filling the next; compressed blocks are in memory twice. */
const ON_THEIR_WAY = { plain: 3, packed: 2 }
const FILES_TOGETHER = 16
/** Rows already received at a pause may fill a few more. */
const FEW_MORE = 6
/** Unreadable rows after which the export fails. */
const MOST_UNREADABLE = 1000

/** Maximum number of stored but unrecorded blocks of a part. */
export function mostUnderWay(kind: PartKind): number {
  const { plain: most } = ON_THEIR_WAY
  return FEW_MORE + (['shared', 'listed'].includes(kind) ? (most + 1) * FILES_TOGETHER : most)
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
  goesOn: boolean
}

/** Continues the current file, if any. On settling no upload is pending: the removal of the files could miss it. */
export async function writeFiles(
  exporting: Exporting,
  taken: LeasedExportPart,
  { kind, type }: { readonly kind: FileKind; readonly type: string },
  write: (writer: LineWriter) => Promise<void>,
): Promise<void> {
  const { job, part } = taken
  const last = part.token === 1 ? undefined : await lastFile(exporting.database, job.id, part.n)
  const record = new BlockRecord(exporting, taken, kind, type)
  const writer = new FileWriter(exporting, taken, record, fileAfter(last, type))
  try {
    await write(writer)
    await writer.end()
  } finally {
    await record.settled()
  }
}

class FileWriter implements LineWriter {
  readonly #exporting: Exporting
  readonly #taken: LeasedExportPart
  readonly #record: BlockRecord
  #file: File
  #block: Block | undefined
  readonly #lastId = Buffer.alloc(UUID_BYTES)

  constructor(exporting: Exporting, taken: LeasedExportPart, record: BlockRecord, file: File) {
    this.#exporting = exporting
    this.#taken = taken
    this.#record = record
    this.#file = file
  }

  add(id: Slice, line: Slice, header?: Slice, isFirst = false): Promise<void> | undefined {
    const record = this.#record
    record.throwFailure()
    const before = record.flushed
    if (this.#holds(isFirst ? WITH_ROOM : 1)) this.#nextFile(this.#file.type)
    const isNew = this.#file.rows === 0 && this.#block === undefined
    const isHeaded = header !== undefined && (isFirst || isNew)
    if (isHeaded && !isFirst) this.#file.goesOn = true
    const text = isHeaded ? joinHeader(header, line) : line
    if (this.#block?.fits(text) === false) {
      this.#flush(false)
      record.writeDown()
    }
    this.#block ??= this.#exporting.blocks.take(text)
    this.#block.add(text, isHeaded ? 2 : 1)
    id.bytes.copy(this.#lastId, 0, id.start, id.end)
    return record.flushed > before || record.isFull ? record.room() : undefined
  }

  turn(next: string): void {
    if (next !== this.#file.type) this.#nextFile(next)
  }

  async bad(id: Buffer, type = this.#file.type): Promise<void> {
    const diagnostics = `Row ${uuidFromBytes(id)}`
    const issues = [issue('error', UNREADABLE, `A ${type} cannot be read`, { diagnostics })]
    const count = await addIssues(this.#exporting.database, this.#taken.job.id, issues)
    if (count > MOST_UNREADABLE) throw tooManyUnreadable()
  }

  async end(): Promise<void> {
    const { job, part } = this.#taken
    this.#endFile()
    await this.#record.end(part.kind !== 'close' && !job.input.presigned)
  }

  /** Starts to store the block and begins the next. False without lines. */
  #flush(isWhole: boolean): boolean {
    const block = this.#block
    this.#block = undefined
    if (block === undefined) return false
    const file = this.#file
    file.crc = block.crc(file.crc)
    file.bytes += block.bytes
    file.rows += block.rows
    this.#record.add(block, { ...file }, isWhole, uuidFromBytes(this.#lastId))
    return true
  }

  /** Ends the file with the current block; a file that was already complete at an interruption still needs its name. */
  #endFile(): void {
    if (!this.#flush(true) && this.#file.rows > 0) this.#record.name(this.#file.seq)
  }

  #nextFile(type: string): void {
    this.#endFile()
    const { rows, seq } = this.#file
    this.#file = { ...NEW_FILE, seq: rows > 0 ? seq + 1 : seq, type }
    if (this.#record.isMuch) this.#record.writeDown()
  }

  #holds(share: number): boolean {
    const { rows = 0, bytes = 0 } = this.#block ?? {}
    const { rows: mostRows, bytes: mostBytes } = this.#exporting.fileLimits ?? FILE_LIMITS
    const file = this.#file
    return file.rows + rows >= share * mostRows || file.bytes + bytes >= share * mostBytes
  }
}

/** Stores blocks concurrently and records them in order. */
class BlockRecord {
  flushed = 0
  readonly #exporting: Exporting
  readonly #taken: LeasedExportPart
  readonly #kind: FileKind
  readonly #most: number
  readonly #underWay = new Set<Promise<void>>()
  #together: Promise<Stored>[] = []
  #togetherBytes = 0
  #position: Position
  #written = Promise.resolve()
  #failure: { readonly reason: unknown } | undefined

  constructor(exporting: Exporting, taken: LeasedExportPart, kind: FileKind, type: string) {
    this.#exporting = exporting
    this.#taken = taken
    this.#kind = kind
    this.#position = { type, after: '' }
    this.#most = ON_THEIR_WAY[exporting.config.exportCompressionLevel === 0 ? 'plain' : 'packed']
  }

  get isFull(): boolean {
    return this.#underWay.size >= this.#most
  }

  get isMuch(): boolean {
    return this.#togetherBytes >= BLOCK_BYTES || this.#together.length >= FILES_TOGETHER
  }

  throwFailure(): void {
    if (this.#failure !== undefined) throw this.#failure.reason
  }

  async room(): Promise<void> {
    await this.#exporting.pace.keep()
    while (this.isFull) await Promise.race(this.#underWay)
    this.throwFailure()
  }

  add(block: Block, file: File, isWhole: boolean, after: string): void {
    this.#position = { type: file.type, after }
    this.#togetherBytes += block.bytes
    const storing = this.#store(block, file, isWhole)
    storing.catch(this.#fail)
    this.#together.push(storing)
    this.flushed += 1
  }

  /** Records the blocks since the last call once they are stored. False without blocks. */
  writeDown(isLast = false): boolean {
    if (this.#together.length === 0) return false
    this.#written = this.#inOrder(this.#together, this.#written, isLast)
    this.#together = []
    this.#togetherBytes = 0
    const tracked = this.#written.catch(this.#fail).then(() => void this.#underWay.delete(tracked))
    this.#underWay.add(tracked)
    return true
  }

  /** Names a file once everything before it is recorded. */
  name(seq: number): void {
    const lease = partLease(this.#taken)
    this.#written = this.#written.then(() => nameFile(this.#exporting.database, lease, seq))
    this.#written.catch(this.#fail)
  }

  /** Resolves when everything is stored and recorded, and with `endsPart` the part is done. */
  async end(endsPart: boolean): Promise<void> {
    const isEnded = this.writeDown(endsPart)
    await this.#written
    this.throwFailure()
    if (isEnded || !endsPart) return
    const { database } = this.#exporting
    if (!(await endPart(database, PARTS, partLease(this.#taken)))) throw new LeaseLost()
  }

  /** Resolves when no upload is pending. */
  async settled(): Promise<void> {
    await Promise.allSettled([...this.#underWay, this.#written])
    await this.#discard(this.#together)
  }

  readonly #fail = (reason: unknown): void => {
    this.#failure ??= { reason }
  }

  async #store(lines: Block, file: File, isWhole: boolean): Promise<Stored> {
    const { storage, blocks } = this.#exporting
    const { job, part } = this.#taken
    const { rows, bytes } = lines
    const { token } = part
    const seq = this.flushed
    const key = blockKey(job.input.projectId, { job: job.id, part: part.n, token, seq })
    const packed = await lines.pack()
    const packedBytes = packed.length
    await storage.put(key, chunksIn(packed)).catch(storageFailed)
    blocks.give(lines)
    return { key, file, block: [token, seq, bytes, packedBytes, rows], isWhole }
  }

  /** Deletes unrecorded blocks, which the removal of an export's files would not find. */
  async #discard(storing: readonly Promise<Stored>[]): Promise<void> {
    for (const result of await Promise.allSettled(storing)) {
      if (result.status === 'rejected') continue
      await this.#exporting.storage.delete(result.value.key).catch(() => undefined)
    }
  }

  async #inOrder(
    storing: readonly Promise<Stored>[],
    before: Promise<unknown>,
    isLast: boolean,
  ): Promise<void> {
    const { database, metrics } = this.#exporting
    const reached = this.#position
    const [blocks] = await Promise.all([Promise.all(storing), before]).catch(async (reason) => {
      await this.#discard(storing)
      throw reason
    })
    const written = { kind: this.#kind, blocks, reached, isLast }
    if (!(await addBlocks(database, this.#taken, written))) {
      await this.#discard(storing)
      throw new LeaseLost()
    }
    for (const { block } of blocks) {
      const [, , bytes, packed, rows] = block
      metrics.rows.inc(rows)
      metrics.bytes.inc({ form: 'plain' }, bytes)
      metrics.bytes.inc({ form: 'packed' }, packed)
    }
  }
}

export function tooManyUnreadable(): ExportAborted {
  return new ExportAborted(500, 'Too many resources cannot be read')
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

/** One input of an import, from where it was left to its end or until it is to be left again. */
import { may } from '../../../shared/access/policy.ts'
import type { Principal } from '../../../shared/access/principal.ts'
import { memberOf } from '../../../shared/bulk/exports/status.ts'
import {
  type ImportInput,
  type ImportPart,
  readImport,
} from '../../../shared/bulk/imports/imports.ts'
import {
  type ImportLine,
  idOf,
  isRefusal,
  type ReadLines,
  readLines,
} from '../../../shared/bulk/imports/lines.ts'
import {
  endPart,
  failImport,
  keepOrder,
  type LineFailure,
  notePartSize,
  replaceManifest,
  type TakenPart,
} from '../../../shared/bulk/imports/parts.ts'
import { recordImport } from '../../../shared/bulk/imports/status.ts'
import { lineFailure, PartLost, writeLines } from '../../../shared/bulk/imports/writes.ts'
import { badRequest, forbidden } from '../../../shared/errors.ts'
import type { Connection } from '../../../shared/platform/postgres/statement.ts'
import type { Services } from '../../../shared/services.ts'
import { PlannedCreates } from '../../../shared/store/write/planned-rows.ts'
import { openSource } from './source.ts'

/** While PostgreSQL writes one batch the next one is made ready. */
const IN_FLIGHT = 2
/** An input with more bad lines is not what it should be. */
const MOST_FAILURES = 10_000

/** The part is to be taken again when those before it are done. */
export class PartTooEarly extends Error {}

/** Memory that nobody uses, of all parts. */
export interface Spare {
  readonly plans: PlannedCreates[]
  readonly blocks: Buffer[]
}

/** Errors: what may be better the next time; PartLost; PartTooEarly. Returns early when `signal` aborts. */
export async function importPart(
  services: Services,
  spare: Spare,
  part: TakenPart,
  signal: AbortSignal,
): Promise<void> {
  const { database, config } = services
  let isInTurn = false
  const takeTurn = async () => {
    if (!isInTurn && (await keepOrder(database, part))) throw new PartTooEarly()
    isInTurn = true
  }
  const reached = { line: part.nextLine, failures: 0, allNew: true }
  const lanes = openLanes(async ({ principal, release, ...read }) => {
    const { failed, allNew } = await writeLines(services, principal, part, read)
    reached.failures += failed
    reached.allNew = allNew
    release()
    if (read.plans === undefined) return
    read.plans.clear()
    spare.plans.push(read.plans)
  })
  try {
    const principal = await callerOf(services, part)
    const type = typeFor(principal, part)
    const source = await openSource(services, principal, { url: part.url, from: part.from, signal })
    try {
      if (source.size !== undefined) await notePartSize(database, part, source.size)
      const place = { byte: part.from, line: part.nextLine }
      const batches = batchesOf(source.chunks, place, config.maxBodyBytes, spare.blocks)
      for await (const { lines, release } of readAhead(batches)) {
        if (signal.aborted) break
        const some = { type, lines: leftOf(lines, part), beforeSearch: takeTurn }
        if (some.lines.length === 0) continue
        // Rights are those of the member now, not those of the kick-off.
        const principal = await callerOf(services, part)
        const plans = reached.allNew ? (spare.plans.pop() ?? new PlannedCreates()) : undefined
        const read = await readLines(services, principal, { ...some, plans })
        await lanes.add({ ...read, principal, release })
        reached.line = (lines.at(-1)?.number ?? reached.line) + 1
        if (reached.failures > MOST_FAILURES) throw badRequest('Too many lines were refused')
      }
    } finally {
      source.close()
    }
    await lanes.done()
  } catch (error) {
    await lanes.settled()
    // Where the source was closed in the middle of a line.
    if (signal.aborted) return
    if (!isRefusal(error)) throw error
    const outcome = lineFailure(reached.line, error)
    await finishPart(services, part, { line: reached.line, outcome })
    return
  }
  if (!signal.aborted) await finishPart(services, part)
}

/** Errors: 403. */
function typeFor(principal: Principal, { type }: TakenPart): string {
  const isOpen = type !== null && may(principal, type, 'create') && may(principal, type, 'update')
  if (!isOpen) throw forbidden()
  return type
}

/** Errors: PartLost where the caller is no member any more, which fails the whole import and not this input alone. */
async function callerOf(services: Services, part: TakenPart): Promise<Principal> {
  const principal = await memberOf(services, part.caller)
  if (principal !== undefined) return principal
  await failImport(services.database, part.job, forbidden().outcome)
  throw new PartLost()
}

/** Without those that are committed already, behind others that are not. */
function leftOf(lines: readonly ImportLine[], { done }: TakenPart): readonly ImportLine[] {
  return lines.filter(
    (line) => !done.some(([start, end]) => line.start >= start && line.start < end),
  )
}

/** A batch that is read, and who writes it. */
interface ReadBatch extends ReadLines {
  readonly principal: Principal
  /** To be called once it is written. */
  release(): void
}

interface Lanes {
  /** Waits for a place, and for those in flight that write the same resources. Errors: of any before. */
  add(batch: ReadBatch): Promise<void>
  /** Errors: of any. */
  done(): Promise<void>
  /** Does not throw. */
  settled(): Promise<void>
}

function openLanes(write: (batch: ReadBatch) => Promise<void>): Lanes {
  const running = new Map<Promise<void>, ReadonlySet<string>>()
  const failed: { error?: unknown } = {}
  const check = () => {
    if ('error' in failed) throw failed.error
  }
  return {
    async add(batch) {
      const ids = new Set(batch.lines.flatMap((line) => idOf(line) ?? []))
      const overlaps = () => [...running].find(([, others]) => !others.isDisjointFrom(ids))
      for (let other = overlaps(); other !== undefined; other = overlaps()) await other[0]
      while (running.size >= IN_FLIGHT) await Promise.race(running.keys())
      check()
      const work = write(batch)
        .catch((error: unknown) => {
          failed.error ??= error
        })
        .finally(() => running.delete(work))
      running.set(work, ids)
    },
    async done() {
      await Promise.all(running.keys())
      check()
    },
    async settled() {
      await Promise.all(running.keys())
    },
  }
}

/** `failure` names an input that could not be read on. */
export function finishPart(
  services: Services,
  part: TakenPart,
  failure?: LineFailure,
): Promise<void> {
  return finish(services, part, (connection) => endPart(connection, part, failure))
}

/** The inputs that a manifest names take its place. */
export function finishManifest(
  services: Services,
  part: TakenPart,
  inputs: readonly ImportInput[],
): Promise<void> {
  return finish(services, part, (connection) => replaceManifest(connection, part, inputs))
}

/** The record is there with the end, or neither is. */
async function finish(
  services: Services,
  { job, caller }: TakenPart,
  end: (connection: Connection) => Promise<boolean>,
): Promise<void> {
  const principal = await memberOf(services, caller)
  await services.repository.transaction(async (transaction) => {
    const isEnd = await transaction.beside(end)
    if (!isEnd || principal === undefined) return
    const found = await transaction.beside((connection) => readImport(connection, job))
    const sum = (of: (part: ImportPart) => number) =>
      (found?.parts ?? []).reduce((total, part) => total + of(part), 0)
    await recordImport({ repository: transaction }, principal, {
      id: job,
      step: 'completed',
      details: {
        inputs: found?.parts.length ?? 0,
        created: sum(({ created }) => created),
        updated: sum(({ updated }) => updated),
        unchanged: sum(({ unchanged }) => unchanged),
        skipped: sum(({ skipped }) => skipped),
        failed: sum(({ failed }) => failed),
      },
    })
  })
}

// Bytes of NDJSON, as they arrive → batches of lines, each with its place.

const NEWLINE = 10

/** Where the bytes begin, in the whole input. */
interface LinePlace {
  readonly byte: number
  /** Number of the line that begins there. */
  readonly line: number
}

/** A batch is a transaction: large enough to share its statements, small enough to be held a few times. */
const BATCH_LINES = 500
const BATCH_BYTES = 4 * 1024 * 1024
/** Most batches have room in one. */
const BLOCK_BYTES = 1024 * 1024
const NO_BLOCK: Buffer = Buffer.alloc(0)

/** Lines that are written together. */
export interface LineBatch {
  readonly lines: readonly ImportLine[]
  /** Their bytes are not looked at any more. */
  release(): void
}

/** Lines that have arrived and are not in a batch yet. */
class Lines {
  readonly #maxBytes: number
  readonly #spare: Buffer[]
  #start: number
  #end: number
  #number: number
  #lines: ImportLine[] = []
  #size = 0
  #used: Buffer[] = []
  #block = NO_BLOCK
  /** Where the line under way stands in the block. */
  #from = 0
  #to = 0
  #isTooLong = false

  constructor({ byte, line }: LinePlace, maxBytes: number, spare: Buffer[]) {
    this.#start = byte
    this.#end = byte
    this.#number = line
    this.#maxBytes = maxBytes
    this.#spare = spare
  }

  get count(): number {
    return this.#lines.length
  }

  get isBatch(): boolean {
    return this.#lines.length >= BATCH_LINES || this.#size >= BATCH_BYTES
  }

  /** A piece of the line under way. */
  add(piece: Buffer): void {
    this.#end += piece.length
    const bytes = this.#to - this.#from + piece.length
    this.#isTooLong ||= bytes > this.#maxBytes
    if (this.#isTooLong) return
    if (this.#to + piece.length > this.#block.length) this.#moveTo(this.#another(bytes * 2))
    this.#to += piece.copy(this.#block, this.#to)
  }

  /** The line under way ends, with a line feed or with the input. The bytes of a blank one belong to the next. */
  endLine(isFed: boolean): void {
    if (isFed) this.#end += 1
    const bytes = this.#isTooLong ? undefined : this.#block.subarray(this.#from, this.#to)
    if (bytes === undefined || !isWhite(bytes)) {
      this.#lines.push({ number: this.#number, start: this.#start, end: this.#end, bytes })
      this.#size += this.#end - this.#start
      this.#start = this.#end
      this.#from = this.#to
    }
    this.#to = this.#from
    this.#isTooLong = false
    this.#number += 1
  }

  /** The last line, which need not end with a line feed. */
  endInput(): void {
    if (this.#to > this.#from || this.#isTooLong) this.endLine(false)
  }

  batch(): LineBatch {
    const blocks = this.#used.filter(({ length }) => length === BLOCK_BYTES)
    const spare = this.#spare
    const made = { lines: this.#lines, release: () => void spare.push(...blocks) }
    this.#lines = []
    this.#size = 0
    this.#used = []
    this.#block = NO_BLOCK
    this.#from = 0
    this.#to = 0
    return made
  }

  #moveTo(block: Buffer): void {
    this.#to = this.#block.copy(block, 0, this.#from, this.#to)
    this.#from = 0
    this.#block = block
  }

  #another(room: number): Buffer {
    const found = room > BLOCK_BYTES ? undefined : this.#spare.pop()
    const made = found ?? Buffer.allocUnsafeSlow(Math.max(room, BLOCK_BYTES))
    this.#used.push(made)
    return made
  }
}

/**
 * Blank lines are counted and passed over. A line beyond `maxBytes` comes without its bytes. Those of the others
 * are copied into blocks, of which `spare` holds those that nobody uses: what a stream brings may go at once.
 * Errors: that of the source, behind its last whole line.
 */
export async function* batchesOf(
  chunks: AsyncIterable<Buffer>,
  place: LinePlace,
  maxBytes: number,
  spare: Buffer[],
): AsyncGenerator<LineBatch> {
  const lines = new Lines(place, maxBytes, spare)
  try {
    for await (const chunk of chunks) {
      let read = 0
      for (let at = chunk.indexOf(NEWLINE); at !== -1; at = chunk.indexOf(NEWLINE, read)) {
        lines.add(chunk.subarray(read, at))
        lines.endLine(true)
        read = at + 1
        if (lines.isBatch) yield lines.batch()
      }
      lines.add(chunk.subarray(read))
    }
  } catch (error) {
    // The lines before the failure are whole.
    if (lines.count > 0) yield lines.batch()
    throw error
  }
  lines.endInput()
  if (lines.count > 0) yield lines.batch()
}

/** White space of JSON only. */
function isWhite(bytes: Uint8Array): boolean {
  return bytes.every((byte) => byte === 0x20 || byte === 0x09 || byte === 0x0d)
}

/** The next item is made ready while one is worked on. */
export async function* readAhead<T>(items: AsyncGenerator<T>): AsyncGenerator<T> {
  const ask = () => {
    const next = items.next()
    // A reader that stops early ignores its failure.
    next.catch(() => undefined)
    return next
  }
  try {
    for (let next = ask(); ; ) {
      const { value, done } = await next
      if (done) return
      next = ask()
      yield value
    }
  } finally {
    // Not waited for: what is still under way ends when its source is closed.
    void items.return(undefined).catch(() => undefined)
  }
}

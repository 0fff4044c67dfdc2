/** Bytes of NDJSON, as they arrive → batches of lines, each with its place. */
import type { ImportLine } from './lines.ts'

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
export async function* readLineBatches(
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

/** Splits NDJSON bytes into batches of lines with their positions. */
import type { ImportLine } from './lines.ts'

const NEWLINE = 10

/** Byte offset in the whole input. */
interface LinePlace {
  readonly byte: number
  readonly line: number
}

/** One transaction: large enough to share statements, small enough to hold several in memory. */
const BATCH_LINES = 500
const BATCH_BYTES = 4 * 1024 * 1024
/** Fits most batches. */
const BLOCK_BYTES = 1024 * 1024
const NO_BLOCK: Buffer = Buffer.alloc(0)

export interface LineBatch {
  readonly lines: readonly ImportLine[]
  /** Releases the bytes after the last use. */
  release(): void
}

class Lines {
  readonly #maxBytes: number
  readonly #spare: Buffer[]
  #start: number
  #end: number
  #number: number
  #firstNumber: number
  #lines: ImportLine[] = []
  #size = 0
  #used: Buffer[] = []
  #block = NO_BLOCK
  #from = 0
  #to = 0
  #isTooLong = false

  constructor({ byte, line }: LinePlace, maxBytes: number, spare: Buffer[]) {
    this.#start = byte
    this.#end = byte
    this.#number = line
    this.#firstNumber = line
    this.#maxBytes = maxBytes
    this.#spare = spare
  }

  get count(): number {
    return this.#lines.length
  }

  get isBatch(): boolean {
    return this.#lines.length >= BATCH_LINES || this.#size >= BATCH_BYTES
  }

  add(piece: Buffer): void {
    this.#end += piece.length
    const bytes = this.#to - this.#from + piece.length
    this.#isTooLong ||= bytes > this.#maxBytes
    if (this.#isTooLong) return
    if (this.#to + piece.length > this.#block.length) this.#moveTo(this.#another(bytes * 2))
    this.#to += piece.copy(this.#block, this.#to)
  }

  /** Ends the current line at a line feed or the end of input. A blank line belongs to the next line. */
  endLine(isFed: boolean): void {
    if (isFed) this.#end += 1
    const bytes = this.#isTooLong ? undefined : this.#block.subarray(this.#from, this.#to)
    const number = this.#number
    this.#number += 1
    if (bytes === undefined || !isBlank(bytes)) {
      const [firstNumber, start, end] = [this.#firstNumber, this.#start, this.#end]
      this.#lines.push({ number, firstNumber, start, end, bytes })
      this.#firstNumber = this.#number
      this.#size += end - start
      this.#start = end
      this.#from = this.#to
    }
    this.#to = this.#from
    this.#isTooLong = false
  }

  /** Ends the last line, whose line feed is optional. */
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
 * Counts and skips blank lines. Copies lines of up to `maxBytes` into reused blocks, so that the stream's chunks can be
 * freed. Errors: the source's, after its last whole line.
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
    if (lines.count > 0) yield lines.batch()
    throw error
  }
  lines.endInput()
  if (lines.count > 0) yield lines.batch()
}

/** True for JSON white space only. */
function isBlank(bytes: Uint8Array): boolean {
  return bytes.every((byte) => byte === 0x20 || byte === 0x09 || byte === 0x0d)
}

/** Prefetches the next item. */
export async function* readAhead<T>(items: AsyncGenerator<T>): AsyncGenerator<T> {
  const ask = () => {
    const next = items.next()
    // A reader that stops early ignores the prefetch error.
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
    // Not awaited: pending reads end when the source closes.
    void items.return(undefined).catch(() => undefined)
  }
}

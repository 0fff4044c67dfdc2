/** Bytes of NDJSON, as they arrive → batches of lines, each with its place. */
import type { ImportLine } from '../../../shared/bulk/imports/lines.ts'

const NEWLINE = 10

/** Where the bytes begin, in the whole input. */
export interface LinePlace {
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
  let { byte: start, line: number } = place
  let end = start
  let lines: ImportLine[] = []
  let size = 0
  let used: Buffer[] = []
  const another = (room: number) => {
    const found = room > BLOCK_BYTES ? undefined : spare.pop()
    const made = found ?? Buffer.allocUnsafeSlow(Math.max(room, BLOCK_BYTES))
    used.push(made)
    return made
  }
  let block = NO_BLOCK
  /** Where the line under way stands in the block. */
  let [from, to] = [0, 0]
  let isTooLong = false
  const keep = (piece: Buffer) => {
    isTooLong ||= to - from + piece.length > maxBytes
    if (isTooLong) return
    if (to + piece.length > block.length) {
      const next = another((to - from + piece.length) * 2)
      to = block.copy(next, 0, from, to)
      from = 0
      block = next
    }
    to += piece.copy(block, to)
  }
  /** The bytes of a blank line belong to the next one. */
  const take = () => {
    const bytes = isTooLong ? undefined : block.subarray(from, to)
    if (bytes === undefined || !isWhite(bytes)) {
      lines.push({ number, start, end, bytes })
      size += end - start
      start = end
      from = to
    }
    to = from
    isTooLong = false
    number += 1
  }
  const batch = (): LineBatch => {
    const blocks = used.filter(({ length }) => length === BLOCK_BYTES)
    const made = { lines, release: () => void spare.push(...blocks) }
    lines = []
    size = 0
    used = []
    block = NO_BLOCK
    from = 0
    to = 0
    return made
  }
  try {
    for await (const chunk of chunks) {
      let read = 0
      for (let at = chunk.indexOf(NEWLINE); at !== -1; at = chunk.indexOf(NEWLINE, read)) {
        keep(chunk.subarray(read, at))
        end += at + 1 - read
        read = at + 1
        take()
        if (lines.length >= BATCH_LINES || size >= BATCH_BYTES) yield batch()
      }
      keep(chunk.subarray(read))
      end += chunk.length - read
    }
  } catch (error) {
    // The lines before the failure are whole.
    if (lines.length > 0) yield batch()
    throw error
  }
  if (to > from || isTooLong) take()
  if (lines.length > 0) yield batch()
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

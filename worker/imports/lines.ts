/** Bytes of NDJSON, as they arrive → lines, each with its place. */
import type { ImportLine } from '../../shared/api/import-lines.ts'

const NEWLINE = 10

/** Where the bytes begin, in the whole input. */
export interface LinePlace {
  readonly byte: number
  /** Number of the line that begins there. */
  readonly line: number
}

/** Those of a piece at a time. Blank lines are counted and passed over; one beyond `maxBytes` has no bytes. */
export async function* linesOf(
  chunks: AsyncIterable<Buffer>,
  place: LinePlace,
  maxBytes: number,
): AsyncGenerator<readonly ImportLine[]> {
  let { byte: start, line: number } = place
  let end = start
  let kept: Buffer[] = []
  let size = 0
  const keep = (piece: Buffer) => {
    size += piece.length
    if (size <= maxBytes) kept.push(piece)
    else kept = []
  }
  /** Undefined for a blank line, whose bytes belong to the next one. */
  const take = (): ImportLine | undefined => {
    const [whole] = kept
    const bytes = size > maxBytes ? undefined : kept.length === 1 ? whole : Buffer.concat(kept)
    const isBlank = bytes !== undefined && isWhite(bytes)
    const line = isBlank ? undefined : { number, start, end, bytes }
    kept = []
    size = 0
    number += 1
    if (line !== undefined) start = end
    return line
  }
  for await (const chunk of chunks) {
    const lines: ImportLine[] = []
    let from = 0
    for (let at = chunk.indexOf(NEWLINE); at !== -1; at = chunk.indexOf(NEWLINE, from)) {
      keep(chunk.subarray(from, at))
      end += at + 1 - from
      from = at + 1
      const line = take()
      if (line !== undefined) lines.push(line)
    }
    if (from < chunk.length) keep(chunk.subarray(from))
    end += chunk.length - from
    if (lines.length > 0) yield lines
  }
  const last = size === 0 ? undefined : take()
  if (last !== undefined) yield [last]
}

/** White space of JSON only. */
function isWhite(bytes: Uint8Array): boolean {
  return bytes.every((byte) => byte === 0x20 || byte === 0x09 || byte === 0x0d)
}

/** A batch is a transaction: large enough to share its statements, small enough to be held a few times. */
const BATCH_LINES = 500
const BATCH_BYTES = 4 * 1024 * 1024

export async function* batchesOf(
  groups: AsyncIterable<readonly ImportLine[]>,
): AsyncGenerator<ImportLine[]> {
  let batch: ImportLine[] = []
  let size = 0
  for await (const lines of groups) {
    for (const line of lines) {
      batch.push(line)
      size += line.end - line.start
      if (batch.length < BATCH_LINES && size < BATCH_BYTES) continue
      yield batch
      batch = []
      size = 0
    }
  }
  if (batch.length > 0) yield batch
}

/** The next item is made ready while one is worked on. */
export async function* readAhead<T>(items: AsyncGenerator<T>): AsyncGenerator<T> {
  const ask = () => {
    const next = items.next()
    // Who stops early does not hear of it.
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

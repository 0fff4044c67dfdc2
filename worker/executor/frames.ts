/**
 * The pipe between worker and executor. A frame is
 *
 *     u32 bytes that follow | u16 header bytes | u16 count of parts | u32 bytes of each part | header | parts
 *
 * all little endian. The header is a small JSON object; the parts are texts (code, event, result, log) that
 * travel raw, so that no text is encoded twice. Both sides bound what they accept.
 */
export interface Frame<Header> {
  readonly header: Header
  readonly parts: readonly string[]
}

const MAX_FRAME_BYTES = 64 * 1024 * 1024
const MAX_PARTS = 8
const FIXED_BYTES = 8

/** Returns one buffer. Errors: RangeError above MAX_FRAME_BYTES. */
export function encodeFrame(header: object, parts: readonly string[] = []): Buffer {
  const head = JSON.stringify(header)
  const headBytes = Buffer.byteLength(head)
  const sizes = parts.map((part) => Buffer.byteLength(part))
  const total = sizes.reduce((sum, size) => sum + size, FIXED_BYTES + 4 * parts.length + headBytes)
  if (total > MAX_FRAME_BYTES || headBytes > 0xffff || parts.length > MAX_PARTS) {
    throw new RangeError(`A frame of ${total} bytes is too large`)
  }
  const frame = Buffer.allocUnsafe(total)
  frame.writeUInt32LE(total - 4, 0)
  frame.writeUInt16LE(headBytes, 4)
  frame.writeUInt16LE(parts.length, 6)
  let at = FIXED_BYTES
  for (const size of sizes) at = frame.writeUInt32LE(size, at)
  at += frame.write(head, at)
  for (const part of parts) at += frame.write(part, at)
  return frame
}

/** Collects stream chunks into frames. `Header` is the expected type: trusted in the executor, checked in the worker. */
export class FrameReader<Header> {
  #chunks: Buffer[] = []
  #bytes = 0

  push(chunk: Buffer): Frame<Header>[] {
    this.#chunks.push(chunk)
    this.#bytes += chunk.length
    const frames: Frame<Header>[] = []
    for (;;) {
      const size = this.#sizeOfNext()
      if (size === undefined || this.#bytes < size) return frames
      const bytes = this.#joined()
      frames.push(decode<Header>(bytes.subarray(0, size)))
      this.#chunks = bytes.length > size ? [bytes.subarray(size)] : []
      this.#bytes -= size
    }
  }

  #sizeOfNext(): number | undefined {
    if (this.#bytes < FIXED_BYTES) return undefined
    const first = this.#chunks[0]
    const size = (first && first.length >= 4 ? first : this.#joined()).readUInt32LE(0) + 4
    if (size > MAX_FRAME_BYTES || size < FIXED_BYTES) {
      throw new RangeError(`A frame of ${size} bytes is refused`)
    }
    return size
  }

  #joined(): Buffer {
    const [first] = this.#chunks
    if (first && this.#chunks.length === 1) return first
    const bytes = Buffer.concat(this.#chunks)
    this.#chunks = [bytes]
    return bytes
  }
}

function decode<Header>(frame: Buffer): Frame<Header> {
  const headBytes = frame.readUInt16LE(4)
  const count = frame.readUInt16LE(6)
  if (count > MAX_PARTS) throw new RangeError(`A frame of ${count} parts is refused`)
  let at = FIXED_BYTES + 4 * count + headBytes
  const header: unknown = JSON.parse(frame.toString('utf8', at - headBytes, at))
  const parts: string[] = []
  for (let index = 0; index < count; index++) {
    const size = frame.readUInt32LE(FIXED_BYTES + 4 * index)
    if (at + size > frame.length) throw new RangeError('A part is longer than its frame')
    parts.push(frame.toString('utf8', at, at + size))
    at += size
  }
  // Both ends share messages.ts; the worker checks run and call numbers where it uses them.
  return { header: header as Header, parts }
}

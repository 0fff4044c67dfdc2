/**
 * The pipe between worker and executor. A frame is
 *
 *     u32 bytes that follow | u16 header bytes | u16 count of parts | u32 bytes of each part | header | parts
 *
 * all little endian. The header is a message as JSON; the parts, in brackets below, are texts (code, event, result, log)
 * that travel raw, so that no text is encoded twice. Both sides bound their input. `run` and `call` are numbers per pipe.
 */

export type InputKind = 'text' | 'json' | 'form' | 'hl7' | 'bytes' | 'none'

export const RESULT_KINDS = ['undefined', 'json', 'string', 'hl7', 'outcome'] as const
type ResultKind = (typeof RESULT_KINDS)[number]

/** Why a run ended without a result, as known to the executor. */
export const FAILURES = [
  'thrown',
  'timeout',
  'memory',
  'cpu',
  'turn',
  'result',
  'cancelled',
] as const
export type Failure = (typeof FAILURES)[number]

export const CALL_KINDS = ['fhir', 'fetch', 'body', 'token', 'stream'] as const
export type CallKind = (typeof CALL_KINDS)[number]

export interface Limits {
  readonly wallMs: number
  readonly cpuMs: number
  readonly memoryMb: number
  readonly resultBytes: number
  readonly logBytes: number
}

/** [source] */
export interface CodeMessage {
  readonly t: 'code'
  readonly hash: string
  readonly format: 'commonjs' | 'module'
  readonly file: string
  /** Names of the libraries that it uses. */
  readonly libraries: readonly string[]
}

/** [event, input]; `input` is missing when there is none. */
export interface RunMessage {
  readonly t: 'run'
  readonly run: number
  readonly bot: string
  readonly identity: string
  readonly hash: string
  readonly inputKind: InputKind
  readonly limits: Limits
  readonly fresh: boolean
  /** May share an isolate with runs of its bot and membership. */
  readonly concurrent: boolean
  /** Send `log` messages for a live listener. */
  readonly follow: boolean
}

/** [text]: result of a host call; `ok` false rejects the call with the text. */
export interface ReplyMessage {
  readonly t: 'reply'
  readonly run: number
  readonly call: number
  readonly ok: boolean
  /** No call of the run has had a possible effect so far. */
  readonly mayBeginAnew: boolean
}

export type ToExecutor =
  | CodeMessage
  | RunMessage
  | ReplyMessage
  /** [source]: precedes the first code that uses it on this pipe. */
  | { readonly t: 'library'; readonly name: string }
  | { readonly t: 'cancel'; readonly run: number }

/** [payload] */
export interface CallMessage {
  readonly t: 'call'
  readonly run: number
  readonly call: number
  readonly kind: CallKind
}

/** [body, log]; the body of a failure is an OperationOutcome (`kind` outcome) or a message. */
export interface DoneMessage {
  readonly t: 'done'
  readonly run: number
  readonly status: 'ok' | 'error'
  readonly failure?: Failure
  readonly kind: ResultKind
  readonly cpuMs: number
  readonly wallMs: number
  /** Heap in use; the last measurement for a short run. */
  readonly memoryMb?: number | undefined
}

export type FromExecutor =
  | CallMessage
  | DoneMessage
  /** [guest, own]: code caches, sent once before the first beat, by an executor started without. */
  | { readonly t: 'cache' }
  /** [text]: new log of a followed run; all of it precedes `done`. */
  | { readonly t: 'log'; readonly run: number }
  /** V8 has lost control of the isolate of this run; the process ends itself. */
  | { readonly t: 'fatal'; readonly run: number; readonly failure: 'memory' | 'timeout' }
  /** The shared isolate has ended; `isCleared`: because of another run. */
  | { readonly t: 'lost'; readonly run: number; readonly isCleared: boolean }
  /** The thread of a stopped run cannot be ended; the process should end after its other runs. */
  | { readonly t: 'stuck'; readonly run: number }
  /** The run starts or stops waiting without CPU. */
  | { readonly t: 'idle'; readonly run: number; readonly isIdle: boolean }
  /** Heartbeat, each second and once at the start. */
  | { readonly t: 'beat'; readonly isolates: number }

export interface Frame<Header> {
  readonly header: Header
  readonly parts: readonly string[]
}

const MAX_FRAME_BYTES = 64 * 1024 * 1024
const MAX_PARTS = 8
const FIXED_BYTES = 8

/** Returns one buffer. Errors: RangeError above MAX_FRAME_BYTES. */
export function encodeFrame(header: object, parts: readonly string[]): Buffer {
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
  // Both ends share these types; the worker checks run and call numbers where it uses them.
  return { header: header as Header, parts }
}

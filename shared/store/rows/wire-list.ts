/**
 * A list in PostgreSQL's binary format, in one reusable block that the garbage collector neither scans nor copies.
 * https://www.postgresql.org/docs/current/protocol-overview.html#PROTOCOL-FORMAT-CODES
 */

const OIDS = {
  bigint: 20,
  smallint: 21,
  int: 23,
  text: 25,
  float8: 701,
  timestamptz: 1184,
  uuid: 2950,
} as const

export type WireType = keyof typeof OIDS

/** Dimensions, null flag, type, length, and the number of the first item. */
const HEADER = 20
const LENGTH = 4
const FIRST_SIZE = 2048
const MOST_KEPT = 1024 * 1024
const DASH = 0x2d
/** Milliseconds from 1970 to 2000, PostgreSQL's epoch. */
const EPOCH_MS = 946_684_800_000
const INFINITY = 2n ** 63n - 1n
const MINUS_INFINITY = -(2n ** 63n)

export class WireList {
  readonly type: WireType
  #bytes: Buffer = Buffer.allocUnsafeSlow(FIRST_SIZE)
  #view = new DataView(this.#bytes.buffer)
  #end = HEADER
  #length = 0
  #hasNulls = false

  constructor(type: WireType) {
    this.type = type
  }

  get length(): number {
    return this.#length
  }

  /** The parameter; later items are not in it. */
  get value(): Buffer {
    this.#view.setInt32(0, 1)
    this.#view.setInt32(4, this.#hasNulls ? 1 : 0)
    this.#view.setInt32(8, OIDS[this.type])
    this.#view.setInt32(12, this.#length)
    this.#view.setInt32(16, 1)
    return this.#bytes.subarray(0, this.#end)
  }

  /** The last parameter must have been sent by now. */
  clear(): void {
    this.#end = HEADER
    this.#length = 0
    this.#hasNulls = false
    if (this.#bytes.length > MOST_KEPT) this.#use(Buffer.allocUnsafeSlow(FIRST_SIZE))
  }

  smallint(value: number): void {
    const at = this.#item(2)
    this.#view.setInt16(at, value)
  }

  int(value: number): void {
    const at = this.#item(4)
    this.#view.setInt32(at, value)
  }

  bigint(value: bigint): void {
    const at = this.#item(8)
    this.#view.setBigInt64(at, value)
  }

  float8(value: number): void {
    const at = this.#item(8)
    this.#view.setFloat64(at, value)
  }

  text(value: string): void {
    // UTF-8 takes at most three bytes per UTF-16 unit.
    const room = this.#bytes.length - this.#end - LENGTH
    if (value.length * 3 > room) this.#reserve(LENGTH + Buffer.byteLength(value))
    this.#item(this.#bytes.write(value, this.#end + LENGTH))
  }

  uuid(value: string): void {
    let at = this.#item(16)
    for (let i = 0; i < value.length; i += 2) {
      if (value.charCodeAt(i) === DASH) i += 1
      this.#bytes[at++] = digit(value.charCodeAt(i)) * 16 + digit(value.charCodeAt(i + 1))
    }
  }

  /** Takes the text that `timestamp` writes: an ISO date, or infinite. */
  timestamptz(value: string): void {
    const at = this.#item(8)
    const ms = Date.parse(value)
    if (!Number.isNaN(ms)) this.#view.setBigInt64(at, BigInt(ms - EPOCH_MS) * 1000n)
    else this.#view.setBigInt64(at, value === 'infinity' ? INFINITY : MINUS_INFINITY)
  }

  null(): void {
    this.#reserve(LENGTH)
    this.#view.setInt32(this.#end, -1)
    this.#end += LENGTH
    this.#length += 1
    this.#hasNulls = true
  }

  #item(size: number): number {
    this.#reserve(LENGTH + size)
    this.#view.setInt32(this.#end, size)
    const at = this.#end + LENGTH
    this.#end = at + size
    this.#length += 1
    return at
  }

  #reserve(size: number): void {
    const needed = this.#end + size
    if (needed <= this.#bytes.length) return
    const larger = Buffer.allocUnsafeSlow(Math.max(needed, this.#bytes.length * 2))
    this.#bytes.copy(larger, 0, 0, this.#end)
    this.#use(larger)
  }

  #use(bytes: Buffer): void {
    this.#bytes = bytes
    this.#view = new DataView(bytes.buffer)
  }
}

function digit(code: number): number {
  return (code & 15) + (code >> 6) * 9
}

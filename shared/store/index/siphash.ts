/**
 * SipHash-2-4 (https://www.aumasson.jp/siphash/siphash.pdf) over UTF-16 code units, 64-bit words as
 * pairs of int32. Measured for a 40 character key: 0.28 us; HalfSipHash 0.42 us, crypto.hash (sha1)
 * 1.7 us, createHmac 17 us.
 */
const CAPACITY = 4096
const LONG = 0x100
const units = new Uint16Array(CAPACITY)
const words = new Int32Array(units.buffer)
const longs = new BigInt64Array(units.buffer)
const result = new Int32Array(2)
const resultLong = new BigInt64Array(result.buffer)

/** The longest pair of texts that is hashed as it is. */
export const MAX_UNITS = CAPACITY - 16

export class SipHash {
  readonly #k0l: number
  readonly #k0h: number
  readonly #k1l: number
  readonly #k1h: number
  readonly #digest: (text: string) => string

  /** `key` is 16 bytes; `digest` shortens texts beyond MAX_UNITS. */
  constructor(key: Buffer, digest: (text: string) => string) {
    this.#k0l = key.readInt32LE(0)
    this.#k0h = key.readInt32LE(4)
    this.#k1l = key.readInt32LE(8)
    this.#k1h = key.readInt32LE(12)
    this.#digest = digest
  }

  /** Hash of (kind, p, a, b); different tuples are different messages. */
  hash(kind: number, p: bigint, a: string, b: string): bigint {
    if (a.length + b.length > MAX_UNITS) {
      return this.hash(kind | LONG, p, this.#digest(a), this.#digest(b))
    }
    longs[0] = p
    words[2] = kind
    words[3] = a.length
    let n = 8
    for (let i = 0; i < a.length; i++) units[n++] = a.charCodeAt(i)
    for (let i = 0; i < b.length; i++) units[n++] = b.charCodeAt(i)
    const length = n * 2
    while ((n & 3) !== 0) units[n++] = 0
    return this.#run(n >> 1, length)
  }

  /** Hash of (kind, a, b) of two keys; never the message of a text hash. */
  join(kind: number, a: bigint, b: bigint): bigint {
    longs[0] = a
    words[2] = kind
    words[3] = -1
    longs[2] = b
    return this.#run(6, 24)
  }

  /** Hash of the first `count` (even) words; the last word of the message is its length. */
  #run(count: number, length: number): bigint {
    let v0l = this.#k0l ^ 0x70736575
    let v0h = this.#k0h ^ 0x736f6d65
    let v1l = this.#k1l ^ 0x6e646f6d
    let v1h = this.#k1h ^ 0x646f7261
    let v2l = this.#k0l ^ 0x6e657261
    let v2h = this.#k0h ^ 0x6c796765
    let v3l = this.#k1l ^ 0x79746573
    let v3h = this.#k1h ^ 0x74656462
    let t = 0
    words.fill(0, count, count + 4)
    words[count + 1] = length << 24
    for (let i = 0; i <= count + 2; i += 2) {
      const ml = words[i] as number
      const mh = words[i + 1] as number
      const isLast = i > count
      const rounds = isLast ? 4 : 2
      if (isLast) v2l ^= 0xff
      v3l ^= ml
      v3h ^= mh
      for (let round = 0; round < rounds; round++) {
        t = (v0l + v1l) | 0
        v0h = (v0h + v1h + (((v0l & v1l) | ((v0l | v1l) & ~t)) >>> 31)) | 0
        v0l = t
        t = (v1l << 13) | (v1h >>> 19)
        v1h = ((v1h << 13) | (v1l >>> 19)) ^ v0h
        v1l = t ^ v0l
        t = v0l
        v0l = v0h
        v0h = t
        t = (v2l + v3l) | 0
        v2h = (v2h + v3h + (((v2l & v3l) | ((v2l | v3l) & ~t)) >>> 31)) | 0
        v2l = t
        t = (v3l << 16) | (v3h >>> 16)
        v3h = ((v3h << 16) | (v3l >>> 16)) ^ v2h
        v3l = t ^ v2l
        t = (v0l + v3l) | 0
        v0h = (v0h + v3h + (((v0l & v3l) | ((v0l | v3l) & ~t)) >>> 31)) | 0
        v0l = t
        t = (v3l << 21) | (v3h >>> 11)
        v3h = ((v3h << 21) | (v3l >>> 11)) ^ v0h
        v3l = t ^ v0l
        t = (v2l + v1l) | 0
        v2h = (v2h + v1h + (((v2l & v1l) | ((v2l | v1l) & ~t)) >>> 31)) | 0
        v2l = t
        t = (v1l << 17) | (v1h >>> 15)
        v1h = ((v1h << 17) | (v1l >>> 15)) ^ v2h
        v1l = t ^ v2l
        t = v2l
        v2l = v2h
        v2h = t
      }
      v0l ^= ml
      v0h ^= mh
    }
    result[0] = v0l ^ v1l ^ v2l ^ v3l
    result[1] = v0h ^ v1h ^ v2h ^ v3h
    return resultLong[0] as bigint
  }
}

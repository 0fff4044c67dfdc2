/**
 * The 64-bit search keys. `H` is a keyed hash, so that callers cannot craft collisions.
 *
 *   P(type, param)  constant of a parameter in a project; also `p` of the side tables
 *   R(target)       constant of a reference text in a project, `Patient/<id>` or a full address
 *   reference key   P ^ R, so that SQL joins self keys to reference keys by arithmetic
 *   any other key   H(kind, P, value parts)
 */

import { hash } from 'node:crypto'
import { sealingKey } from '../../access/credentials/sealing.ts'
import { Cache } from '../../core/cache.ts'
import { normalReference } from '../../fhir/resource.ts'
import type { Connection } from '../../postgres/statement.ts'

const KIND = {
  chunks: 0,
  parameter: 1,
  target: 2,
  token: 3,
  anySystem: 4,
  system: 5,
  ofType: 6,
  uri: 7,
  present: 8,
  unit: 9,
  composite: 10,
  words: 11,
  logical: 12,
  idLow: 13,
  idHigh: 14,
  texts: 15,
} as const
/** Above the largest kind; composite positions are counted in multiples of it. */
const KINDS = 16

const UUID = /^[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}$/i
const CACHED_PARAMETERS = 20_000

export class Keys {
  /** Encryption key of page cursors. */
  readonly seal: Buffer
  readonly #sip: SipHash
  readonly #parameters = new Cache<string, bigint>({
    name: 'parameter-keys',
    max: CACHED_PARAMETERS,
  })

  /** `salt`: the row of `search_key_salt`, at least 16 bytes. */
  constructor(salt: Buffer) {
    if (salt.length < 16) throw new Error('The search key salt must have at least 16 bytes')
    this.seal = sealingKey(salt, 'cursors')
    this.#sip = new SipHash(sha256(salt).subarray(0, 16), (text) => sha256(text).toString('hex'))
  }

  /** P(type, param). */
  param(project: number, type: string, param: string): bigint {
    const name = `${project}|${type}|${param}`
    const known = this.#parameters.get(name)
    if (known !== undefined) return known
    const made = this.#sip.hash(KIND.parameter, BigInt(project), type, `|${param}`)
    this.#parameters.set(name, made)
    return made
  }

  /** R(target): `Type/id` without version, its UUID in any case, or a full address. */
  target(project: number, reference: string): bigint {
    return this.#sip.hash(KIND.target, BigInt(project), normalReference(reference), '')
  }

  /** `system` undefined: any system (`code`); `''`: no system (`|code`). */
  token(p: bigint, system: string | undefined, code: string): bigint {
    if (system === undefined) return this.#sip.hash(KIND.anySystem, p, code, '')
    return this.#sip.hash(KIND.token, p, system, code)
  }

  /** `system|` of an Identifier or ContactPoint; coded elements use the `code` table. */
  system(p: bigint, system: string): bigint {
    return this.#sip.hash(KIND.system, p, system, '')
  }

  ofType(p: bigint, system: string, code: string, value: string): bigint {
    return this.#sip.hash(KIND.ofType, this.token(p, system, code), value, '')
  }

  /** uri, canonical (with and without `|version`), `_profile`, `_source`; exact strings. */
  uri(p: bigint, value: string): bigint {
    return this.#sip.hash(KIND.uri, p, value, '')
  }

  /** P ^ R. */
  reference(p: bigint, target: bigint): bigint {
    return p ^ target
  }

  /** `:identifier` of a reference: pass the result as `p` to `token` and `system`. */
  logical(p: bigint): bigint {
    return this.#sip.hash(KIND.logical, p, '', '')
  }

  /** First key of every row; `reference` is its `Type/id`. */
  self(project: number, type: string, reference: string): bigint {
    return this.param(project, type, '_self') ^ this.target(project, reference)
  }

  /** Held by every resource of a compartment; `reference` is `Patient/<id>`. */
  compartment(project: number, reference: string): bigint {
    return this.param(project, '*', '_compartment') ^ this.target(project, reference)
  }

  /** Held when a token, reference or uri parameter has a value: `:missing=false`. */
  present(p: bigint): bigint {
    return this.#sip.hash(KIND.present, p, '', '')
  }

  /** Held when a usual parameter has no value: `:missing=true`. */
  absent(p: bigint): bigint {
    return this.#sip.hash(KIND.present, p, 'absent', '')
  }

  /** `u` of a range row. Empty `system`: a unit without a system; 0: no unit. */
  unit(system: string, code: string): bigint {
    return this.#sip.hash(KIND.unit, 0n, system, code)
  }

  /** `p` of rows for string words other than the first. */
  words(p: bigint): bigint {
    return this.#sip.hash(KIND.words, p, '', '')
  }

  /** `p` of rows for the rest of a long string, for `:contains`. */
  chunks(p: bigint): bigint {
    return this.#sip.hash(KIND.chunks, p, '', '')
  }

  /** `p` of the token text dictionary, for `:text`. */
  texts(p: bigint): bigint {
    return this.#sip.hash(KIND.texts, p, '', '')
  }

  /** `p` of a project's UCUM unit dictionary. */
  units(project: number): bigint {
    return this.param(project, '*', '_unit')
  }

  /** Composite by the key of its first component; without a second key, `p` of its side rows. */
  composite(first: bigint, position: number, second?: bigint): bigint {
    return this.#sip.join(KIND.composite + position * KINDS, first, second ?? 0n)
  }

  /** The `id` column: a UUID in lower case, or a keyed hash of any other FHIR id in UUID form. */
  rowId(type: string, id: string): string {
    if (UUID.test(id)) return id.toLowerCase()
    const high = hex(this.#sip.hash(KIND.idHigh, 0n, type, id))
    const low = hex(this.#sip.hash(KIND.idLow, 0n, type, id))
    const variant = (Number.parseInt(low.charAt(0), 16) & 3) | 8
    return [
      high.slice(0, 8),
      high.slice(8, 12),
      `8${high.slice(13)}`,
      `${variant.toString(16)}${low.slice(1, 4)}`,
      low.slice(4),
    ].join('-')
  }
}

function sha256(text: Buffer | string): Buffer {
  return hash('sha256', text, 'buffer')
}

function hex(value: bigint): string {
  return BigInt.asUintN(64, value).toString(16).padStart(16, '0')
}

/* SipHash-2-4 (https://www.aumasson.jp/siphash/siphash.pdf) over UTF-16 code units, 64-bit words as int32 pairs. */

const CAPACITY = 4096
const LONG = 0x100
const units = new Uint16Array(CAPACITY)
const words = new Int32Array(units.buffer)
const longs = new BigInt64Array(units.buffer)
const result = new Int32Array(2)
const resultLong = new BigInt64Array(result.buffer)

const MAX_UNITS = CAPACITY - 16

class SipHash {
  readonly #k0l: number
  readonly #k0h: number
  readonly #k1l: number
  readonly #k1h: number
  readonly #digest: (text: string) => string

  /** `key` is 16 bytes; `digest` shortens long texts. */
  constructor(key: Buffer, digest: (text: string) => string) {
    this.#k0l = key.readInt32LE(0)
    this.#k0h = key.readInt32LE(4)
    this.#k1l = key.readInt32LE(8)
    this.#k1h = key.readInt32LE(12)
    this.#digest = digest
  }

  /** Different tuples are different messages. */
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

  /** Never the message of a text hash. */
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

/* Index rows of a resource, and the parameters they are made for. */

export interface PlannedParameter {
  readonly code: string
  readonly index: number
  readonly isMainDate: boolean
  /** Nearly all resources have it, so its absence is indexed. */
  readonly isUsual: boolean
  /** Element types (`Coding`, `Identifier`, `code` …), which decide on the keys of a token. */
  readonly types: readonly string[]
  /** `Patient/`, … for the compartments that this parameter leads to. */
  readonly compartments: readonly string[]
}

export interface CodeRow {
  readonly p: bigint
  readonly k: bigint
  readonly system: string
  readonly code: string
  readonly display: string | undefined
}

export interface RangeRow {
  readonly p: bigint
  readonly lo: number
  readonly hi: number
  readonly u: bigint
}

export interface StringRow {
  readonly p: bigint
  readonly v: string
}

export interface PlannedType {
  readonly type: string
  /** Identifies the Project's custom parameters; empty without any. */
  readonly stamp: string
  readonly parameters: readonly PlannedParameter[]
}

/** P(List, this) ^ R(item): held by a List from which the item was removed. */
export const REMOVED_KEY = '_removed'

/** Increment it with every change of keys or side rows: rows of older code are then rebuilt in the background. */
export const INDEX_REVISION = 11

export async function readSalt(database: Connection): Promise<Buffer> {
  const [row] = await database.query<{ salt: Buffer }>({
    text: 'select salt from search_key_salt',
  })
  if (row === undefined) throw new Error('The table search_key_salt is empty: restore its row')
  return row.salt
}

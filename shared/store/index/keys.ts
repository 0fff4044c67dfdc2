/**
 * The 64-bit keys that rows are found by: `H` of the storage design is a keyed hash, so that nobody
 * can craft two values with one key. The write side and the query side both ask here, and only here.
 *
 *   P(type, param)  constant of a parameter in a project; also `p` of the side tables
 *   R(target)       constant of a reference text in a project, `Patient/<id>` or a full address
 *   reference key   P ^ R, so that a join from a self key to a reference key is arithmetic in SQL
 *   any other key   H(kind, P, value parts)
 */
import { createHash } from 'node:crypto'
import { LRUCache } from 'lru-cache'
import { sealingKey } from '../../access/credentials/sealing.ts'
import { SipHash } from './siphash.ts'

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
/** Above the largest kind; the position in a composite is counted in it. */
const KINDS = 16

const UUID = /^[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}$/i
const CACHED_PARAMETERS = 20_000

export class Keys {
  /** Seals what a caller carries from one page to the next. */
  readonly seal: Buffer
  readonly #sip: SipHash
  readonly #parameters = new LRUCache<string, bigint>({ max: CACHED_PARAMETERS })

  /** `salt` is the one row of `search_key_salt`; any length of at least 16 bytes. */
  constructor(salt: Buffer) {
    if (salt.length < 16) throw new Error('The search key salt must have at least 16 bytes')
    this.seal = sealingKey(salt, 'cursors')
    this.#sip = new SipHash(sha256(salt).subarray(0, 16), (text) => sha256(text).toString('hex'))
  }

  /** P(type, param): `p` of idx_string, idx_range and code rows, and the base of the param's keys. */
  param(project: number, type: string, param: string): bigint {
    const name = `${project}|${type}|${param}`
    const known = this.#parameters.get(name)
    if (known !== undefined) return known
    const made = this.#sip.hash(KIND.parameter, BigInt(project), type, `|${param}`)
    this.#parameters.set(name, made)
    return made
  }

  /** R(target): `Type/id` without version, or the full address of something stored elsewhere. */
  target(project: number, reference: string): bigint {
    return this.#sip.hash(KIND.target, BigInt(project), reference, '')
  }

  /** Token: `system` undefined is any system (`code`), `''` is no system (`|code`). */
  token(p: bigint, system: string | undefined, code: string): bigint {
    if (system === undefined) return this.#sip.hash(KIND.anySystem, p, code, '')
    return this.#sip.hash(KIND.token, p, system, code)
  }

  /** `system|` of an Identifier or a ContactPoint; of coded elements ask the `code` table. */
  system(p: bigint, system: string): bigint {
    return this.#sip.hash(KIND.system, p, system, '')
  }

  /** Identifier `:of-type` with type coding and value. */
  ofType(p: bigint, system: string, code: string, value: string): bigint {
    return this.#sip.hash(KIND.ofType, this.token(p, system, code), value, '')
  }

  /** uri, canonical (with and without `|version`), `_profile`, `_source`; strings as they were written. */
  uri(p: bigint, value: string): bigint {
    return this.#sip.hash(KIND.uri, p, value, '')
  }

  /** Reference key P ^ R of a literal reference or a canonical. */
  reference(p: bigint, target: bigint): bigint {
    return p ^ target
  }

  /** `:identifier` of a reference: use the answer as `p` of `token` and `system`. */
  logical(p: bigint): bigint {
    return this.#sip.hash(KIND.logical, p, '', '')
  }

  /** First key of every row. `reference` is `Type/id` of the row itself. */
  self(project: number, type: string, reference: string): bigint {
    return this.param(project, type, '_self') ^ this.target(project, reference)
  }

  /** Held by every resource of a compartment, whatever its type; `reference` is `Patient/<id>`. */
  compartment(project: number, reference: string): bigint {
    return this.param(project, '*', '_compartment') ^ this.target(project, reference)
  }

  /** Held when a token, reference or uri parameter has a value: the opposite of `:missing`. */
  present(p: bigint): bigint {
    return this.#sip.hash(KIND.present, p, '', '')
  }

  /** `u` of a range row. An empty `system` is a unit without a system; 0 is no unit. */
  unit(system: string, code: string): bigint {
    return this.#sip.hash(KIND.unit, 0n, system, code)
  }

  /** `p` of the rows of string words that no row of `p` begins with. */
  words(p: bigint): bigint {
    return this.#sip.hash(KIND.words, p, '', '')
  }

  /** `p` of the rows of what follows the beginning of a long string, for `:contains`. */
  chunks(p: bigint): bigint {
    return this.#sip.hash(KIND.chunks, p, '', '')
  }

  /** `p` of the dictionary of what tokens are called, for `:text`. */
  texts(p: bigint): bigint {
    return this.#sip.hash(KIND.texts, p, '', '')
  }

  /** `p` of the dictionary of a project's UCUM units. */
  units(project: number): bigint {
    return this.param(project, '*', '_unit')
  }

  /**
   * Composite, by the key of its first component (token or reference key under the composite's P):
   * with the key of the second one the stored key; `p` of the range or string row for other types.
   */
  composite(first: bigint, position: number, second?: bigint): bigint {
    return this.#sip.join(KIND.composite + position * KINDS, first, second ?? 0n)
  }

  /** The `id` column: a UUID is itself in lower case, any other FHIR id a keyed hash in its shape. */
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

/** Keys as the text of a PostgreSQL `bigint[]`; pg would turn each one into a quoted string. */
export function keysLiteral(keys: Iterable<bigint>): string {
  return `{${[...keys].join(',')}}`
}

function sha256(text: Buffer | string): Buffer {
  return createHash('sha256').update(text).digest()
}

function hex(value: bigint): string {
  return BigInt.asUintN(64, value).toString(16).padStart(16, '0')
}

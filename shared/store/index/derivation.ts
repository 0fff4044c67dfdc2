/** Collects the index rows of one resource while its plan runs. */
import { memoFor } from '../../core/cache.ts'
import { COMPARTMENTS } from '../../fhir/definitions.ts'
import type { OwnParameter } from '../../fhir/definitions-data.ts'
import { toNumber } from '../../fhir/json.ts'
import { isObject, type Resource, referenceTo } from '../../fhir/resource.ts'
import { searchedText } from '../../fhir/searched-text.ts'
import {
  extractDateRange,
  extractQuantity,
  extractStrings,
  extractTarget,
  extractTokens,
  extractUris,
  plainWords,
  type QuantityRange,
  type Token,
  UCUM,
} from '../../fhir/values.ts'
import {
  type CodeRow,
  type Keys,
  type PlannedParameter,
  type PlannedType,
  type RangeRow,
  REMOVED_KEY,
  type StringRow,
} from './keys.ts'

export class Derivation {
  readonly keys: Keys
  readonly resource: Resource
  readonly references = new Set<bigint>()
  readonly others = new Set<bigint>()
  readonly strings: StringRow[] = []
  readonly ranges: RangeRow[] = []
  readonly codes: CodeRow[] = []
  readonly units = new Set<string>()
  readonly failed: OwnParameter[] = []
  low: number | undefined
  high: number | undefined
  readonly #project: number
  readonly #constants: TypeConstants
  #lastUnit = 0n

  constructor(keys: Keys, project: number, plan: PlannedType, resource: Resource) {
    const self = referenceTo(resource)
    this.resource = resource
    this.keys = keys
    this.#project = project
    this.#constants = typeConstants(keys, project, plan)
    this.references.add(keys.reference(this.#constants.self, this.target(self)))
    if (OWN_COMPARTMENT.has(plan.type)) this.#compartment(self)
  }

  p(index: number): bigint {
    return this.#of(index).p
  }

  token(index: number, type: string, value: unknown, isFolded: boolean): void {
    const { p, present, texts } = this.#of(index)
    for (const token of extractTokens(type, value, isFolded)) {
      this.others.add(present)
      if (token.kind === 'coding') {
        this.#coding(p, token)
        if (token.display !== undefined) this.#text(texts, token.display)
        continue
      }
      this.#token(p, token)
      if (token.kind === 'text') this.#text(texts, token.code)
      if (token.kind === 'contact') this.#contact(p, token.code)
      for (const { kind, system = '', code } of token.types ?? []) {
        if (kind === 'text') this.#text(texts, code)
        else this.others.add(this.keys.ofType(p, system, code, token.code))
      }
    }
  }

  reference(parameter: PlannedParameter, type: string, value: unknown): void {
    const target = extractTarget(type, value)
    if (target === undefined) return
    const { p, present, logical } = this.#of(parameter.index)
    this.others.add(present)
    if (target.identifier !== undefined) this.#token(logical, target.identifier)
    if (target.literal === undefined) return
    const exact = this.keys.reference(p, this.target(target.literal))
    this.references.add(exact)
    const version = type === 'canonical' ? target.literal.indexOf('|') : -1
    if (version > 0) {
      this.code(p, exact, '', target.literal)
      const unversioned = this.target(target.literal.slice(0, version))
      this.references.add(this.keys.reference(p, unversioned))
    }
    for (const prefix of parameter.compartments) {
      if (target.literal.startsWith(prefix)) this.#compartment(target.literal)
    }
  }

  removed(reference: string): void {
    const p = this.keys.param(this.#project, this.resource.resourceType, REMOVED_KEY)
    this.others.add(this.keys.reference(p, this.target(reference)))
  }

  string(index: number, type: string, value: unknown): void {
    const of = this.#of(index)
    for (const part of extractStrings(type, value)) {
      const { start, words, chunks } = searchedText(part)
      if (start === '') continue
      this.strings.push({ p: of.p, v: start })
      this.others.add(this.keys.uri(of.p, part))
      for (const v of words) this.strings.push({ p: of.words, v })
      for (const v of chunks) this.strings.push({ p: this.keys.chunks(of.p), v })
    }
  }

  date(parameter: PlannedParameter, type: string, value: unknown): void {
    const range = extractDateRange(type, value)
    if (range === undefined) return
    if (!parameter.isMainDate) {
      this.ranges.push({ p: this.p(parameter.index), lo: range.low, hi: range.high, u: 0n })
      return
    }
    this.low = Math.min(this.low ?? Infinity, range.low)
    this.high = Math.max(this.high ?? -Infinity, range.high)
  }

  quantity(index: number, type: string, value: unknown): void {
    const quantity = extractQuantity(type, value)
    if (quantity !== undefined) this.range(this.p(index), quantity)
  }

  uri(index: number, value: unknown): void {
    const { p, present } = this.#of(index)
    for (const uri of extractUris(value)) {
      const key = this.keys.uri(p, uri)
      this.others.add(present)
      this.others.add(key)
      this.code(p, key, '', uri)
    }
  }

  /** Adds the url of a conformance resource, which canonical references join on. */
  canonicalUrl(index: number, value: unknown): void {
    this.uri(index, value)
    const { version } = this.resource
    for (const url of extractUris(value)) {
      this.#canonical(url)
      if (typeof version === 'string') this.#canonical(`${url}|${version}`)
    }
  }

  /** Location.position: one row, latitude as `lo` and longitude as `hi`. */
  position(index: number, value: unknown): void {
    if (!isObject(value)) return
    const [latitude, longitude] = [toNumber(value.latitude), toNumber(value.longitude)]
    if (latitude === undefined || longitude === undefined) return
    this.ranges.push({ p: this.p(index), lo: latitude, hi: longitude, u: 0n })
  }

  target(reference: string): bigint {
    return this.keys.target(this.#project, reference)
  }

  /** One row by unit code; another by the human unit if that or the system is unusual. */
  range(p: bigint, { low, high, system, code, unit }: QuantityRange): void {
    const u = code === undefined ? 0n : this.keys.unit(system, code)
    this.ranges.push({ p, lo: low, hi: high, u })
    const isPlain = code === undefined || (system !== UCUM && system !== '')
    if (system !== '' && code !== undefined) this.#unit(system, code, u)
    const names = new Set([isPlain ? code : undefined, unit === code ? undefined : unit])
    for (const name of names) {
      if (name !== undefined) {
        this.ranges.push({ p, lo: low, hi: high, u: this.keys.unit('', name) })
      }
    }
  }

  /** Adds keys for usual parameters that this resource lacks. */
  finish(parameters: readonly PlannedParameter[]): void {
    for (const { index, isUsual } of parameters) {
      if (!isUsual) continue
      const { p, present, absent } = this.#of(index)
      const hasValue = (row: { readonly p: bigint }) => row.p === p
      const isThere =
        this.others.has(present) || this.strings.some(hasValue) || this.ranges.some(hasValue)
      if (!isThere) this.others.add(absent)
    }
  }

  /** False when the dictionary cannot store it. */
  code(p: bigint, k: bigint, system: string, code: string): boolean {
    return this.#code({ p, k, system, code, display: undefined })
  }

  #code(row: CodeRow): boolean {
    const { system, code, display } = row
    if (system.length + code.length > MAX_CODE) return false
    // PostgreSQL text cannot hold NUL.
    if (system.includes('\0') || code.includes('\0')) return false
    const isOdd = display !== undefined && (display.length > MAX_DISPLAY || display.includes('\0'))
    const shown = isOdd ? display.slice(0, MAX_DISPLAY).replaceAll('\0', '') : display
    this.codes.push(isOdd ? { ...row, display: shown } : row)
    return true
  }

  #of(index: number): Constants {
    return this.#constants.parameters[index] as Constants
  }

  #token(p: bigint, { system, code, kind }: Token): void {
    const any = this.keys.token(p, undefined, code)
    this.others.add(any)
    if (system === undefined) {
      // Codes that the dictionary cannot store are found by a separate key.
      if (kind === 'code' && !this.code(p, any, '', code)) this.others.add(this.keys.system(p, ''))
      return
    }
    const exact = this.keys.token(p, system, code)
    this.others.add(exact)
    if (kind === 'identifier' || kind === 'contact') this.others.add(this.keys.system(p, system))
  }

  #coding(p: bigint, { system = '', code, display }: Token): void {
    const exact = this.keys.token(p, system, code)
    this.others.add(this.keys.token(p, undefined, code))
    this.others.add(exact)
    this.#code({ p, k: exact, system, code, display })
  }

  #text(texts: bigint, text: string): void {
    const words = plainWords(text)
    if (words === '') return
    const key = this.keys.token(texts, undefined, words)
    this.others.add(key)
    this.code(texts, key, '', words)
  }

  /** For `:contains`. */
  #contact(p: bigint, value: string): void {
    const { start: v } = searchedText(value)
    if (v !== '') this.strings.push({ p, v })
  }

  #unit(system: string, code: string, u: bigint): void {
    if (u === this.#lastUnit) return
    this.#lastUnit = u
    if (system === UCUM) this.units.add(code)
    this.code(this.#constants.units, u, system, code)
  }

  #canonical(url: string): void {
    this.references.add(this.keys.reference(this.#constants.canonical, this.target(url)))
  }

  #compartment(reference: string): void {
    this.references.add(this.keys.reference(this.#constants.compartment, this.target(reference)))
  }
}

const OWN_COMPARTMENT: ReadonlySet<string> = new Set<string>(COMPARTMENTS)

/* Key constants of a type in one project. */

/** P(type, this) ^ R(url): held by a resource that canonical references name by `url`. */
export const CANONICAL_KEY = '_canonical'

const MAX_CODE = 1000
const MAX_DISPLAY = 500
const CACHED_CONSTANTS = 2000

interface TypeConstants {
  readonly self: bigint
  readonly compartment: bigint
  readonly units: bigint
  readonly canonical: bigint
  readonly parameters: readonly Constants[]
}

interface Constants {
  readonly p: bigint
  readonly present: bigint
  readonly absent: bigint
  readonly logical: bigint
  readonly words: bigint
  readonly texts: bigint
}

const findConstants = memoFor<Keys, TypeConstants>(CACHED_CONSTANTS)

function typeConstants(keys: Keys, project: number, plan: PlannedType): TypeConstants {
  return findConstants(keys, `${project}|${plan.type}|${plan.stamp}`, () => ({
    self: keys.param(project, plan.type, '_self'),
    compartment: keys.param(project, '*', '_compartment'),
    units: keys.units(project),
    canonical: keys.param(project, plan.type, CANONICAL_KEY),
    parameters: plan.parameters.map(({ code }) => {
      const p = keys.param(project, plan.type, code)
      return {
        p,
        present: keys.present(p),
        absent: keys.absent(p),
        logical: keys.logical(p),
        words: keys.words(p),
        texts: keys.texts(p),
      }
    }),
  }))
}

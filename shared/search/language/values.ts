/** Parses the values of a Condition, which are still escaped. https://hl7.org/fhir/R4/search.html#escaping */
import { badRequest } from '../../core/errors.ts'
import { resourceTypes } from '../../fhir/definitions.ts'
import type { SearchParameter } from '../../fhir/definitions-data.ts'
import { parseDate } from '../../fhir/values.ts'

type Prefix = 'eq' | 'ne' | 'gt' | 'lt' | 'ge' | 'le' | 'sa' | 'eb' | 'ap'

export interface TokenValue {
  /** Any system when undefined; `''` for no system. */
  readonly system: string | undefined
  /** Any code of the system when undefined. */
  readonly code: string | undefined
}

/** Half-open range of epoch milliseconds, already widened for `ap`, which matches overlaps. */
export interface DateValue {
  readonly prefix: Prefix
  readonly low: number
  readonly high: number
}

export interface NumberValue {
  readonly prefix: Prefix
  /** Number as written, compared by `lt gt le ge sa eb`. */
  readonly value: number
  /** Half-open range of the implied precision (`100` is 99.5 to 100.5); for `ap` 10 % on both sides, inclusive. */
  readonly low: number
  readonly high: number
}

export interface QuantityValue extends NumberValue {
  /** Any unit when undefined. Without `system`, `code` is a code or a human unit. */
  readonly code: string | undefined
  readonly system: string | undefined
}

export function unescapeValue(value: string): string {
  return value.includes('\\') ? value.replace(/\\([\\,|$])/g, '$1') : value
}

export function escapeValue(text: string): string {
  return text.replace(/[\\,|$]/g, '\\$&')
}

/** Splits at unescaped separators; the parts keep their escapes. */
export function splitValue(value: string, separator: ',' | '|' | '$'): string[] {
  if (!value.includes('\\')) return value.split(separator)
  const parts: string[] = []
  let start = 0
  for (let i = 0; i < value.length; i++) {
    if (value[i] === '\\') i++
    else if (value[i] === separator) {
      parts.push(value.slice(start, i))
      start = i + 1
    }
  }
  return [...parts, value.slice(start)]
}

/** Parses `code`, `system|code`, `|code` or `system|`. Errors: 400 for a lone `|`. */
export function parseTokenValue(value: string): TokenValue {
  const [first = '', ...rest] = splitValue(value, '|')
  if (rest.length === 0) return { system: undefined, code: unescapeValue(first) }
  const code = unescapeValue(rest.join('|'))
  const system = unescapeValue(first)
  if (system === '' && code === '') throw badRequest(`Invalid token value: ${value}`)
  return { system, code: code === '' ? undefined : code }
}

interface OfTypeValue {
  readonly system: string
  readonly code: string
  readonly value: string
}

/** Parses `system|code|value` of `:of-type`. Errors: 400 when a part is missing. */
export function parseOfTypeValue(text: string): OfTypeValue {
  const [system = '', code = '', value = '', ...more] = splitValue(text, '|').map(unescapeValue)
  if (code === '' || value === '' || more.length > 0) {
    throw badRequest(`Invalid value of :of-type: ${text}; use system|code|value`)
  }
  return { system, code, value }
}

/** Splits into one escaped part per component. Errors: 400 for the wrong number of parts. */
export function splitComposite(parameter: SearchParameter, value: string): readonly string[] {
  const parts = splitValue(value, '$')
  const wanted = parameter.components?.length ?? 0
  if (parts.length === wanted && !parts.includes('')) return parts
  throw badRequest(`${parameter.code} needs ${wanted} values joined by $, not ${value}`)
}

export interface NearValue {
  readonly latitude: number
  readonly longitude: number
  /** Infinite without a distance in the query. */
  readonly km: number
}

const KM: ReadonlyMap<string, number> = new Map([
  ['', 1],
  ['km', 1],
  ['m', 0.001],
  ['[mi_us]', 1.609347],
  ['[mi_i]', 1.609344],
])

/** Parses `latitude|longitude|distance|unit`; the default unit is km. Errors: 400. */
export function parseNearValue(text: string): NearValue {
  const [first = '', second = '', third = '', unit = '', ...more] = splitValue(text, '|')
  const [latitude, longitude, distance] = [first, second, third || 'Infinity'].map(Number)
  const km = KM.get(unit)
  const isNamed = first.trim() !== '' && second.trim() !== ''
  const isPlace = Math.abs(latitude ?? NaN) <= 90 && Math.abs(longitude ?? NaN) <= 180
  if (!isNamed || !isPlace || !(Number(distance) >= 0) || km === undefined || more.length > 0) {
    throw badRequest(`Invalid value of near: ${text}; use latitude|longitude|distance|unit`)
  }
  return { latitude: Number(latitude), longitude: Number(longitude), km: Number(distance) * km }
}

/** Errors: 400 `Invalid date value`. `now` is for `ap`. */
export function parseDateValue(value: string, now = Date.now()): DateValue {
  const { prefix, rest } = splitPrefix(value)
  // An unencoded plus sign arrives as a space.
  const range = parseDate(rest.replace(' ', '+'))
  if (range === undefined) throw badRequest(`Invalid date value: ${value}`)
  if (prefix !== 'ap') return { prefix, ...range }
  const { low, high } = range
  const margin = Math.max(high - low, Math.abs(now - (low + high) / 2) / 10)
  return { prefix, low: low - margin, high: high + margin }
}

export function parseNumberValue(value: string): NumberValue {
  const { prefix, rest } = splitPrefix(value)
  const match = /^[-+]?(\d{1,30})(?:\.(\d{1,30}))?(?:[eE]([-+]?\d{1,3}))?$/.exec(rest.trim())
  const number = Number(rest)
  if (!match || !Number.isFinite(number)) throw badRequest(`Invalid number value: ${value}`)
  if (prefix === 'ap') {
    const margin = Math.abs(number) / 10
    return { prefix, value: number, low: number - margin, high: number + margin }
  }
  const [, whole = '', fraction = '', exponent = '0'] = match
  // The standard reads 1e2 as 95 to 105: one digit before an exponent counts as two.
  const isShort = whole.length === 1 && fraction === '' && Number(exponent) > 0
  const digits = fraction.length - Number(exponent) + (isShort ? 1 : 0)
  const half = 0.5 * 10 ** -digits
  return { prefix, value: number, low: number - half, high: number + half }
}

/** Parses `5.4`, `5.4|system|code` and `5.4||unit`; without a code, any of the system. Errors: 400. */
export function parseQuantityValue(value: string): QuantityValue {
  const [number = '', system, code, ...more] = splitValue(value, '|')
  if (more.length > 0) throw badRequest(`Invalid quantity value: ${value}`)
  const range = parseNumberValue(number)
  const unit = unescapeValue(code ?? '')
  return {
    ...range,
    system: unescapeValue(system ?? '') || undefined,
    code: unit === '' ? undefined : unit,
  }
}

/** Returns each `Type/id` or URL that the value may denote; a bare id stands for every possible target type. */
export function parseReferenceValue(
  parameter: SearchParameter | undefined,
  modifier: string | undefined,
  value: string,
): readonly string[] {
  const text = unescapeValue(value).replace(/\/_history\/[^/]*$/, '')
  if (!/^[A-Za-z0-9\-.]{1,64}$/.test(text)) return [text]
  if (modifier !== undefined && /^[A-Z]/.test(modifier)) return [`${modifier}/${text}`]
  const targets = parameter?.targets ?? resourceTypes
  return [...targets.map((type) => `${type}/${text}`), text]
}

function splitPrefix(value: string): { prefix: Prefix; rest: string } {
  const match = /^(eq|ne|gt|lt|ge|le|sa|eb|ap)/.exec(value)
  if (!match) return { prefix: 'eq', rest: value }
  return { prefix: match[0] as Prefix, rest: value.slice(2) }
}

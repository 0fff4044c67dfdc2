/**
 * Parses and writes JSON without losing the precision of FHIR decimals (`1.00` is not `1.0`,
 * https://hl7.org/fhir/R4/datatypes.html#decimal). Numbers that JavaScript would render differently become Decimal,
 * which supports arithmetic and `<` but not `===` or `typeof`: read numbers with `toNumber`, check with `isDecimal`.
 */
import { isDeepStrictEqual } from 'node:util'
import { badRequest, badStructure } from '../core/errors.ts'
import { repeatedName } from './json-text.ts'
import { isObject, isResource, type Resource } from './resource.ts'

const { rawJSON } = JSON as unknown as { rawJSON(text: string): unknown }

export class Decimal extends Number {
  readonly #text: string

  constructor(text: string) {
    super(text)
    this.#text = text
  }

  override toString(): string {
    return this.#text
  }

  /** Makes JSON.stringify write the original text. */
  toJSON(): unknown {
    return rawJSON(this.#text)
  }
}

export function isDecimal(value: unknown): value is Decimal {
  return value instanceof Decimal
}

export function toNumber(value: unknown): number | undefined {
  if (typeof value === 'number') return value
  return value instanceof Decimal ? value.valueOf() : undefined
}

// Numbers that JavaScript may render differently: trailing zeros of a fraction, exponents, more than 15 digits, below
// 1e-6, minus zero. The look-ahead skips most look-alikes inside strings.
const ODD_NUMBER =
  /[:[,]\s*(-?(?:\d+\.\d*0|[\d.]+[eE][-+]?\d+|[\d.]{16,}|0\.000000\d*|0))(?=\s*[,}\]])/g

export function parseJson(text: string): unknown {
  // A bare number, or text that already contains the mark.
  if (/^\s*-?\d/.test(text) || text.includes('\\u0000')) return JSON.parse(text, keepText)
  let marked: string
  try {
    marked = text.replace(ODD_NUMBER, withMark)
  } catch {
    // Millions of consecutive digits overflow the stack of the pattern.
    return JSON.parse(text, keepText)
  }
  if (marked === text) return JSON.parse(text)
  try {
    return withDecimals(JSON.parse(marked))
  } catch {
    // The inserted quotes broke a string that contains a number look-alike.
    return JSON.parse(text, keepText)
  }
}

const MARK = '\u0000'

function withMark(all: string, number: string): string {
  if (String(Number(number)) === number || !JSON_NUMBER.test(number)) return all
  return `${all.slice(0, -number.length)}"\\u0000${number}"`
}

const JSON_NUMBER = /^-?(?:0|[1-9]\d*)(?:\.\d+)?(?:[eE][-+]?\d+)?$/

/** Replaces marked strings by Decimals, in place. */
function withDecimals(value: unknown): unknown {
  if (typeof value === 'string') return value.startsWith(MARK) ? new Decimal(value.slice(1)) : value
  if (Array.isArray(value)) {
    for (const [i, item] of value.entries()) value[i] = withDecimals(item)
    return value
  }
  if (typeof value !== 'object' || value === null) return value
  const members = value as Record<string, unknown>
  for (const name in members) {
    const member = members[name]
    if (typeof member === 'object' || (typeof member === 'string' && member.startsWith(MARK))) {
      members[name] = withDecimals(member)
    }
  }
  return value
}

function keepText(_key: string, value: unknown, context?: { source?: string }): unknown {
  const source = context?.source
  if (typeof value !== 'number' || source === undefined || String(value) === source) return value
  return new Decimal(source)
}

/** Compares values regardless of key order, numbers as written. */
export function isSameJson(a: string, b: string): boolean {
  // A boxed string equals no primitive string, so 1.0 and "1.0" differ.
  const box = (_key: string, value: unknown, context?: { source?: string }) =>
    typeof value === 'number' ? new String(context?.source) : value
  return isDeepStrictEqual(JSON.parse(a, box), JSON.parse(b, box))
}

/** Compares parsed values regardless of key order; a Decimal as written. */
export function isSameValue(a: unknown, b: unknown): boolean {
  if (a === b) return true
  if (typeof a !== 'object' || typeof b !== 'object' || a === null || b === null) return false
  if (a instanceof Decimal || b instanceof Decimal) {
    return a instanceof Decimal && b instanceof Decimal && a.toString() === b.toString()
  }
  if (Array.isArray(a) || Array.isArray(b)) {
    if (!Array.isArray(a) || !Array.isArray(b) || a.length !== b.length) return false
    return a.every((item, i) => isSameValue(item, b[i]))
  }
  return hasSameMembers(Object(a), Object(b))
}

function hasSameMembers(a: Record<string, unknown>, b: Record<string, unknown>): boolean {
  for (const name in a) if (!isSameValue(a[name], b[name])) return false
  for (const name in b) if (b[name] !== undefined && a[name] === undefined) return false
  return true
}

export const MAX_DEPTH = 64

/** Parses UTF-8 of at most 64 levels. Errors: 400 for NUL or a repeated name, with its path. */
export function parseBody(body: Buffer | string): unknown {
  const text = decodeText(body)
  // PostgreSQL text and FHIR strings cannot contain NUL.
  if (text.includes('\\u0000') && /(?<!\\)(?:\\\\)*\\u0000/.test(text)) {
    throw badRequest('Null bytes are not allowed')
  }
  let value: unknown
  try {
    value = parseJson(text)
  } catch {
    throw badRequest('Content could not be parsed')
  }
  if (isDeeper(value, MAX_DEPTH)) throw badRequest(`JSON is nested deeper than ${MAX_DEPTH} levels`)
  refuseRepeatedName(text, value)
  return value
}

/** JSON.parse would silently keep the last value: https://hl7.org/fhir/R4/json.html#xml */
function refuseRepeatedName(text: string, value: unknown): void {
  const path = repeatedName(text)
  if (path === undefined) return
  const root = isResource(value) ? `${value.resourceType}.` : ''
  const place = `${root}${path}`.slice(0, 1000)
  throw badStructure(`Property given more than once: ${place}`, place)
}

const utf8 = new TextDecoder('utf-8', { fatal: true })

/** Decodes a body and drops the byte order mark. Errors: 400 for invalid UTF-8, which would be lost. */
export function decodeText(body: Buffer | string): string {
  if (typeof body === 'string') return body.startsWith('\uFEFF') ? body.slice(1) : body
  try {
    return utf8.decode(body)
  } catch {
    throw badRequest('Content could not be parsed')
  }
}

export function isDeeper(value: unknown, levels: number): boolean {
  if (typeof value !== 'object' || value === null || value instanceof Decimal) return false
  return levels === 0 || Object.values(value).some((item) => isDeeper(item, levels - 1))
}

/** Removes nulls, blank strings, empty arrays and empty objects. Returns the same object when there are none. */
export function withoutEmpty(resource: Resource): Resource {
  return (clean(resource) ?? { resourceType: resource.resourceType }) as Resource
}

/** Removes members that hold "", [] or {}, but no array items. Returns the same object if there are none. */
export function withoutEmptyMembers(resource: Resource): Resource {
  return trimObject(resource as Fields) as Resource
}

type Fields = Readonly<Record<string, unknown>>

function trimObject(value: Fields): Fields {
  let trimmed: Record<string, unknown> | undefined
  for (const key in value) {
    const member = value[key]
    const kept = trim(member)
    if (kept === member) continue
    trimmed ??= { ...value }
    if (kept === undefined) delete trimmed[key]
    else trimmed[key] = kept
  }
  return trimmed ?? value
}

function trim(value: unknown): unknown {
  if (value === '') return undefined
  if (typeof value !== 'object' || value === null || isDecimal(value)) return value
  if (!Array.isArray(value)) return undefinedIfEmpty(trimObject(value as Fields))
  if (value.length === 0) return undefined
  const items = value.map((item) => (isObject(item) && !isDecimal(item) ? trimObject(item) : item))
  return keepIfSame(value, items)
}

function undefinedIfEmpty(value: Fields): Fields | undefined {
  for (const _ in value) return value
  return undefined
}

function clean(value: unknown): unknown {
  if (value === null || (typeof value === 'string' && !/\S/.test(value))) return undefined
  if (typeof value !== 'object' || isDecimal(value)) return value
  if (!Array.isArray(value)) return cleanMembers(value as Readonly<Record<string, unknown>>)
  const kept = value.map(clean).filter((item) => item !== undefined)
  return kept.length === 0 ? undefined : keepIfSame(value, kept)
}

function cleanMembers(value: Readonly<Record<string, unknown>>): unknown {
  let changed: Map<string, unknown> | undefined
  let isEmpty = true
  for (const key in value) {
    const item = value[key]
    const cleaned = hasSibling(value, key) ? cleanInPlace(item) : clean(item)
    if (cleaned !== undefined) isEmpty = false
    if (cleaned === item) continue
    changed ??= new Map()
    changed.set(key, cleaned)
  }
  if (isEmpty) return undefined
  if (changed === undefined) return value
  const members = Object.entries(value).map(([key, item]) =>
    changed.has(key) ? [key, changed.get(key)] : [key, item],
  )
  return Object.fromEntries(members.filter(([, item]) => item !== undefined))
}

function hasSibling(value: object, key: string): boolean {
  return key.startsWith('_') || Object.hasOwn(value, `_${key}`)
}

/** Keeps nulls that align an array of primitives with its `_name` array. */
function cleanInPlace(value: unknown): unknown {
  if (!Array.isArray(value)) return clean(value)
  const cleaned = value.map((item) => clean(item) ?? null)
  return cleaned.every((item) => item === null) ? undefined : keepIfSame(value, cleaned)
}

function keepIfSame(before: readonly unknown[], after: readonly unknown[]): readonly unknown[] {
  const isSame = before.length === after.length && before.every((item, i) => item === after[i])
  return isSame ? before : after
}

/** Maps a string; `name` is the element that contains it. */
type MapString = (text: string, name: string) => string

/** Maps all strings. Copies changed paths only; returns the same object when nothing changes. */
export function mapStrings<T>(value: T, map: MapString): T {
  return mapValue(value, '', map) as T
}

function mapValue(value: unknown, name: string, map: MapString): unknown {
  if (typeof value === 'string') return map(value, name)
  if (typeof value !== 'object' || value === null || isDecimal(value)) return value
  if (Array.isArray(value)) return mapItems(value, name, map)
  // Parsed JSON has own members only.
  const members = value as Readonly<Record<string, unknown>>
  let changed: Record<string, unknown> | undefined
  for (const key in members) {
    const item = members[key]
    const mapped = mapValue(item, key, map)
    if (mapped === item) continue
    changed ??= { ...value }
    changed[key] = mapped
  }
  return changed ?? value
}

function mapItems(items: readonly unknown[], name: string, map: MapString): unknown {
  let changed: unknown[] | undefined
  for (const [index, item] of items.entries()) {
    const mapped = mapValue(item, name, map)
    if (mapped === item) continue
    changed ??= [...items]
    changed[index] = mapped
  }
  return changed ?? items
}

/** Replaces NUL and halves of surrogate pairs by U+FFFD: PostgreSQL rejects them in texts or in jsonb. */
export function toStorable(text: string): string {
  return text.toWellFormed().replaceAll('\0', '\ufffd')
}

/** False for a decimal, which is an object that keeps its digits. */
export function isPlainObject(value: unknown): value is Record<string, unknown> {
  return isObject(value) && !isDecimal(value)
}

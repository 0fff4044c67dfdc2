/** Equality and order of FHIRPath values, where plain code can decide them. */
import { getOrInsert } from '../core/cache.ts'
import { isDecimal, toNumber } from '../fhir/json.ts'
import { isObject } from '../fhir/resource.ts'

/** Thrown when an expression needs the FHIRPath engine. */
export const NOT_PLAIN = new Error('Not a plain invariant')

/** An element without a value: only an id or extensions. */
export const NO_VALUE = Symbol('no value')

function isEqualValue(a: unknown, b: unknown): boolean | undefined {
  if (a === NO_VALUE || b === NO_VALUE) return undefined
  if (typeof a === 'object' || typeof b === 'object') {
    const [x, y] = [toNumber(a), toNumber(b)]
    if (x === undefined || y === undefined) throw NOT_PLAIN
    return x === y
  }
  if (isDate(a) && isDate(b)) throw NOT_PLAIN
  return a === b
}

/** Negative, zero or positive; undefined where the standard leaves the order open. */
function compareValues(a: unknown, b: unknown): number | undefined {
  if (a === NO_VALUE || b === NO_VALUE) return undefined
  const [x, y] = [toNumber(a), toNumber(b)]
  if (x !== undefined && y !== undefined) return x - y
  if (isDate(a) && isDate(b)) return compareDates(a, b)
  if (isObject(a) && isObject(b)) return compareQuantities(a, b)
  throw NOT_PLAIN
}

const DATE = /^\d{4}(?:-\d\d(?:-\d\d(?:T\d\d:\d\d:\d\d(?:\.\d+)?(?:Z|[+-]\d\d:\d\d))?)?)?$/

function isDate(value: unknown): value is string {
  return typeof value === 'string' && DATE.test(value)
}

/** Compares dates of equal precision; others are undefined: https://hl7.org/fhirpath/N1/#datetime-equality */
function compareDates(a: string, b: string): number | undefined {
  const hasTime = a.length > 10
  if (hasTime !== b.length > 10) throw NOT_PLAIN
  if (hasTime) return Date.parse(a) - Date.parse(b)
  const length = Math.min(a.length, b.length)
  const [x, y] = [a.slice(0, length), b.slice(0, length)]
  if (x !== y) return x < y ? -1 : 1
  return a.length === b.length ? 0 : undefined
}

/** Compares amounts of the same unit; the engine converts units. */
function compareQuantities(
  a: Record<string, unknown>,
  b: Record<string, unknown>,
): number | undefined {
  const [x, y] = [toNumber(a.value), toNumber(b.value)]
  if (x === undefined || y === undefined) return undefined
  const isSameUnit =
    a.code === undefined && b.code === undefined
      ? a.unit === b.unit
      : a.code === b.code && a.system === b.system
  if (!isSameUnit) throw NOT_PLAIN
  return x - y
}

type Comparison = (a: unknown, b: unknown) => boolean | undefined

export const COMPARISONS: ReadonlyMap<string, Comparison> = new Map([
  ['=', isEqualValue],
  ['!=', isOtherValue],
  ['<', ordered((order) => order < 0)],
  ['>', ordered((order) => order > 0)],
  ['<=', ordered((order) => order <= 0)],
  ['>=', ordered((order) => order >= 0)],
])

function isOtherValue(a: unknown, b: unknown): boolean | undefined {
  const isEqual = isEqualValue(a, b)
  return isEqual === undefined ? undefined : !isEqual
}

function ordered(test: (order: number) => boolean): Comparison {
  return (a, b) => {
    const order = compareValues(a, b)
    return order === undefined ? undefined : test(order)
  }
}

export function isMember(one: readonly unknown[], all: readonly unknown[]): boolean | undefined {
  if (one.length === 0) return undefined
  if (one.length > 1) throw NOT_PLAIN
  const [value] = one
  if (typeof value === 'string' && !isDate(value)) return toLookup(all).has(value)
  return all.some((item) => isEqualValue(item, value) === true)
}

const texts = new WeakMap<readonly unknown[], ReadonlySet<unknown>>()

/** Built once per list, which is searched many times. */
function toLookup(all: readonly unknown[]): { has(value: unknown): boolean } {
  if (all.length < 20) return { has: (value) => all.includes(value) }
  return getOrInsert(texts, all, () => new Set(all))
}

/** Returns the items that are among `others`, in linear time. */
export function intersection(items: readonly unknown[], others: readonly unknown[]): unknown[] {
  const known = new Set(others.map(canonicalJson))
  return items.filter((item) => known.has(canonicalJson(item)))
}

/** Canonical text: equal values give equal text, regardless of key order. */
function canonicalJson(value: unknown): string {
  return JSON.stringify(value, (_name, inner: unknown) => {
    if (!isObject(inner) || isDecimal(inner)) return inner
    return Object.fromEntries(Object.entries(inner).sort(([a], [b]) => (a < b ? -1 : 1)))
  })
}

const TEXTS = ['code', 'id', 'markdown']
const URIS = ['url', 'canonical', 'uuid', 'oid']
const WHOLE = ['positiveInt', 'unsignedInt']

/**
 * Subtypes by the FHIR hierarchy, and FHIRPath types of FHIR primitives. https://hl7.org/fhir/R4/fhirpath.html#types
 */
const KINDS: ReadonlyMap<string, readonly string[]> = new Map([
  ['string', TEXTS],
  ['uri', URIS],
  ['integer', WHOLE],
  ['Quantity', ['Age', 'Count', 'Distance', 'Duration', 'MoneyQuantity', 'SimpleQuantity']],
  ['Boolean', ['boolean']],
  ['String', ['string', ...TEXTS, 'uri', ...URIS, 'base64Binary']],
  ['Integer', ['integer', ...WHOLE]],
  ['Decimal', ['decimal']],
  ['Date', ['date']],
  ['DateTime', ['date', 'dateTime', 'instant']],
  ['Time', ['time']],
])

/** True when an element of `type` satisfies `is wanted`. Throws NOT_PLAIN where the type hierarchy is needed. */
export function isSubtype(type: string, wanted: string): boolean {
  if (type === wanted || KINDS.get(wanted)?.includes(type)) return true
  if (ABSTRACT.has(wanted) || ABSTRACT.has(type)) throw NOT_PLAIN
  return false
}

const ABSTRACT = new Set(['Element', 'BackboneElement', 'Resource', 'DomainResource'])

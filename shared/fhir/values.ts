/** Converts elements to searchable values; wrong shapes are skipped. https://hl7.org/fhir/R4/search.html#ptypes */

import { createRequire } from 'node:module'
import { Cache } from '../core/cache.ts'
import { toNumber } from './json.ts'
import { isObject, nonEmptyText } from './resource.ts'

export interface Token {
  /** Undefined for types without a system (code, boolean, string, id). */
  readonly system: string | undefined
  readonly code: string
  readonly display?: string | undefined
  /** Identifier type, for `:of-type` and `:text`. */
  readonly types?: readonly Token[]
  /** `code` is a value of a short list; `plain` is other text, possibly a secret. */
  readonly kind: 'coding' | 'code' | 'identifier' | 'contact' | 'plain' | 'text'
}

export interface QuantityRange {
  readonly low: number
  readonly high: number
  readonly system: string
  readonly code: string | undefined
  readonly unit: string | undefined
}

interface Target {
  /** `Type/id` without version, an absolute URL or a canonical; never `#contained`. */
  readonly literal: string | undefined
  readonly identifier: Token | undefined
}

type Fields = Readonly<Record<string, unknown>>

const CURRENCY = 'urn:iso:std:iso:4217'
const NONE: readonly never[] = []

/** Extracts the tokens of one element; `isFolded` for `email` and `phone`. */
export function extractTokens(type: string, value: unknown, isFolded = false): readonly Token[] {
  if (typeof value === 'boolean') return [{ kind: 'code', system: undefined, code: String(value) }]
  if (typeof value === 'string') {
    const kind = type === 'code' ? 'code' : 'plain'
    return value === '' ? NONE : [{ kind, system: undefined, code: value }]
  }
  if (!isObject(value)) return NONE
  switch (type) {
    case 'CodeableConcept':
      return conceptTokens(value)
    case 'Coding':
      return codingTokens(value)
    case 'Identifier': {
      const token = identifierToken(value)
      return token === undefined ? NONE : [token]
    }
    case 'ContactPoint': {
      const code = nonEmptyText(value.value)
      if (code === undefined) return NONE
      const folded = isFolded ? code.toLowerCase() : code
      return [{ kind: 'contact', system: nonEmptyText(value.system) ?? '', code: folded }]
    }
    default:
      return NONE
  }
}

function conceptTokens(concept: Fields): readonly Token[] {
  const tokens: Token[] = []
  if (Array.isArray(concept.coding)) {
    for (const coding of concept.coding) {
      if (isObject(coding)) tokens.push(...codingTokens(coding))
    }
  }
  const free = nonEmptyText(concept.text)
  if (free !== undefined) tokens.push({ kind: 'text', system: undefined, code: free })
  return tokens
}

function codingTokens(coding: Fields): readonly Token[] {
  const code = nonEmptyText(coding.code)
  if (code === undefined) return NONE
  const system = nonEmptyText(coding.system) ?? ''
  return [{ kind: 'coding', system, code, display: nonEmptyText(coding.display) }]
}

function identifierToken(identifier: Fields): Token | undefined {
  const code = nonEmptyText(identifier.value)
  if (code === undefined) return undefined
  const types = isObject(identifier.type) ? conceptTokens(identifier.type) : NONE
  return {
    kind: 'identifier',
    system: nonEmptyText(identifier.system) ?? '',
    code,
    types,
  }
}

export function extractDateRange(type: string, value: unknown): DateRange | undefined {
  if (typeof value === 'string') return parseDate(value)
  if (!isObject(value)) return undefined
  if (type === 'Period') return parsePeriod(value)
  return type === 'Timing' ? timingRange(value) : undefined
}

/** Spans the first event or bound to the last. */
function timingRange(timing: Fields): DateRange | undefined {
  const events = Array.isArray(timing.event) ? timing.event.map(parseDate) : []
  const bounds = isObject(timing.repeat) ? timing.repeat.boundsPeriod : undefined
  const ranges = [...events, isObject(bounds) ? parsePeriod(bounds) : undefined].filter(
    (range) => range !== undefined,
  )
  if (ranges.length === 0) return undefined
  return ranges.reduce((a, b) => ({ low: Math.min(a.low, b.low), high: Math.max(a.high, b.high) }))
}

/** Extracts the range of one element for a number or quantity parameter; a Range may be open-ended. */
export function extractQuantity(type: string, value: unknown): QuantityRange | undefined {
  const bare = toNumber(value)
  if (bare !== undefined) return exact(bare, '', undefined, undefined)
  if (!isObject(value)) return undefined
  if (type === 'Range') return rangeQuantity(value)
  const number = toNumber(value.value)
  if (number === undefined) return undefined
  if (type === 'Money') return exact(number, CURRENCY, nonEmptyText(value.currency), undefined)
  const code = nonEmptyText(value.code)
  const system = code === undefined ? '' : (nonEmptyText(value.system) ?? '')
  return withComparator(exact(number, system, code, nonEmptyText(value.unit)), value.comparator)
}

function exact(
  value: number,
  system: string,
  code: string | undefined,
  unit: string | undefined,
): QuantityRange {
  return { low: value, high: value, system, code, unit }
}

function withComparator(quantity: QuantityRange, comparator: unknown): QuantityRange {
  if (comparator === '<' || comparator === '<=') return { ...quantity, low: -Infinity }
  if (comparator === '>' || comparator === '>=') return { ...quantity, high: Infinity }
  return quantity
}

function rangeQuantity(range: Fields): QuantityRange | undefined {
  const low = extractQuantity('Quantity', range.low)
  const high = extractQuantity('Quantity', range.high)
  const either = low ?? high
  if (either === undefined) return undefined
  return { ...either, low: low?.low ?? -Infinity, high: high?.high ?? Infinity }
}

export function extractStrings(type: string, value: unknown): readonly string[] {
  if (typeof value === 'string') return value === '' ? NONE : [value]
  if (!isObject(value)) return NONE
  const names = PARTS[type]
  if (names === undefined) return NONE
  const parts: string[] = []
  for (const name of names) {
    const part = value[name]
    if (typeof part === 'string') parts.push(part)
    else if (Array.isArray(part)) {
      for (const item of part) if (typeof item === 'string') parts.push(item)
    }
  }
  return parts
}

const PARTS: Readonly<Record<string, readonly string[]>> = {
  HumanName: ['family', 'given', 'prefix', 'suffix', 'text'],
  Address: ['line', 'city', 'district', 'state', 'postalCode', 'country', 'text'],
}

export function extractTarget(type: string, value: unknown): Target | undefined {
  if (typeof value === 'string') return literalTarget(value, undefined)
  if (!isObject(value)) return undefined
  if (type === 'Resource') {
    const [name, id] = [nonEmptyText(value.resourceType), nonEmptyText(value.id)]
    return name && id ? { literal: `${name}/${id}`, identifier: undefined } : undefined
  }
  if (type !== 'Reference') return undefined
  const identifier = isObject(value.identifier) ? identifierToken(value.identifier) : undefined
  return literalTarget(nonEmptyText(value.reference), identifier)
}

function literalTarget(
  reference: string | undefined,
  identifier: Token | undefined,
): Target | undefined {
  if (reference === undefined || reference.startsWith('#')) {
    return identifier === undefined ? undefined : { literal: undefined, identifier }
  }
  const version = reference.indexOf('/_history/')
  return { literal: version === -1 ? reference : reference.slice(0, version), identifier }
}

/** Extracts a uri or canonical; a versioned canonical is indexed with and without version. */
export function extractUris(value: unknown): readonly string[] {
  const uri = nonEmptyText(value)
  if (uri === undefined) return NONE
  const version = uri.indexOf('|')
  return version === -1 ? [uri] : [uri, uri.slice(0, version)]
}

/** Longer code names are compared by this prefix. */
const MAX_STRING = 200

/** NFKD, without marks, lower case, single spaces, trimmed, at most MAX_STRING characters. */
export function normaliseString(text: string): string {
  const start = text.length > MAX_STRING * 4 ? text.slice(0, MAX_STRING * 4) : text
  const plain = ASCII.test(start) ? start : start.normalize('NFKD').replace(/\p{M}+/gu, '')
  // Drops control characters: PostgreSQL text cannot hold NUL.
  const spaced = plain
    .toLowerCase()
    .replace(/[\s\p{Cc}]+/gu, ' ')
    .trim()
  return spaced.length > MAX_STRING ? spaced.slice(0, MAX_STRING).toWellFormed().trimEnd() : spaced
}

/** Letters and digits in words separated by single spaces, as `:text` of a token compares them. */
export function plainWords(text: string): string {
  return normaliseString(text)
    .replace(/[^\p{L}\p{N}]+/gu, ' ')
    .trim()
}

export const ASCII = /^[\x20-\x7e]*$/

// FHIR dates as half-open ranges [low, high) of epoch milliseconds. https://hl7.org/fhir/R4/search.html#date

export interface DateRange {
  readonly low: number
  readonly high: number
}

const DATE =
  /^(\d{4})(?:-(\d\d)(?:-(\d\d)(?:T(\d\d):(\d\d)(?::(\d\d)(?:\.(\d{1,20}))?)?(Z|[+-]\d\d:\d\d)?)?)?)?$/
const MINUTE = 60_000
const DAY = 86_400_000

/** Parses a date, dateTime or instant of any precision; UTC without a zone. Undefined for anything else. */
export function parseDate(text: unknown): DateRange | undefined {
  if (typeof text !== 'string' || text.length > 50) return undefined
  const match = DATE.exec(text)
  if (!match) return undefined
  const [, yyyy, mm, dd, hour, minute, second, fraction, zone] = match
  const year = Number(yyyy)
  if (year === 0) return undefined
  if (mm === undefined) return { low: utc(year, 0, 1), high: utc(year + 1, 0, 1) }
  const month = Number(mm) - 1
  if (month < 0 || month > 11) return undefined
  if (dd === undefined) return { low: utc(year, month, 1), high: utc(year, month + 1, 1) }
  const day = Number(dd)
  const start = utc(year, month, day)
  if (day < 1 || start >= utc(year, month + 1, 1)) return undefined
  if (hour === undefined) return { low: start, high: start + DAY }
  const [hours, minutes, seconds] = [Number(hour), Number(minute), Number(second ?? 0)]
  if (hours > 23 || minutes > 59 || seconds > 60) return undefined
  const shift = offset(zone)
  if (shift === undefined) return undefined
  const ms = fraction === undefined ? 0 : Math.floor(Number(`0.${fraction}`) * 1000 + 1e-6)
  const low = start + hours * 3_600_000 + minutes * MINUTE + seconds * 1000 + ms - shift
  const width =
    second === undefined
      ? MINUTE
      : fraction === undefined
        ? 1000
        : 10 ** Math.max(0, 3 - fraction.length)
  return { low, high: low + width }
}

/** Parses a Period, open ends as infinity; undefined without start and end. */
function parsePeriod(value: Readonly<Record<string, unknown>>): DateRange | undefined {
  const start = parseDate(value.start)
  const end = parseDate(value.end)
  if (start === undefined && end === undefined) return undefined
  return { low: start?.low ?? -Infinity, high: end?.high ?? Infinity }
}

/** Both ends of a range are often on one day; toISOString is slow. */
let lastDay = { number: Number.NaN, text: '' }
/** Search statements repeat the ends of their ranges. */
const written = new Map<number, string>()
const MOST_WRITTEN = 1000

/** Formats a timestamptz for PostgreSQL; infinite outside the years 1 to 9999. */
export function timestamp(ms: number): string {
  if (ms < FIRST) return '-infinity'
  if (ms > LAST) return 'infinity'
  const known = written.get(ms)
  if (known !== undefined) return known
  const text = formatInstant(ms)
  if (written.size === MOST_WRITTEN) written.clear()
  written.set(ms, text)
  return text
}

function formatInstant(ms: number): string {
  const day = Math.floor(ms / DAY)
  if (day !== lastDay.number) lastDay = { number: day, text: new Date(day * DAY).toISOString() }
  const time = ms - day * DAY
  const seconds = Math.floor(time / 1000)
  const clock = [seconds / 3600, (seconds / 60) % 60, seconds % 60].map(twoDigits).join(':')
  return `${lastDay.text.slice(0, 11)}${clock}.${String(1000 + (time % 1000)).slice(1)}Z`
}

function twoDigits(value: number): string {
  return String(100 + Math.floor(value)).slice(1)
}

function utc(year: number, month: number, day: number): number {
  if (year >= 100) return Date.UTC(year, month, day)
  return new Date(0).setUTCFullYear(year, month, day)
}

function offset(zone: string | undefined): number | undefined {
  if (zone === undefined || zone === 'Z') return 0
  const hours = Number(zone.slice(1, 3))
  const minutes = Number(zone.slice(4))
  if (hours > 14 || minutes > 59) return undefined
  return (hours * 60 + minutes) * (zone.startsWith('-') ? -MINUTE : MINUTE)
}

const FIRST = utc(1, 0, 1)
const LAST = utc(10_000, 0, 1) - 1

// Units of measure in UCUM: https://ucum.org/ucum

export const UCUM = 'http://unitsofmeasure.org'

interface Ucum {
  convertUnitTo(from: string, value: number, to: string): { readonly toVal: number | null }
}

/** Rounds off conversion errors, so that 100 cm equals 1 m. */
const DIGITS = 12

/** Converts a value; undefined when a unit is unknown or the dimensions differ. */
export function convert(value: number, from: string, to: string): number | undefined {
  const pair = `${from} ${to}`
  if (apart.has(pair)) return undefined
  const { toVal } = ucum().convertUnitTo(from, value, to)
  if (toVal === null) apart.set(pair, true)
  return toVal === null ? undefined : Number(toVal.toPrecision(DIGITS))
}

/** Pairs of incompatible units: a search with a unit checks all units of the data repeatedly. */
const apart = new Cache<string, true>({ name: 'incomparable-units', max: 10_000 })

let loaded: Ucum | undefined

/** Loaded on first use because its tables load slowly. */
function ucum(): Ucum {
  // The package has no types; only this function is used.
  loaded ??= createRequire(import.meta.url)('@lhncbc/ucum-lhc').UcumLhcUtils.getInstance() as Ucum
  return loaded
}

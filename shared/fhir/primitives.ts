/** Checks of primitive values in JSON. https://hl7.org/fhir/R4/datatypes.html#primitive */
import { isDecimal, toNumber } from './json.ts'

/** Returns an error message, or undefined for a valid value. */
export type PrimitiveCheck = (value: unknown) => string | undefined

export function isPrimitive(type: string): boolean {
  return checks.has(type)
}

export function primitiveCheck(type: string): PrimitiveCheck {
  const check = checks.get(type)
  if (check === undefined) throw new Error(`"${type}" is not a primitive type`)
  return check
}

export const EMPTY_STRING = 'String must contain non-whitespace content'
/** https://hl7.org/fhir/R4/datatypes.html#string; longer strings overflow the stack of a pattern. */
const MAX_STRING = 1_048_576
const TOO_LONG = 'String cannot be larger than 1 MB'
/** https://hl7.org/fhir/R4/datatypes.html#string allows tab, line feed and carriage return. */
const CONTROL = /[^\t\n\r -\uffff]/
const NO_CONTROL = 'String must not contain control characters'

const YEAR = '(?:[1-9]\\d{3}|0[1-9]\\d\\d|00[1-9]\\d|000[1-9])'
const MONTH = '(?:0[1-9]|1[0-2])'
const DAY = '(?:0[1-9]|[12]\\d|3[01])'
const CLOCK = '(?:[01]\\d|2[0-3]):[0-5]\\d:(?:[0-5]\\d|60)(?:\\.\\d{1,20})?'
const ZONE = '(?:Z|[+-](?:(?:0\\d|1[0-3]):[0-5]\\d|14:00))'

const date = new RegExp(`^${YEAR}(?:-${MONTH}(?:-${DAY})?)?$`)
const dateTime = new RegExp(`^${YEAR}(?:-${MONTH}(?:-${DAY}(?:T${CLOCK}${ZONE})?)?)?$`)
const instant = new RegExp(`^${YEAR}-${MONTH}-${DAY}T${CLOCK}${ZONE}$`)
const time = new RegExp(`^${CLOCK}$`)

const checks: ReadonlyMap<string, PrimitiveCheck> = new Map<string, PrimitiveCheck>([
  ['boolean', (value) => (typeof value === 'boolean' ? undefined : wrongType('boolean', value))],
  ['decimal', checkDecimal],
  ['integer', checkInteger],
  ['unsignedInt', (value) => checkFrom(value, 0, 'non-negative')],
  ['positiveInt', (value) => checkFrom(value, 1, 'positive')],
  ['string', checkText],
  ['markdown', checkText],
  ['xhtml', (value) => checkString(value, isClean, 'xhtml', Number.POSITIVE_INFINITY)],
  ['code', (value) => checkString(value, isCode, 'code')],
  ['id', (value) => checkString(value, matches(/^[A-Za-z0-9\-.]{1,64}$/), 'id')],
  ['uri', (value) => checkString(value, isUri, 'uri')],
  ['url', (value) => checkString(value, isUri, 'url')],
  ['canonical', (value) => checkString(value, isUri, 'canonical')],
  ['oid', (value) => checkString(value, matches(/^urn:oid:[0-2](?:\.(?:0|[1-9]\d*))+$/), 'oid')],
  [
    'uuid',
    (value) =>
      checkString(value, matches(/^urn:uuid:[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}$/), 'uuid'),
  ],
  [
    'base64Binary',
    (value) => checkString(value, isBase64, 'base64Binary', Number.POSITIVE_INFINITY),
  ],
  ['date', (value) => checkString(value, matchesDay(date), 'date')],
  ['dateTime', (value) => checkString(value, matchesDay(dateTime), 'dateTime')],
  ['instant', (value) => checkString(value, matchesDay(instant), 'instant')],
  ['time', (value) => checkString(value, matches(time), 'time')],
])

function wrongType(expected: string, value: unknown): string {
  const actual = toNumber(value) === undefined ? typeof value : 'number'
  return `Invalid JSON type: expected ${expected}, but got ${actual}`
}

function checkText(value: unknown): string | undefined {
  if (typeof value !== 'string') return wrongType('string', value)
  if (value.length > MAX_STRING) return TOO_LONG
  if (!/\S/.test(value)) return EMPTY_STRING
  return isClean(value) ? undefined : NO_CONTROL
}

function checkString(
  value: unknown,
  isMatch: (text: string) => boolean,
  type: string,
  maxLength = MAX_STRING,
): string | undefined {
  if (typeof value !== 'string') return wrongType('string', value)
  if (value.length > maxLength) return TOO_LONG
  if (isMatch(value)) return undefined
  return /\S/.test(value) ? `Invalid ${type} format` : EMPTY_STRING
}

/** Groups of four with padding; whitespace is ignored. */
export function isBase64(text: string): boolean {
  const packed = /\s/.test(text) ? text.replace(/\s+/g, '') : text
  return packed.length % 4 === 0 && packed !== '' && /^[A-Za-z0-9+/]+={0,2}$/.test(packed)
}

/** Words separated by single spaces. */
function isCode(text: string): boolean {
  return text !== '' && !/^\s|\s\s|\s$/.test(text) && isClean(text)
}

function isUri(text: string): boolean {
  return /^\S+$/.test(text) && isClean(text)
}

function isClean(text: string): boolean {
  return !CONTROL.test(text)
}

function matches(pattern: RegExp): (text: string) => boolean {
  return (text) => pattern.test(text)
}

/** Matches the pattern and checks that the month has this day. */
function matchesDay(pattern: RegExp): (text: string) => boolean {
  return (text) => {
    if (!pattern.test(text)) return false
    const day = Number(text.slice(8, 10))
    if (day < 29) return true
    return day <= new Date(Date.UTC(shiftYear(text), Number(text.slice(5, 7)), 0)).getUTCDate()
  }
}

/** Date.UTC maps years below 100 to 19xx; 400 years later has the same leap years. */
function shiftYear(text: string): number {
  return Number(text.slice(0, 4)) + 400
}

function checkDecimal(value: unknown): string | undefined {
  const number = toNumber(value)
  if (number === undefined) return wrongType('number', value)
  const isKept = Number.isFinite(number) && decimalPlaces(value) <= MAX_PLACES
  return isKept ? undefined : 'Invalid numeric value'
}

/** PostgreSQL reads numbers with so many digits after the point: a search may sort by their resource. */
const MAX_PLACES = 16_383

function decimalPlaces(value: unknown): number {
  if (!isDecimal(value)) return 0
  const [digits = '', exponent = 0] = value.toString().toLowerCase().split('e')
  const point = digits.indexOf('.')
  const places = point === -1 ? 0 : digits.length - point - 1
  return places - Number(exponent)
}

const MIN_INTEGER = -2_147_483_648
const MAX_INTEGER = 2_147_483_647

function checkInteger(value: unknown): string | undefined {
  const fault = checkDecimal(value)
  if (fault !== undefined) return fault
  const number = Number(value)
  if (!Number.isInteger(number)) return 'Expected number to be an integer'
  if (number < MIN_INTEGER || number > MAX_INTEGER) return 'Invalid numeric value'
  // A Decimal preserves a notation that a number would lose: 1.0, 1e2, -0.
  return isDecimal(value) ? 'Integer must be written as digits alone' : undefined
}

/** Checks for an integer of at least `least`; `kind` describes the range in the message. */
function checkFrom(value: unknown, least: number, kind: string): string | undefined {
  return (
    checkInteger(value) ?? (Number(value) < least ? `Expected number to be ${kind}` : undefined)
  )
}

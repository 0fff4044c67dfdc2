/**
 * Dates of FHIR as half-open ranges [low, high) of epoch milliseconds, as wide as the precision says.
 * https://hl7.org/fhir/R4/search.html#date
 */
export interface DateRange {
  readonly low: number
  readonly high: number
}

const DATE =
  /^(\d{4})(?:-(\d\d)(?:-(\d\d)(?:T(\d\d):(\d\d)(?::(\d\d)(?:\.(\d{1,20}))?)?(Z|[+-]\d\d:\d\d)?)?)?)?$/
const MINUTE = 60_000
const DAY = 86_400_000

/** date, dateTime or instant of any precision; without a zone it is UTC. Undefined if not a date. */
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
  // 60 is a leap second, which the standard allows.
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

/** Period, open ends infinite; undefined when it has neither a start nor an end. */
export function parsePeriod(value: Readonly<Record<string, unknown>>): DateRange | undefined {
  const start = parseDate(value.start)
  const end = parseDate(value.end)
  if (start === undefined && end === undefined) return undefined
  return { low: start?.low ?? -Infinity, high: end?.high ?? Infinity }
}

/** The two ends of a range are often on one day; toISOString was 8 % of deriving a resource. */
let lastDay = { number: Number.NaN, text: '' }

/** timestamptz text for PostgreSQL; outside the years 1 to 9999 it is infinite. */
export function timestamp(ms: number): string {
  if (ms < FIRST) return '-infinity'
  if (ms > LAST) return 'infinity'
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

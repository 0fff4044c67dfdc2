/**
 * Free times of a Schedule (epoch ms). Hours come from the SchedulingParameters extension as Medplum's clients write
 * it; each member of the Schedule overrides the HealthcareService's. `slotCapacity` is ignored.
 */

import { badRequest } from '../../core/errors.ts'
import { toNumber } from '../../fhir/json.ts'
import { isObject, type Resource, referenceIn } from '../../fhir/resource.ts'
import { WEEKDAYS } from '../../fhir/schedule.ts'

const PARAMETERS = 'https://medplum.com/fhir/StructureDefinition/SchedulingParameters'
const TIME_ZONE = 'http://hl7.org/fhir/StructureDefinition/timezone'

export interface Span {
  readonly start: number
  readonly end: number
}

interface Hours {
  readonly days: readonly string[]
  /** Minutes since midnight; an end before or at the start is on the next day. */
  readonly start: number
  readonly end: number
}

/** Scheduling rules. Without a duration only whole free Slots are offered. */
export interface Terms {
  readonly durationMs: number | undefined
  readonly beforeMs: number
  readonly afterMs: number
  readonly intervalMs: number
  readonly offsetMs: number
  readonly gridZone: string
  /** Time zone of the hours; undefined only without hours. */
  readonly zone: string | undefined
  /** Absent: always open. */
  readonly hours: readonly Hours[] | undefined
}

const MINUTE = 60_000
const DAY = 1440 * MINUTE
const UNITS: Readonly<Record<string, number>> = { min: MINUTE, h: 60 * MINUTE, d: DAY, wk: 7 * DAY }
const SMALLEST_INTERVAL = 5 * MINUTE

type Values = Readonly<Record<string, unknown>>

/** Errors: 400 for invalid parameters, and for hours without a time zone. */
export function schedulingTerms(
  schedule: Resource,
  service: Resource | undefined,
  actor: Resource | undefined,
): Terms {
  const own = extensionsIn(schedule.extension, PARAMETERS)
  const name = service && `HealthcareService/${service.id}`
  const isFor = (item: Values, wanted: string | undefined) =>
    referenceIn(valueIn(item.extension, 'service', 'valueReference')) === wanted
  const chosen = own.find((item) => isFor(item, name)) ?? own.find((item) => isFor(item, undefined))
  const sources = [chosen, ...extensionsIn(service?.extension, PARAMETERS)].flatMap((source) =>
    source === undefined ? [] : [source.extension],
  )
  const value = (url: string, member: string) =>
    sources.map((source) => valueIn(source, url, member)).find((found) => found !== undefined)
  const duration = (url: string) => parseDuration(value(url, 'valueDuration'), url)
  const hours = availableHours(sources, service)
  const zone = value('timezone', 'valueCode') ?? valueIn(actor?.extension, TIME_ZONE, 'valueCode')
  if (hours !== undefined && zone === undefined) throw badRequest('No timezone specified')
  const intervalMs = duration('alignmentInterval') ?? 60 * MINUTE
  if (intervalMs < SMALLEST_INTERVAL) throw badRequest('alignmentInterval is 5 minutes at least')
  return {
    durationMs: duration('duration'),
    beforeMs: duration('bufferBefore') ?? 0,
    afterMs: duration('bufferAfter') ?? 0,
    intervalMs,
    offsetMs: duration('alignmentOffset') ?? 0,
    gridZone: requireTimeZone(value('alignmentTimezone', 'valueCode') ?? 'Etc/UTC'),
    zone: zone === undefined ? undefined : requireTimeZone(zone),
    hours: sources.length === 0 && hours === undefined ? [] : hours,
  }
}

function extensionsIn(list: unknown, url: string): readonly Values[] {
  return Array.isArray(list) ? list.filter(isObject).filter((item) => item.url === url) : []
}

function valueIn(list: unknown, url: string, member: string): unknown {
  return extensionsIn(list, url)[0]?.[member]
}

function parseDuration(value: unknown, name: string): number | undefined {
  if (value === undefined) return undefined
  const { value: number, code, unit } = isObject(value) ? value : {}
  const ms = (toNumber(number) ?? Number.NaN) * (UNITS[String(code ?? unit)] ?? Number.NaN)
  if (ms >= 0 && ms <= 31 * DAY && ms % MINUTE === 0) return ms
  throw badRequest(`${name} must be whole minutes: a Duration in min, h, d or wk`)
}

/** The Schedule's hours override those of its service. */
function availableHours(sources: readonly unknown[], service: Resource | undefined) {
  const given = sources.flatMap((source) => extensionsIn(source, 'availability'))[0]
  if (given !== undefined) {
    return extensionsIn(given.extension, 'availableTime').map(({ extension: times }) =>
      hoursFrom({
        daysOfWeek: extensionsIn(times, 'daysOfWeek').map(({ valueCode }) => valueCode),
        allDay: valueIn(times, 'allDay', 'valueBoolean'),
        availableStartTime: valueIn(times, 'availableStartTime', 'valueTime'),
        availableEndTime: valueIn(times, 'availableEndTime', 'valueTime'),
      }),
    )
  }
  const times = service?.availableTime
  return Array.isArray(times) ? times.filter(isObject).map(hoursFrom) : undefined
}

function hoursFrom({ daysOfWeek, allDay, availableStartTime, availableEndTime }: Values): Hours {
  const days = Array.isArray(daysOfWeek) ? daysOfWeek.map(String) : WEEKDAYS
  if (allDay === true) return { days, start: 0, end: 0 }
  return { days, start: parseTimeOfDay(availableStartTime), end: parseTimeOfDay(availableEndTime) }
}

function parseTimeOfDay(time: unknown): number {
  const [, hour, minute] = /^(\d\d):(\d\d)/.exec(String(time)) ?? []
  if (hour === undefined) throw badRequest('availableTime needs a start and an end, or allDay')
  return Number(hour) * 60 + Number(minute)
}

const zones = new Map<string, Intl.DateTimeFormat>()

function requireTimeZone(value: unknown): string {
  // Names are case-insensitive, and each spelling would have a formatter.
  const name = String(value).toLowerCase()
  try {
    if (!zones.has(name))
      zones.set(name, new Intl.DateTimeFormat('en', { timeZone: name, timeZoneName: 'longOffset' }))
    return name
  } catch {
    throw badRequest(`Unknown time zone: ${name.slice(0, 64)}`)
  }
}

function aheadAt(zone: string, time: number): number {
  const parts = zones.get(zone)?.formatToParts(time) ?? []
  const text = parts.find(({ type }) => type === 'timeZoneName')?.value ?? ''
  const [, sign, hour = 0, minute = 0] = /([+-])(\d\d):(\d\d)/.exec(text) ?? []
  return (sign === '-' ? -1 : 1) * (Number(hour) * 60 + Number(minute)) * MINUTE
}

/** `local` is a wall clock time expressed as if in UTC. */
function zonedToUtc(zone: string, local: number): number {
  const guess = local - aheadAt(zone, local)
  return local - aheadAt(zone, guess)
}

/** Yields local midnights from a day before to a day after a span. */
function* daysOf(zone: string, { start, end }: Span): Iterable<number> {
  const first = Math.floor((start + aheadAt(zone, start)) / DAY) * DAY - DAY
  for (let local = first; local - DAY <= end + aheadAt(zone, end); local += DAY) yield local
}

export interface Slots {
  readonly free: readonly Span[]
  readonly taken: readonly Span[]
}

function openSpans({ hours, zone }: Terms, slots: Slots, span: Span): Span[] {
  if (hours === undefined) return [{ start: span.start - DAY, end: span.end + 32 * DAY }]
  const open: Span[] = [...slots.free]
  if (zone !== undefined && hours.length > 0) {
    for (const midnight of daysOf(zone, span)) {
      const day = WEEKDAYS[new Date(midnight).getUTCDay()] ?? ''
      for (const { days, start, end } of hours) {
        if (!days.includes(day)) continue
        const until = end > start ? end : end + 1440
        open.push({
          start: zonedToUtc(zone, midnight + start * MINUTE),
          end: zonedToUtc(zone, midnight + until * MINUTE),
        })
      }
    }
  }
  return joined(open)
}

function joined(spans: readonly Span[]): Span[] {
  const result: Span[] = []
  for (const { start, end } of spans.toSorted((a, b) => a.start - b.start)) {
    const last = result.at(-1)
    if (last === undefined || start > last.end) result.push({ start, end })
    else if (end > last.end) result.splice(-1, 1, { start: last.start, end })
  }
  return result
}

export function* freeSpans(terms: Terms, slots: Slots, span: Span): Iterable<Span> {
  const fits = compileFitTest(terms, slots, span)
  const { durationMs, intervalMs, offsetMs, gridZone } = terms
  if (durationMs === undefined) {
    for (const slot of slots.free.toSorted((a, b) => a.start - b.start)) {
      if (slot.start >= span.start && slot.end <= span.end && fits(slot)) yield slot
    }
    return
  }
  for (const midnight of daysOf(gridZone, span)) {
    for (
      let local = midnight + (offsetMs % intervalMs);
      local < midnight + DAY;
      local += intervalMs
    ) {
      const start = zonedToUtc(gridZone, local)
      const found = { start, end: start + durationMs }
      if (found.start >= span.start && found.end <= span.end && fits(found)) yield found
    }
  }
}

/** Returns a test that an appointment with its buffers overlaps no busy time. */
export function compileFitTest(terms: Terms, slots: Slots, span: Span): (found: Span) => boolean {
  const open = openSpans(terms, slots, span)
  const taken = joined(slots.taken)
  return ({ start, end }) => {
    const isOpen = open.some((one) => one.start <= start && end <= one.end)
    const [from, until] = [start - terms.beforeMs, end + terms.afterMs]
    return isOpen && !taken.some((one) => one.start < until && from < one.end)
  }
}

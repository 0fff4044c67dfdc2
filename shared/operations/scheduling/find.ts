/** `Schedule/{id}/$find` and `Appointment/$find`, without series. Ignores Slots that began over 31 days earlier. */
import { badRequest, tooCostly } from '../../core/errors.ts'
import { parseReference, type Resource, referenceIn, toObjects } from '../../fhir/resource.ts'
import { parseDate, timestamp } from '../../fhir/values.ts'
import { type Inputs, parametersReply, readInputs } from '../../request/parameters.ts'
import type { Operation, OperationCall } from '../../request/request.ts'
import { searchByQuery } from '../../rest/criteria.ts'
import { parseVersion } from '../../store/rows/rows.ts'
import type { SearchPage } from '../../store/rows/version.ts'
import {
  compileFitTest,
  freeSpans,
  type Slots,
  type Span,
  schedulingTerms,
  type Terms,
} from './availability.ts'

export const DAY_MS = 86_400_000
export const LONGEST_DAYS = 31
export const MOST_SLOTS = 1000
const MOST_SLOT_PAGES = 5
export const MOST_SCHEDULES = 10
const DEFAULT_COUNT = 20
const MOST_COUNT = 1000
export const SERVICE = 'https://medplum.com/fhir/service-type-reference'

/** Errors: 400, 403, 404. Stores nothing. */
export const find: Operation = {
  name: 'find',
  on: [
    { type: 'Schedule', level: 'instance' },
    { type: 'Appointment', level: 'type' },
  ],
  methods: ['GET', 'POST'],
  onlyReads: true,
  inputs: {
    start: 'text!: A dateTime',
    end: 'text!: At most 31 days later',
    schedule: 'reference*: Schedule/id, of an Appointment',
    'service-type': 'token: system|code',
    'service-type-reference': 'reference: HealthcareService/id',
    _count: 'whole: Most times',
  },
  text: { summary: 'Find free times', answer: 'Parameters' },
  async run(call) {
    const inputs = readInputs(call)
    const span = readSpan(inputs)
    const count = Math.min(inputs.whole('_count') ?? DEFAULT_COUNT, MOST_COUNT)
    if (count < 0) throw badRequest('"_count" must not be negative', '_count')
    const names = call.id === undefined ? inputs.texts('schedule') : [`Schedule/${call.id}`]
    if (names.length === 0) throw badRequest('Missing required parameter "schedule"')
    if (names.length > MOST_SCHEDULES) throw tooCostly(`At most ${MOST_SCHEDULES} schedules`)
    const service = inputs.text('service-type-reference')
    const calendars = await Promise.all(names.map((name) => loadCalendar(call, name, service)))
    const free = await Promise.all(calendars.map((one) => readSlots(call, one, span)))
    const isForAppointment = call.type === 'Appointment'
    const entry = []
    for (const time of common(calendars, free, span)) {
      if (entry.length >= count) break
      const slots = calendars.map((calendar) =>
        busySlot(calendar, time, inputs.text('service-type')),
      )
      const status = isForAppointment ? 'busy' : 'free'
      const [first] = slots
      const resource = isForAppointment ? proposal(calendars, slots, time) : { ...first, status }
      entry.push({ resource })
    }
    const bundle = { resourceType: 'Bundle', type: 'searchset' }
    const filled = entry.length === 0 ? bundle : { ...bundle, entry }
    return parametersReply([['return', 'resource', filled]])
  },
}

function readSpan(inputs: Inputs): Span {
  const [start, end] = ['start', 'end'].map((name) => parseDate(inputs.required(name))?.low)
  if (start === undefined || end === undefined || start >= end) {
    throw badRequest('Invalid search time range', 'start')
  }
  if (end - start > LONGEST_DAYS * DAY_MS) {
    throw badRequest(`Search range cannot exceed ${LONGEST_DAYS} days`, 'end')
  }
  return { start, end }
}

export interface Calendar {
  readonly schedule: Resource
  readonly service: Resource | undefined
  readonly actor: string
  readonly terms: Terms
}

/** Errors: 400, 403, 404. */
export async function loadCalendar(
  { services, principal }: OperationCall,
  name: string,
  serviceName: string | undefined,
): Promise<Calendar> {
  const { repository } = services
  const read = async (text: string, type: string | undefined) => {
    const target = parseReference(text)
    if (target === undefined || (type ?? target.type) !== target.type) {
      throw badRequest(`${text.slice(0, 100)} is not a reference to a ${type}`)
    }
    return parseVersion(await repository.read(principal, target.type, target.id))
  }
  const schedule = await read(name, 'Schedule')
  const service =
    serviceName === undefined ? undefined : await read(serviceName, 'HealthcareService')
  if (service?.active === false) throw badRequest('HealthcareService is inactive')
  const actors = Array.isArray(schedule.actor) ? schedule.actor.map(referenceIn) : []
  const [actor, second] = actors
  if (actor === undefined || second !== undefined) {
    throw badRequest('$find only supported on schedules with exactly one actor')
  }
  const target = parseReference(actor)
  // Only for its time zone: without read access it must come from another source.
  const [version] = target === undefined ? [] : await repository.readMany(principal, [target])
  const terms = schedulingTerms(schedule, service, version && parseVersion(version))
  return { schedule, service, actor, terms }
}

async function readSlots(call: OperationCall, { schedule, terms }: Calendar, span: Span) {
  const query = new URLSearchParams({ schedule: `Schedule/${schedule.id}` })
  for (const [name, value] of slotSearchWindow(terms, span)) query.append(name, value)
  return await readPages((cursor) =>
    searchByQuery(call, 'Slot', query, { count: MOST_SLOTS, cursor }),
  )
}

/** Errors: 400 too-costly for too many pages. */
export async function readPages(
  readPage: (cursor: string | undefined) => Promise<SearchPage>,
): Promise<Slots> {
  const slots: Resource[] = []
  let cursor: string | undefined
  for (let page = 0; page < MOST_SLOT_PAGES; page++) {
    const { versions, next } = await readPage(cursor)
    slots.push(...versions.map(parseVersion))
    cursor = next
    if (next === undefined) return groupSlots(slots)
  }
  throw tooCostly('The Schedule has too many Slots in this time')
}

/** Slots that may overlap; searchable only by their start. */
export function slotSearchWindow(
  { beforeMs, afterMs }: Terms,
  { start, end }: Span,
): readonly [string, string][] {
  return [
    ['start', `ge${timestamp(start - beforeMs - LONGEST_DAYS * DAY_MS)}`],
    ['start', `lt${timestamp(end + afterMs)}`],
  ]
}

function groupSlots(all: readonly Resource[]): Slots {
  const spans = (isWanted: (status: unknown) => boolean) =>
    all.flatMap(({ status, start, end }) => {
      const [from, until] = [parseDate(start)?.low, parseDate(end)?.low]
      return isWanted(status) && from !== undefined && until !== undefined
        ? [{ start: from, end: until }]
        : []
    })
  return {
    free: spans((status) => status === 'free'),
    taken: spans((status) => String(status).startsWith('busy')),
  }
}

function* common(
  calendars: readonly Calendar[],
  free: readonly Slots[],
  span: Span,
): Iterable<Span> {
  const [first, ...others] = calendars
  const [own, ...rest] = free
  if (first === undefined || own === undefined) return
  if (others.some(({ terms }) => terms.durationMs !== first.terms.durationMs)) {
    throw badRequest('The schedules give time for different durations')
  }
  const tests = others.map(({ terms }, index) =>
    compileFitTest(terms, rest[index] ?? { free: [], taken: [] }, span),
  )
  for (const time of freeSpans(first.terms, own, span)) {
    if (tests.every((fits) => fits(time))) yield time
  }
}

function busySlot(
  { schedule, service }: Calendar,
  { start, end }: Span,
  token: string | undefined,
): Resource {
  const [system, code] = token?.includes('|') ? token.split('|') : [undefined, token]
  const asked = code && [{ coding: [{ ...(system ? { system } : {}), code }] }]
  const serviceType = asked || service?.type
  return {
    resourceType: 'Slot',
    schedule: { reference: `Schedule/${schedule.id}` },
    status: 'busy',
    start: timestamp(start),
    end: timestamp(end),
    ...(serviceType === undefined ? {} : { serviceType }),
  }
}

function proposal(
  calendars: readonly Calendar[],
  slots: readonly Resource[],
  { start, end }: Span,
): Resource {
  const service = calendars[0]?.service
  const named = service && {
    url: SERVICE,
    valueReference: { reference: `HealthcareService/${service.id}` },
  }
  const [type] = toObjects(service?.type)
  return {
    resourceType: 'Appointment',
    contained: slots,
    status: 'proposed',
    ...(named === undefined ? {} : { serviceType: [{ ...type, extension: [named] }] }),
    start: timestamp(start),
    end: timestamp(end),
    participant: calendars.map(({ actor }) => ({
      actor: { reference: actor },
      required: 'required',
      status: 'needs-action',
    })),
  }
}

/**
 * `Appointment/$book` and `$hold`, compatible with Medplum's clients. Both check all Slots but reveal only that a time
 * is taken, and are serialized per Schedule, so no two of them get one time. A direct write of a Slot checks nothing.
 * No series or overbooking.
 */
import { randomUUIDv7 } from 'node:crypto'
import { type Principal, systemPrincipal } from '../../access/principal.ts'
import { badRequest, outcome } from '../../core/errors.ts'
import { responseEntry } from '../../fhir/bundle.ts'
import {
  asArray,
  isObject,
  isResource,
  parseReference,
  type Resource,
  referenceIn,
  toObjects,
} from '../../fhir/resource.ts'
import { parseDate, timestamp } from '../../fhir/values.ts'
import { type Inputs, readInputs, toInteraction } from '../../request/parameters.ts'
import { formatEtag } from '../../request/reply.ts'
import type {
  FhirContext,
  FhirReply,
  InputTexts,
  Operation,
  OperationCall,
} from '../../request/request.ts'
import { pageReply } from '../../rest/interaction.ts'
import { createTogether, type Written } from '../../rest/write.ts'
import type { Condition } from '../../search/language/search-request.ts'
import { equals, searchFor } from '../../store/lookups.ts'
import type { Repository } from '../../store/repository.ts'
import { compileFitTest, type Span } from './availability.ts'
import {
  type Calendar,
  DAY_MS,
  LONGEST_DAYS,
  loadCalendar,
  MOST_SCHEDULES,
  MOST_SLOTS,
  readPages,
  SERVICE,
  slotSearchWindow,
} from './find.ts'

const INPUTS: InputTexts = {
  appointment: 'resource: A proposed Appointment with contained Slots',
  slot: 'resource*: A Slot, in place of an Appointment',
  'patient-reference': 'reference: Patient/id, with a Slot',
}

/** Errors: 400 for a busy time or an invalid booking; 403, 404. */
export const book: Operation = {
  name: 'book',
  on: [{ type: 'Appointment', level: 'type' }],
  methods: ['POST'],
  inputs: INPUTS,
  text: {
    summary: 'Book an appointment',
    description: 'Reserves all its Slots and their buffers, or none.',
    answer: 'Bundle',
    status: 201,
  },
  run: (call) => reserve(call, { appointment: 'booked', slot: 'busy' }),
}

/** Errors: as `book`. */
export const hold: Operation = {
  name: 'hold',
  on: [{ type: 'Appointment', level: 'type' }],
  methods: ['POST'],
  inputs: INPUTS,
  text: {
    summary: 'Reserve the time of an appointment that is not confirmed yet',
    description: 'Like $book. The Appointment is pending until $confirm or $cancel.',
    answer: 'Bundle',
    status: 201,
  },
  run: (call) => reserve(call, { appointment: 'pending', slot: 'busy-tentative' }),
}

interface Statuses {
  readonly appointment: string
  readonly slot: string
}

async function reserve(call: OperationCall, statuses: Statuses): Promise<FhirReply> {
  const inputs = readInputs(call)
  const asked = inputs.resource('appointment')
  const wanted = readSlots(inputs, asked)
  if (wanted.length === 0 || wanted.length > MOST_SCHEDULES) {
    throw badRequest(`A booking needs 1 to ${MOST_SCHEDULES} Slots`, 'appointment.contained')
  }
  const places = await Promise.all(wanted.map((slot) => findPlace(call, slot, asked)))
  const appointment = { ...buildAppointment(inputs, asked, places), status: statuses.appointment }
  const slots = places.flatMap((place) => slotsToTake(place, statuses.slot))
  const reserved = slots.map((slot) => ({ ...slot, id: randomUUIDv7() }))
  const slot = reserved.map(({ id }) => ({ reference: `Slot/${id}` }))
  const context = toInteraction(call)
  const written = await createTogether(
    context,
    [{ ...appointment, slot }, ...reserved],
    (inside) => requireFree(inside, call.principal, places),
    scheduleLocks(call.principal, places),
  )
  return writtenReply(context, written, 201)
}

/** Errors: 400 for Slots in both inputs, or a `slot` of another type: only some would be reserved. */
function readSlots(inputs: Inputs, asked: Resource | undefined): readonly Resource[] {
  // Already validated as resources.
  const slots = inputs.objects('slot') as readonly Resource[]
  const wrong = slots.findIndex(({ resourceType }) => resourceType !== 'Slot')
  if (wrong >= 0) throw badRequest('"slot" must hold a Slot', `slot[${wrong}]`)
  if (asked === undefined) return slots
  if (slots.length > 0) throw badRequest('Send "appointment" or "slot", not both', 'slot')
  const contained = Array.isArray(asked.contained) ? asked.contained.filter(isResource) : []
  return contained.filter(({ resourceType }) => resourceType === 'Slot')
}

/** A Bundle like the response of a transaction; an entry has the warnings of its resource, if any. */
export async function writtenReply(
  context: FhirContext,
  written: readonly Written[],
  status: 200 | 201,
): Promise<FhirReply> {
  const entries = written.map(({ version, warnings }) => {
    const { type, id, content = '', lastUpdated } = version
    const location = `${type}/${id}/_history/${version.ver}`
    const write = () =>
      responseEntry({
        status,
        location,
        etag: formatEtag(version),
        lastModified: lastUpdated.toISOString(),
        outcome:
          warnings.length === 0 ? undefined : JSON.stringify(outcome(undefined, ...warnings)),
        resource: content,
      })
    return { content, write }
  })
  const reply = await pageReply(context, { type: 'transaction-response', links: [] }, entries)
  return { ...reply, status }
}

interface Place extends Calendar {
  readonly time: Span
  readonly slot: Resource
}

async function findPlace(
  call: OperationCall,
  slot: Resource,
  appointment: Resource | undefined,
): Promise<Place> {
  const name = referenceIn(slot.schedule)
  const [start, end] = [parseDate(slot.start)?.low, parseDate(slot.end)?.low]
  if (name === undefined || start === undefined || end === undefined || start >= end) {
    throw badRequest('A Slot needs a schedule, a start and an end', 'Slot')
  }
  if (end - start > LONGEST_DAYS * DAY_MS) throw badRequest('The Slot is too long', 'Slot.end')
  const service = serviceNamed(appointment) ?? serviceNamed(slot)
  const calendar = await loadCalendar(call, name, service)
  const { durationMs } = calendar.terms
  if (durationMs !== undefined && durationMs !== end - start) {
    throw badRequest('The time is not as long as the Schedule gives', 'Slot.end')
  }
  return { ...calendar, slot, time: { start, end } }
}

function serviceNamed(resource: Resource | undefined): string | undefined {
  const extensions = toObjects(resource?.serviceType).flatMap(({ extension }) => asArray(extension))
  const named = extensions.filter(isObject).find(({ url }) => url === SERVICE)
  return referenceIn(named?.valueReference)
}

/** Errors: 400 for differing times, or an appointment that is already booked. */
function buildAppointment(
  inputs: Inputs,
  asked: Resource | undefined,
  places: readonly Place[],
): Resource {
  if (asked !== undefined && asked.resourceType !== 'Appointment') {
    throw badRequest('"appointment" must hold an Appointment', 'appointment')
  }
  if (asked?.slot !== undefined) throw badRequest('The Appointment has Slots already', 'slot')
  const { time } = places[0] ?? {}
  const times = [...places.map((place) => place.time), ...(asked ? [appointmentSpan(asked)] : [])]
  if (!times.every((one) => one.start === time?.start && one.end === time?.end)) {
    throw badRequest('Mismatched slot start times', 'Slot.start')
  }
  const { contained, participant, ...rest } = asked ?? { resourceType: 'Appointment' }
  const kept = Array.isArray(contained)
    ? contained.filter((one) => !isResource(one) || one.resourceType !== 'Slot')
    : []
  const patient = inputs.text('patient-reference')
  if (patient !== undefined && parseReference(patient)?.type !== 'Patient') {
    throw badRequest('"patient-reference" must be a reference to a Patient', 'patient-reference')
  }
  const named = Array.isArray(participant)
    ? participant
    : places.map(({ actor }) => ({ actor: { reference: actor }, status: 'tentative' }))
  const joining = patient && [{ actor: { reference: patient }, status: 'accepted' }]
  return {
    ...rest,
    ...(kept.length === 0 ? {} : { contained: kept }),
    start: timestamp(time?.start ?? 0),
    end: timestamp(time?.end ?? 0),
    participant: [...named, ...(joining || [])],
  }
}

function appointmentSpan({ start, end }: Resource): Span {
  return { start: parseDate(start)?.low ?? 0, end: parseDate(end)?.low ?? 0 }
}

function slotsToTake({ slot, schedule, service, terms, time }: Place, status: string): Resource[] {
  const { resourceType, serviceType = service?.type } = slot
  const schedules = { schedule: { reference: `Schedule/${schedule.id}` } }
  const span = ({ start, end }: Span) => ({ start: timestamp(start), end: timestamp(end) })
  const buffer = (around: Span) => ({
    resourceType,
    ...schedules,
    status: 'busy-unavailable',
    ...span(around),
  })
  const { beforeMs, afterMs } = terms
  return [
    {
      resourceType,
      ...schedules,
      status,
      ...span(time),
      ...(serviceType === undefined ? {} : { serviceType }),
    },
    ...(beforeMs > 0 ? [buffer({ start: time.start - beforeMs, end: time.start })] : []),
    ...(afterMs > 0 ? [buffer({ start: time.end, end: time.end + afterMs })] : []),
  ]
}

function ofSchedule({ id }: Resource): Condition {
  return equals('schedule', 'reference', `Schedule/${id}`)
}

/** Serializes the bookings of a Schedule. */
function scheduleLocks(principal: Principal, places: readonly Place[]) {
  const conditions = places.map(({ schedule }) => searchFor('Slot', [ofSchedule(schedule)], 1, []))
  return { principal: systemPrincipal(principal.project), conditions, oneState: false }
}

async function requireFree(
  inside: Repository,
  { project }: Principal,
  places: readonly Place[],
): Promise<void> {
  const reader = systemPrincipal(project, 'project')
  for (const { schedule, terms, time } of places) {
    const conditions = [
      ofSchedule(schedule),
      ...slotSearchWindow(terms, time).map(([code, value]) => {
        return { code, type: 'date', modifier: undefined, values: [value] } as const
      }),
    ]
    const byId = [{ code: '_id', descending: false }]
    const request = searchFor('Slot', conditions, MOST_SLOTS, byId)
    const slots = await readPages((cursor) => inside.search(reader, { ...request, cursor }))
    const isFree = slots.free.some(({ start, end }) => start === time.start && end === time.end)
    const isSlot = terms.durationMs !== undefined || isFree
    if (!isSlot || !compileFitTest(terms, slots, time)(time)) {
      throw badRequest('Requested time slot is not available', 'Slot.start')
    }
  }
}

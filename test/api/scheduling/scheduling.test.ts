import t from 'tap'
import { openBotica } from '../../fixtures/botica.ts'
import type { Resource } from '../../fixtures/fhir.ts'
import { memberUnder } from '../../fixtures/policy/policy.ts'
import { aParameters, aPatient, aPractitioner } from '../../fixtures/resources.ts'

const botica = await openBotica(t)
const { admin } = botica
const stranger = (await botica.createTenant()).admin

const minutes = (url: string, value: number) => ({ url, valueDuration: { value, unit: 'min' } })
const EXTENSION = 'https://medplum.com/fhir/StructureDefinition/SchedulingParameters'

const practitioner = await admin.create(
  aPractitioner({
    extension: [
      { url: 'http://hl7.org/fhir/StructureDefinition/timezone', valueCode: 'America/New_York' },
    ],
  }),
)
const patient = await admin.create(aPatient())
const service = await admin.create({
  resourceType: 'HealthcareService',
  type: [{ coding: [{ code: 'office-visit' }] }],
  availableTime: [
    {
      daysOfWeek: ['mon', 'tue', 'wed', 'thu', 'fri'],
      availableStartTime: '09:00:00',
      availableEndTime: '11:00:00',
    },
  ],
  extension: [
    {
      url: EXTENSION,
      extension: [
        minutes('duration', 30),
        minutes('alignmentInterval', 30),
        minutes('bufferAfter', 15),
      ],
    },
  ],
})
const aSchedule = (more: object = {}) =>
  admin.create({
    resourceType: 'Schedule',
    actor: [{ reference: `Practitioner/${practitioner.id}` }],
    ...more,
  })

interface Times extends Resource {
  readonly parameter: readonly [
    {
      readonly resource: {
        readonly entry?: readonly {
          readonly resource: Resource & Readonly<Record<string, unknown>>
        }[]
      }
    },
  ]
}

const SERVICE = `HealthcareService/${service.id}`
const listTimes = ({ parameter }: Times) =>
  (parameter[0].resource.entry ?? []).map(({ resource }) => resource)
const find = (id: string, start: string, end: string, client = admin) =>
  client.get<Times>(
    `Schedule/${id}/$find?start=${start}&end=${end}&service-type-reference=${SERVICE}`,
  )
/** A week with a change to daylight saving time in New York, on Sunday 10 March. */
const [FRIDAY, TUESDAY] = ['2024-03-08T00:00:00Z', '2024-03-12T00:00:00Z']

const slotAt = (schedule: string, start: string, end: string, more: object = {}) => ({
  resourceType: 'Slot',
  schedule: { reference: `Schedule/${schedule}` },
  status: 'busy',
  start,
  end,
  ...more,
})
const proposed = (slots: object[], start: string, end: string) => ({
  resourceType: 'Appointment',
  status: 'proposed',
  start,
  end,
  serviceType: [
    {
      extension: [
        {
          url: 'https://medplum.com/fhir/service-type-reference',
          valueReference: { reference: SERVICE },
        },
      ],
    },
  ],
  participant: [{ actor: { reference: `Patient/${patient.id}` }, status: 'accepted' }],
  contained: slots,
})
const aBooking = (appointment: object) =>
  aParameters({ name: 'appointment', resource: appointment })

t.test('follows local hours across a change of daylight saving time', async (t) => {
  const { id } = await aSchedule()
  const { status, body } = await find(id, FRIDAY, TUESDAY)
  t.equal(status, 200)
  t.same(
    listTimes(body).map(({ start }) => start),
    [
      '2024-03-08T14:00:00.000Z',
      '2024-03-08T14:30:00.000Z',
      '2024-03-08T15:00:00.000Z',
      '2024-03-08T15:30:00.000Z',
      '2024-03-11T13:00:00.000Z',
      '2024-03-11T13:30:00.000Z',
      '2024-03-11T14:00:00.000Z',
      '2024-03-11T14:30:00.000Z',
    ],
  )
  t.match(listTimes(body)[0], {
    resourceType: 'Slot',
    status: 'free',
    end: '2024-03-08T14:30:00.000Z',
    schedule: { reference: `Schedule/${id}` },
  })
  for (const wrong of [
    `Schedule/${id}/$find`,
    `Schedule/${id}/$find?start=${TUESDAY}&end=${FRIDAY}`,
    `Schedule/${id}/$find?start=2024-01-01&end=2024-03-01`,
    `Schedule/${id}/$find?start=${FRIDAY}&end=${TUESDAY}&service-type-reference=Patient/${patient.id}`,
    `Appointment/$find?start=${FRIDAY}&end=${TUESDAY}`,
  ]) {
    t.equal((await admin.get(wrong)).status, 400, wrong)
  }
  t.equal((await find(id, FRIDAY, TUESDAY, stranger)).status, 404)
})

t.test('narrows service hours by the Schedule, with windows across midnight', async (t) => {
  const nights = {
    url: 'availability',
    extension: [
      {
        url: 'availableTime',
        extension: [
          { url: 'daysOfWeek', valueCode: 'fri' },
          { url: 'availableStartTime', valueTime: '23:30:00' },
          { url: 'availableEndTime', valueTime: '00:30:00' },
        ],
      },
    ],
  }
  const own = { url: 'service', valueReference: { reference: SERVICE } }
  const utc = { url: 'timezone', valueCode: 'Etc/UTC' }
  const { id } = await aSchedule({ extension: [{ url: EXTENSION, extension: [own, nights, utc] }] })
  const { body } = await find(id, FRIDAY, TUESDAY)
  t.same(
    listTimes(body).map(({ start }) => start),
    ['2024-03-08T23:30:00.000Z', '2024-03-09T00:00:00.000Z'],
  )
})

t.test('returns free Slots without scheduling parameters', async (t) => {
  const { id } = await aSchedule()
  const free = await admin.create(
    slotAt(id, '2024-03-08T10:00:00Z', '2024-03-08T10:20:00Z', { status: 'free' }),
  )
  const path = `Schedule/${id}/$find?start=${FRIDAY}&end=${TUESDAY}`
  t.match(listTimes((await admin.get<Times>(path)).body), [{ start: '2024-03-08T10:00:00.000Z' }])
  const { resourceType, schedule, start, end } = free
  const slot = { resourceType, schedule, start, end }
  const time = { name: 'slot', resource: { ...slot, status: 'free' } }
  const booking = aParameters(time, {
    name: 'patient-reference',
    valueReference: { reference: `Patient/${patient.id}` },
  })
  for (const reference of ['nobody', `Practitioner/${patient.id}`]) {
    const wrong = { name: 'patient-reference', valueReference: { reference } }
    const answer = await admin.post('Appointment/$book', aParameters(time, wrong))
    t.match(answer, { status: 400, body: { issue: [{ expression: ['patient-reference'] }] } })
  }
  const booked = await admin.post('Appointment/$book', booking)
  t.match(booked, { status: 201, body: { entry: [{ resource: { status: 'booked' } }] } })
  t.same(listTimes((await admin.get<Times>(path)).body), [])
  t.equal((await admin.post('Appointment/$book', booking)).status, 400)
})

t.test('books the time and its buffer once', async (t) => {
  const [one, two] = [await aSchedule(), await aSchedule()]
  const offered = await admin.get<Times>(
    `Appointment/$find?start=${FRIDAY}&end=${TUESDAY}&service-type-reference=${SERVICE}` +
      `&schedule=Schedule/${one.id}&schedule=Schedule/${two.id}&_count=1`,
  )
  const [appointment] = listTimes(offered.body)
  t.match(appointment, { status: 'proposed', contained: [{ status: 'busy' }, { status: 'busy' }] })

  const many = await Promise.all(
    Array.from({ length: 6 }, () => admin.post('Appointment/$book', aBooking(appointment ?? {}))),
  )
  t.same(many.map(({ status }) => status).sort(), [201, 400, 400, 400, 400, 400])
  const answer = many.find(({ status }) => status === 201)
  t.match(answer?.body, {
    type: 'transaction-response',
    entry: [
      { response: { status: '201' }, resource: { resourceType: 'Appointment', status: 'booked' } },
      { resource: { resourceType: 'Slot', status: 'busy' } },
      { resource: { status: 'busy-unavailable', start: '2024-03-08T14:30:00.000Z' } },
    ],
  })
  const slots = await admin.get<{ total: number }>(
    `Slot?schedule=Schedule/${one.id},Schedule/${two.id}&_total=accurate`,
  )
  t.equal(slots.body.total, 4)
  const left = await find(one.id, FRIDAY, TUESDAY)
  t.same(listTimes(left.body)[0]?.start, '2024-03-08T15:00:00.000Z', 'the buffer is kept free')
})

t.test('rejects busy times and times outside the Schedule', async (t) => {
  const { id } = await aSchedule()
  const at = (start: string, end: string) =>
    aBooking(proposed([slotAt(id, start, end)], start, end))
  const [start, end] = ['2024-03-08T14:00:00Z', '2024-03-08T14:30:00Z']
  for (const [why, body] of [
    ['night', at('2024-03-08T03:00:00Z', '2024-03-08T03:30:00Z')],
    ['length', at('2024-03-08T14:00:00Z', '2024-03-08T15:00:00Z')],
    ['no Slot', aBooking(proposed([], start, end))],
    ['other time', aBooking(proposed([slotAt(id, start, end)], start, '2024-03-08T14:40:00Z'))],
    ['no time', aBooking(proposed([slotAt(id, 'soon', end)], start, end))],
    ['booked', aBooking({ ...proposed([slotAt(id, start, end)], start, end), slot: [{}] })],
    ['type', aBooking(aPatient())],
    ['nothing', aParameters()],
  ] as const) {
    t.equal((await admin.post('Appointment/$book', body)).status, 400, why)
  }
  const slots = await admin.get<{ total: number }>(`Slot?schedule=Schedule/${id}&_total=accurate`)
  t.equal(slots.body.total, 0, 'nothing is left behind')
  t.equal((await stranger.post('Appointment/$book', at(start, end))).status, 404)
})

t.test('returns the warnings of validation with the booking', async (t) => {
  const settings = `/admin/projects/${botica.project.id}/settings`
  const takeCodes = [{ name: 'validateTerminology', valueString: 'off' }]
  await admin.post(settings, takeCodes, { 'Content-Type': 'application/json' })
  const { id } = await aSchedule()
  const [start, end] = ['2024-03-08T14:00:00Z', '2024-03-08T14:30:00Z']
  const whole = proposed([slotAt(id, start, end)], start, end)
  const [joining] = whole.participant
  const participant = [{ ...joining, required: 'perhaps' }]
  const booked = await admin.post<{
    entry: readonly { resource: Resource; response: { outcome?: object } }[]
  }>('Appointment/$book', aBooking({ ...whole, participant }))
  t.equal(booked.status, 201, booked.text)
  const [appointment, slot] = booked.body.entry
  const issue = {
    severity: 'warning',
    expression: ['Appointment.participant[0].required'],
  }
  t.match(appointment?.response.outcome, { resourceType: 'OperationOutcome', issue: [issue] })
  t.equal(slot?.response.outcome, undefined)

  const cancelled = await admin.post(`Appointment/${appointment?.resource.id}/$cancel`, undefined, {
    Prefer: 'return=OperationOutcome',
  })
  t.match(cancelled, { status: 200, body: { issue: [{}, issue] } })
  await admin.post(settings, [], { 'Content-Type': 'application/json' })
})

t.test('books with the caller’s rights and never over hidden Slots', async (t) => {
  const { id } = await aSchedule()
  const [start, end] = ['2024-03-08T14:00:00Z', '2024-03-08T14:30:00Z']
  const hidden = await admin.create(slotAt(id, start, end, { comment: 'secret' }))
  const body = aBooking(proposed([slotAt(id, start, end)], start, end))
  const readers = ['Schedule', 'HealthcareService', 'Practitioner', 'Appointment'].map(
    (resourceType) => ({ resourceType }),
  )
  const partly = { resourceType: 'Slot', criteria: 'Slot?status=free' }
  const { client } = await memberUnder(botica, { entries: [...readers, partly] })
  t.equal(
    listTimes((await find(id, FRIDAY, TUESDAY, client)).body)[0]?.start,
    '2024-03-08T14:00:00.000Z',
  )
  const refused = await client.post('Appointment/$book', body)
  t.equal(refused.status, 400)
  t.notMatch(refused.text, 'secret')
  t.notMatch(refused.text, hidden.id)
  const later = ['2024-03-08T15:00:00Z', '2024-03-08T15:30:00Z'] as const
  const mayNot = await client.post(
    'Appointment/$book',
    aBooking(proposed([slotAt(id, ...later)], ...later)),
  )
  t.equal(mayNot.status, 403, 'a busy Slot is not for it to write')
  const appointments = await admin.get<{ total: number }>(
    'Appointment?date=2024-03-08T15:00:00Z&_total=accurate',
  )
  t.equal(appointments.body.total, 0)
})

t.test('gives one time to one of 20 parallel bookings and holds', async (t) => {
  const [one, two] = [await aSchedule(), await aSchedule()]
  const [start, end] = ['2024-03-11T13:00:00Z', '2024-03-11T13:30:00Z']
  const second = await botica.startWeb()
  const [body, swapped] = [
    [one, two],
    [two, one],
  ].map((schedules) => {
    const slots = schedules.map(({ id }) => slotAt(id, start, end))
    return aBooking(proposed(slots, start, end))
  })
  const all = await Promise.all(
    Array.from({ length: 20 }, (_, i) => {
      const operation = i % 2 === 0 ? '$book' : '$hold'
      const base = i % 4 < 2 ? '' : `${second}fhir/R4/`
      return admin.post(`${base}Appointment/${operation}`, i % 3 === 0 ? swapped : body)
    }),
  )
  t.equal(all.filter(({ status }) => status === 201).length, 1)
  t.equal(all.filter(({ status }) => status === 400).length, 19)
  const slots = await admin.get<{ total: number }>(
    `Slot?schedule=Schedule/${one.id},Schedule/${two.id}&_total=accurate`,
  )
  t.equal(slots.body.total, 4, 'a Slot and a buffer of each Schedule')
})

interface Written {
  readonly entry: readonly { readonly resource: Resource & { readonly id: string } }[]
}

const booked = async (operation: '$book' | '$hold', id: string, from: string, until: string) => {
  const body = aBooking(proposed([slotAt(id, from, until)], from, until))
  const answer = await admin.post<Written>(`Appointment/${operation}`, body)
  t.equal(answer.status, 201, answer.text)
  return answer.body.entry.map(({ resource }) => resource)
}

t.test('holds a time until it is confirmed', async (t) => {
  const { id } = await aSchedule()
  const [appointment, slot, buffer] = await booked(
    '$hold',
    id,
    '2024-03-08T14:00:00Z',
    '2024-03-08T14:30:00Z',
  )
  t.match(appointment, { resourceType: 'Appointment', status: 'pending' })
  t.match(slot, { status: 'busy-tentative' })
  t.match(buffer, { status: 'busy-unavailable' })
  t.equal(listTimes((await find(id, FRIDAY, TUESDAY)).body)[0]?.start, '2024-03-08T15:00:00.000Z')

  const path = `Appointment/${appointment?.id}/$confirm`
  t.equal((await stranger.post(path, aParameters())).status, 404)
  const both = await Promise.all([1, 2].map(() => admin.post<Written>(path, aParameters())))
  const [confirmed] = both.filter(({ status }) => status === 200)
  t.match(confirmed?.body, {
    type: 'transaction-response',
    entry: [
      { response: { status: '200' }, resource: { id: appointment?.id, status: 'booked' } },
      { resource: { id: slot?.id, status: 'busy' } },
    ],
  })
  const again = await admin.post(path, aParameters())
  t.match(again, {
    status: 409,
    body: {
      issue: [{ details: { text: 'An Appointment with the status booked cannot be confirmed' } }],
    },
  })
  t.match((await admin.get(`Slot/${buffer?.id}`)).body, { status: 'busy-unavailable' })
})

t.test('confirms only times that are reserved', async (t) => {
  const { id } = await aSchedule()
  const free = await admin.create(
    slotAt(id, '2024-03-08T14:00:00Z', '2024-03-08T14:30:00Z', { status: 'free' }),
  )
  const { contained: _, ...rest } = proposed([], '2024-03-08T14:00:00Z', '2024-03-08T14:30:00Z')
  const none = await admin.create(rest)
  const open = await admin.create({ ...rest, slot: [{ reference: `Slot/${free.id}` }] })
  for (const one of [none, open]) {
    const answer = await admin.post(`Appointment/${one.id}/$confirm`, aParameters())
    t.equal(answer.status, 400, answer.text)
  }
})

t.test('cancels a booking and frees its time, or changes nothing', async (t) => {
  const { id } = await aSchedule()
  const time = ['2024-03-08T14:00:00Z', '2024-03-08T14:30:00Z'] as const
  for (const operation of ['$hold', '$book'] as const) {
    const [appointment, ...slots] = await booked(operation, id, ...time)
    const path = `Appointment/${appointment?.id}/$cancel`
    t.equal((await stranger.post(path, aParameters())).status, 404)
    const { client } = await memberUnder(botica, {
      entries: [{ resourceType: 'Appointment' }, { resourceType: 'Slot', readonly: true }],
    })
    t.equal((await client.post(path, aParameters())).status, 403, 'may not delete a Slot')
    t.not((await admin.get<Resource>(`Appointment/${appointment?.id}`)).body.status, 'cancelled')

    const answer = await admin.post(path)
    t.match(answer, { status: 200, body: { id: appointment?.id, status: 'cancelled' } })
    for (const slot of slots) t.equal((await admin.get(`Slot/${slot.id}`)).status, 410)
    t.equal((await admin.post(path, aParameters())).status, 409)
  }
  t.equal(listTimes((await find(id, FRIDAY, TUESDAY)).body)[0]?.start, '2024-03-08T14:00:00.000Z')
})

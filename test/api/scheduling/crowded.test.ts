/** A Schedule with more Slots than one page of a search. */
import t from 'tap'
import { openBotica } from '../../fixtures/botica.ts'
import { aParameters, aPatient } from '../../fixtures/resources.ts'

const { admin } = await openBotica(t)
const { id } = await admin.create(aPatient())
const schedule = await admin.create({
  resourceType: 'Schedule',
  actor: [{ reference: `Patient/${id}` }],
})

const PAGE = 1000
const MINUTE = 60_000
const LENGTH = 20 * MINUTE
const FIRST = Date.UTC(2024, 2, 1)

const aSlot = (place: number, status: string) => ({
  resourceType: 'Slot',
  schedule: { reference: `Schedule/${schedule.id}` },
  status,
  start: new Date(FIRST + place * LENGTH).toISOString(),
  end: new Date(FIRST + (place + 1) * LENGTH).toISOString(),
})

t.test('books a free time once', async (t) => {
  const entry = Array.from({ length: PAGE }, (_, place) => ({
    resource: aSlot(place, 'busy'),
    request: { method: 'POST', url: 'Slot' },
  }))
  const filled = await admin.post('', { resourceType: 'Bundle', type: 'transaction', entry })
  t.equal(filled.status, 200)
  const free = aSlot(PAGE, 'free')
  await admin.create(free)
  const book = () => admin.post('Appointment/$book', aParameters({ name: 'slot', resource: free }))
  const booked = await book()
  t.equal(booked.status, 201, booked.text)
  t.match(await book(), {
    status: 400,
    body: { issue: [{ details: { text: 'Requested time slot is not available' } }] },
  })
})

/** Inputs of `$book` and `$hold` of which only some would be reserved. */
import t from 'tap'
import { openBotica } from '../../fixtures/botica.ts'
import { aParameters, aPatient } from '../../fixtures/resources.ts'

const { admin } = await openBotica(t)
const { id } = await admin.create(aPatient())
const actor = { reference: `Patient/${id}` }
const schedule = await admin.create({ resourceType: 'Schedule', actor: [actor] })
const [start, end] = ['2024-03-08T14:00:00Z', '2024-03-08T14:30:00Z']
const time = {
  resourceType: 'Slot',
  schedule: { reference: `Schedule/${schedule.id}` },
  status: 'free',
  start,
  end,
}
await admin.create(time)

const slot = { name: 'slot', resource: time }
const appointment = {
  name: 'appointment',
  resource: {
    resourceType: 'Appointment',
    status: 'proposed',
    start,
    end,
    participant: [{ actor, status: 'accepted' }],
    contained: [time],
  },
}

t.test('returns 400 for Slots in both inputs and for a slot of another type', async (t) => {
  for (const operation of ['$book', '$hold']) {
    for (const [inputs, path] of [
      [[appointment, slot], 'slot'],
      [[slot, { name: 'slot', resource: aPatient() }], 'slot[1]'],
    ] as const) {
      const answer = await admin.post(`Appointment/${operation}`, aParameters(...inputs))
      t.match(answer, { status: 400, body: { issue: [{ expression: [path] }] } }, path)
    }
  }
  t.equal((await admin.post('Appointment/$book', aParameters(slot))).status, 201)
})

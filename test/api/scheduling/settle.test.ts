/** `$confirm` and `$cancel` of Appointments that name one Slot. */
import t from 'tap'
import { openBotica } from '../../fixtures/botica.ts'
import { aParameters, aPatient } from '../../fixtures/resources.ts'

const botica = await openBotica(t)
const { admin } = botica
const patient = await admin.create(aPatient())
const schedule = await admin.create({
  resourceType: 'Schedule',
  actor: [{ reference: `Patient/${patient.id}` }],
})

const [start, end] = ['2024-03-08T14:00:00Z', '2024-03-08T14:30:00Z']

async function aSlot(status: string): Promise<string> {
  const reference = `Schedule/${schedule.id}`
  const slot = { resourceType: 'Slot', schedule: { reference }, status, start, end }
  return `Slot/${(await admin.create(slot)).id}`
}

async function anAppointment(status: string, ...slots: readonly string[]): Promise<string> {
  const { id } = await admin.create({
    resourceType: 'Appointment',
    status,
    start,
    end,
    slot: slots.map((reference) => ({ reference })),
    participant: [{ actor: { reference: `Patient/${patient.id}` }, status: 'accepted' }],
  })
  return `Appointment/${id}`
}

const send = (appointment: string, operation: '$confirm' | '$cancel') =>
  admin.post(`${appointment}/${operation}`, aParameters())
const readStatus = async (address: string) => (await admin.get(address)).body.status

t.test('returns 400 for a $confirm with the Slot of another Appointment', async (t) => {
  for (const holding of ['pending', 'booked', 'arrived', 'fulfilled', 'checked-in']) {
    const [own, taken] = [await aSlot('busy-tentative'), await aSlot('busy')]
    await anAppointment(holding, taken)
    const second = await anAppointment('proposed', own, taken)
    const answer = await send(second, '$confirm')
    t.match(answer, {
      status: 400,
      body: {
        issue: [
          {
            details: { text: 'The Slot belongs to another Appointment' },
            expression: ['Appointment.slot[1]'],
          },
        ],
      },
    })
    t.equal(await readStatus(second), 'proposed', holding)
    t.equal(await readStatus(own), 'busy-tentative', holding)
  }
})

t.test('confirms an Appointment whose Slot others only propose or have given up', async (t) => {
  const slot = await aSlot('busy-tentative')
  for (const status of ['proposed', 'cancelled', 'noshow']) await anAppointment(status, slot)
  const held = await anAppointment('pending', slot)
  t.equal((await send(held, '$confirm')).status, 200)
  t.equal(await readStatus(slot), 'busy')
})

t.test('books one of several concurrent $confirm of a Slot', async (t) => {
  for (const status of ['busy', 'busy-tentative']) {
    const slot = await aSlot(status)
    const all = await Promise.all(Array.from({ length: 6 }, () => anAppointment('proposed', slot)))
    const answers = await Promise.all(all.map((one) => send(one, '$confirm')))
    t.equal(answers.filter((answer) => answer.status === 200).length, 1, status)
    t.ok(answers.every((answer) => [200, 400, 412].includes(answer.status)))
    const statuses = await Promise.all(all.map(readStatus))
    t.equal(statuses.filter((one) => one === 'booked').length, 1, status)
  }
})

t.test(
  '$cancel keeps a Slot that another Appointment holds, until that is cancelled',
  async (t) => {
    const [own, shared] = [await aSlot('busy'), await aSlot('busy')]
    const first = await anAppointment('booked', own, shared)
    const second = await anAppointment('booked', shared)
    t.equal((await send(first, '$cancel')).status, 200)
    t.equal((await admin.get(own)).status, 410)
    t.equal(await readStatus(shared), 'busy')
    t.equal((await send(second, '$cancel')).status, 200)
    t.equal((await admin.get(shared)).status, 410)
  },
)

t.test('$cancel deletes a Slot that another Appointment only proposes', async (t) => {
  const slot = await aSlot('busy')
  const booked = await anAppointment('booked', slot)
  const proposed = await anAppointment('proposed', slot)
  const both = [send(booked, '$cancel'), send(proposed, '$confirm')] as const
  const [cancelled, confirmed] = await Promise.all(both)
  t.equal(cancelled.status, 200)
  t.equal((await admin.get(slot)).status, 410)
  t.not(confirmed.status, 200, 'the time is not reserved')
  t.equal(await readStatus(proposed), 'proposed')
})

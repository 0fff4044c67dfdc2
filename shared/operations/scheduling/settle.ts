/** `Appointment/{id}/$confirm` and `$cancel`, compatible with Medplum's clients. Each is one transaction. */
import { badRequest, conflict, isAbsent } from '../../core/errors.ts'
import { type Resource, targetIn, toObjects } from '../../fhir/resource.ts'
import { toInteraction } from '../../request/parameters.ts'
import type { Operation, OperationCall } from '../../request/request.ts'
import { finishWrite } from '../../rest/interaction.ts'
import { changeTogether, type ReadVersion } from '../../rest/write.ts'
import { parseVersion } from '../../store/rows/rows.ts'
import { writtenReply } from './book.ts'

/** Errors: 400 for a Slot that is free, 409 for another status, 412 for a concurrent change; 403, 404. */
export const confirm: Operation = {
  name: 'confirm',
  on: [{ type: 'Appointment', level: 'instance' }],
  methods: ['POST'],
  text: {
    summary: 'Confirm a held appointment',
    description: 'The Appointment becomes booked, and its tentative Slots busy.',
    answer: 'Bundle',
  },
  async run(call) {
    const { appointment, slots } = await readBooking(call, ['pending', 'proposed'], 'confirmed')
    if (slots.length === 0) throw badRequest('The Appointment has no Slot', 'Appointment.slot')
    for (const [i, { resource }] of slots.entries()) {
      if (String(resource.status).startsWith('busy')) continue
      throw badRequest('The time of the Slot is not reserved', `Appointment.slot[${i}]`)
    }
    const tentative = slots.filter(({ resource }) => resource.status === 'busy-tentative')
    const context = toInteraction(call)
    const { updated } = await changeTogether(context, {
      updates: [
        withStatus(appointment, 'booked'),
        ...tentative.map((slot) => withStatus(slot, 'busy')),
      ],
      deletions: [],
    })
    return writtenReply(context, updated, 200)
  },
}

/** Errors: 400 for a missing Slot, 409 for another status, 412 for a concurrent change; 403, 404. */
export const cancelAppointment: Operation = {
  name: 'cancel',
  on: [{ type: 'Appointment', level: 'instance' }],
  methods: ['POST'],
  text: {
    summary: 'Cancel an appointment',
    description: 'The Appointment becomes cancelled, and its Slots are deleted.',
    answer: 'Appointment',
  },
  async run(call) {
    const { appointment, slots } = await readBooking(call, ['pending', 'booked'], 'cancelled')
    const context = toInteraction(call)
    const { updated } = await changeTogether(context, {
      updates: [withStatus(appointment, 'cancelled')],
      deletions: slots,
    })
    const [written] = updated
    if (written === undefined) throw new Error('The cancelled Appointment was not written')
    return finishWrite(context, written.version, written.warnings)
  },
}

interface Booking {
  readonly appointment: ReadVersion
  readonly slots: readonly ReadVersion[]
}

async function readBooking(
  call: OperationCall,
  statuses: readonly string[],
  change: string,
): Promise<Booking> {
  const { id = '' } = call
  const appointment = await readForChange(call, 'Appointment', id)
  const { status, slot } = appointment.resource
  if (!statuses.includes(String(status))) {
    throw conflict(`An Appointment with the status ${status} cannot be ${change}`)
  }
  const references = toObjects(slot)
  const slots = await Promise.all(
    references.map(async (item, i) => {
      const target = targetIn(item)
      const place = `Appointment.slot[${i}]`
      if (target?.type !== 'Slot') throw badRequest('Must be a reference to a Slot', place)
      return await readForChange(call, 'Slot', target.id).catch((error: unknown) => {
        throw isAbsent(error) ? badRequest(`There is no Slot/${target.id}`, place) : error
      })
    }),
  )
  return { appointment, slots }
}

async function readForChange(
  { services, principal }: OperationCall,
  type: string,
  id: string,
): Promise<ReadVersion> {
  const version = await services.repository.read(principal, type, id)
  return { resource: parseVersion(version), ver: version.ver }
}

function withStatus({ resource, ver }: ReadVersion, status: string): ReadVersion {
  const changed: Resource = { ...resource, status }
  return { resource: changed, ver }
}

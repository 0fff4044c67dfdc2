/** `Appointment/{id}/$confirm` and `$cancel`, compatible with Medplum's clients. Each is one transaction. */
import { systemPrincipal } from '../../access/principal.ts'
import { badRequest, conflict, isAbsent, preconditionFailed } from '../../core/errors.ts'
import { type Resource, targetIn, toObjects } from '../../fhir/resource.ts'
import { toInteraction } from '../../request/parameters.ts'
import type { Operation, OperationCall } from '../../request/request.ts'
import { finishWrite } from '../../rest/interaction.ts'
import { changeTogether, type ReadVersion } from '../../rest/write.ts'
import { equals, find, searchFor } from '../../store/lookups.ts'
import type { Repository } from '../../store/repository.ts'
import { parseVersion } from '../../store/rows/rows.ts'
import type { TransactionLocks } from '../../store/transaction.ts'
import { writtenReply } from './book.ts'

/** Statuses of an Appointment that takes the time of its Slots; a proposed one does not. */
const HOLDING = ['pending', 'booked', 'arrived', 'checked-in', 'fulfilled']

/**
 * Errors: 400 for a Slot that is free or held by another Appointment, 409 for another status, 412 for a concurrent
 * change; 403, 404.
 */
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
    const booking = await readBooking(call, ['pending', 'proposed'], 'confirmed')
    const { appointment, slots } = booking
    if (slots.length === 0) throw badRequest('The Appointment has no Slot', 'Appointment.slot')
    for (const [i, { resource }] of slots.entries()) {
      if (String(resource.status).startsWith('busy')) continue
      throw badRequest('The time of the Slot is not reserved', `Appointment.slot[${i}]`)
    }
    const tentative = slots.filter(({ resource }) => resource.status === 'busy-tentative')
    const context = toInteraction(call)
    const updates = [
      withStatus(appointment, 'booked'),
      ...tentative.map((slot) => withStatus(slot, 'busy')),
    ]
    const check = async (inside: Repository) => {
      const other = (await heldByOthers(inside, call, booking)).indexOf(true)
      if (other >= 0) {
        throw badRequest('The Slot belongs to another Appointment', `Appointment.slot[${other}]`)
      }
      await requireUnchanged(inside, call, slots)
    }
    const { updated } = await changeTogether(
      context,
      { updates, deletions: [] },
      check,
      slotLocks(call, slots),
    )
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
    description:
      'The Appointment becomes cancelled, and its Slots are deleted, except those that another Appointment holds.',
    answer: 'Appointment',
  },
  async run(call) {
    const booking = await readBooking(call, ['pending', 'booked'], 'cancelled')
    const { appointment, slots } = booking
    const context = toInteraction(call)
    const held = await heldByOthers(call.services.repository, call, booking)
    const check = async (inside: Repository) => {
      const now = await heldByOthers(inside, call, booking)
      if (now.some((isHeld, i) => isHeld !== held[i])) throw preconditionFailed()
    }
    const { updated } = await changeTogether(
      context,
      {
        updates: [withStatus(appointment, 'cancelled')],
        deletions: slots.filter((_, i) => held[i] !== true),
      },
      check,
      slotLocks(call, slots),
    )
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

function ofSlot({ resource }: ReadVersion) {
  return equals('slot', 'reference', `Slot/${resource.id}`)
}

/** Serializes the changes of the Appointments of a Slot. */
function slotLocks({ principal }: OperationCall, slots: readonly ReadVersion[]): TransactionLocks {
  const conditions = slots.map((slot) => searchFor('Appointment', [ofSlot(slot)], 1, []))
  return { principal: systemPrincipal(principal.project), conditions, oneState: false }
}

/** For each Slot: true if another Appointment takes its time, whether the caller sees it or not. */
async function heldByOthers(
  repository: Repository,
  { principal }: OperationCall,
  { appointment, slots }: Booking,
): Promise<readonly boolean[]> {
  const reader = systemPrincipal(principal.project, 'project')
  const held: boolean[] = []
  for (const slot of slots) {
    const conditions = [ofSlot(slot), equals('status', 'token', ...HOLDING)]
    const found = await find(repository, reader, 'Appointment', { conditions, count: 2 })
    held.push(found.some(({ id }) => id !== appointment.resource.id))
  }
  return held
}

/** Errors: 412 for a Slot that was changed or deleted meanwhile. */
async function requireUnchanged(
  inside: Repository,
  { principal }: OperationCall,
  slots: readonly ReadVersion[],
): Promise<void> {
  const ids = slots.map(({ resource }) => ({ type: 'Slot', id: resource.id ?? '' }))
  const found = await inside.readMany(principal, ids)
  if (slots.some(({ ver }, i) => found[i]?.ver !== ver)) throw preconditionFailed()
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

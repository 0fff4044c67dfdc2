/**
 * Input: an HL7v2 SIU message. SCH becomes an Appointment, matched by its number; S15 and S26 cancel it. Answer: the
 * acknowledgment.
 */
import { type BotEvent, type Hl7Message, type MedplumClient, parseHl7DateTime } from '@medplum/core'
import type { Appointment } from '@medplum/fhirtypes'

const numbers = 'https://example.org/fhir/sid/appointment'
const statuses: Record<string, Appointment['status']> = {
  S15: 'cancelled',
  S17: 'entered-in-error',
  S26: 'noshow',
}

export async function handler(medplum: MedplumClient, event: BotEvent<Hl7Message>) {
  const message = event.input
  const sch = message.getSegment('SCH')
  const number = sch?.getComponent(2, 1) || sch?.getComponent(1, 1)
  if (!sch || !number) return message.buildAck({ ackCode: 'AE' })
  const [start, end] = readTimes(message)
  const pid = message.getSegment('PID')
  const name = `${pid?.getComponent(5, 2) ?? ''} ${pid?.getComponent(5, 1, 0) ?? ''}`.trim()
  await medplum.upsertResource(
    {
      resourceType: 'Appointment',
      identifier: [{ system: numbers, value: number }],
      status: statuses[message.header.getComponent(9, 2)] ?? 'booked',
      ...(start && end && { start, end }),
      participant: [{ actor: { display: name || 'unknown' }, status: 'accepted' }],
    },
    { identifier: `${numbers}|${number}` },
  )
  return message.buildAck()
}

/** From the first service; the end is the start and so many minutes. */
function readTimes(message: Hl7Message): (string | undefined)[] {
  const ais = message.getSegment('AIS')
  const start = parseHl7DateTime(ais?.getComponent(4, 1))
  const minutes = Number(ais?.getComponent(7, 1) || 0)
  if (start === undefined || minutes <= 0) return []
  return [start, new Date(Date.parse(start) + minutes * 60_000).toISOString()]
}

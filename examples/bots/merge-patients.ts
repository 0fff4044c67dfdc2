/**
 * Input: an HL7v2 ADT^A40 message. Closes the record in MRG and links it to the one in PID. Answer: the
 * acknowledgment.
 */
import {
  type BotEvent,
  createReference,
  type Hl7Message,
  Hl7Segment,
  type MedplumClient,
} from '@medplum/core'

const numbers = 'https://example.org/fhir/sid/mrn'

export async function handler(medplum: MedplumClient, event: BotEvent<Hl7Message>) {
  const message = event.input
  const kept = message.getSegment('PID')?.getComponent(3, 1)
  const old = message.getSegment('MRG')?.getComponent(1, 1)
  const [survivor, merged] = await Promise.all(
    [kept, old].map((number) =>
      medplum.searchOne('Patient', { identifier: `${numbers}|${number}` }),
    ),
  )
  if (survivor === undefined || merged === undefined) {
    const error = ['ERR', '', 'MRG^1^1', '204^Unknown key identifier^HL70357', 'E']
    return message.buildAck({ ackCode: 'AE', errSegment: new Hl7Segment(error, message.context) })
  }
  await medplum.patchResource('Patient', merged.id, [
    { op: 'add', path: '/active', value: false },
    {
      op: 'add',
      path: '/link',
      value: [{ other: createReference(survivor), type: 'replaced-by' }],
    },
  ])
  return message.buildAck()
}

/**
 * Input: an Encounter. Summarises its Observations as a text, stored as a DocumentReference, with the text of the
 * previous summary below.
 */
import {
  type BotEvent,
  formatCodeableConcept,
  formatDate,
  formatQuantity,
  getReferenceString,
  type MedplumClient,
} from '@medplum/core'
import type { Encounter } from '@medplum/fhirtypes'

export async function handler(medplum: MedplumClient, event: BotEvent<Encounter>) {
  const encounter = event.input
  const reference = getReferenceString(encounter) ?? ''
  const found = await medplum.searchResources(
    'Observation',
    `encounter=${reference}&_sort=date&_count=200`,
  )
  const lines = found.map(
    (one) =>
      `${formatDate(one.effectiveDateTime, 'en-US')} ${formatCodeableConcept(one.code)}: ${formatQuantity(one.valueQuantity)}`,
  )
  const before = await medplum.searchOne(
    'DocumentReference',
    `encounter=${reference}&_sort=-_lastUpdated`,
  )
  const url = before?.content[0]?.attachment.url
  const old = url ? `\nBefore:\n${await (await medplum.download(url)).text()}` : ''
  const document = await medplum.createDocumentReference({
    data: `${lines.join('\n')}${old}`,
    filename: 'summary.txt',
    contentType: 'text/plain',
    additionalFields: {
      ...(encounter.subject && { subject: encounter.subject }),
      context: { encounter: [{ reference: reference as `Encounter/${string}` }] },
    },
  })
  return { document: document.id, lines: lines.length }
}

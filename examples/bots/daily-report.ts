/**
 * Reports encounters by status and class as CSV, on a schedule or to a browser. A GET returns the table, which is also
 * stored as a Binary and referenced by a Communication of the day.
 */
import type { BotEvent, MedplumClient } from '@medplum/core'
import type { Encounter } from '@medplum/fhirtypes'

export async function handler(medplum: MedplumClient, _event: BotEvent) {
  const counts = new Map<string, number>()
  for await (const page of medplum.searchResourcePages('Encounter', '_count=20&_sort=_id')) {
    for (const encounter of page) count(counts, encounter)
  }
  const rows = [...counts].sort().map(([key, number]) => `${key},${number}`)
  const table = ['status,class,encounters', ...rows].join('\n')
  const day = new Date().toISOString().slice(0, 10)
  const attachment = await medplum.createAttachment({
    data: table,
    filename: `encounters-${day}.csv`,
    contentType: 'text/csv',
  })
  await medplum.upsertResource(
    {
      resourceType: 'Communication',
      identifier: [{ system: 'https://example.org/fhir/sid/report', value: day }],
      status: 'completed',
      payload: [{ contentAttachment: attachment }],
    },
    `identifier=https://example.org/fhir/sid/report|${day}`,
  )
  return { resourceType: 'Binary', contentType: 'text/csv', data: btoa(table) }
}

function count(counts: Map<string, number>, encounter: Encounter): void {
  const key = `${encounter.status},${encounter.class?.code ?? ''}`
  counts.set(key, (counts.get(key) ?? 0) + 1)
}

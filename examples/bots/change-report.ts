/**
 * Input: `{ patient }`. Writes a PDF of all changes in the history of a Patient: the author, the time and the
 * elements.
 */
import { type BotEvent, getReferenceString, type MedplumClient } from '@medplum/core'
import type { Patient } from '@medplum/fhirtypes'

export async function handler(medplum: MedplumClient, event: BotEvent<{ patient: string }>) {
  const { patient: id } = event.input
  const history = await medplum.readHistory('Patient', id, { count: 50 })
  const versions = (history.entry ?? []).flatMap(({ resource }) => resource ?? []).reverse()
  const first = await medplum.readVersion('Patient', id, '1')
  const lines = versions
    .slice(1)
    .map((version, index) => describe(versions[index] ?? first, version))
  const content = [`Since ${first.meta?.lastUpdated}:`, ...lines]
  const pdf = await medplum.createPdf({ docDefinition: { content } })
  return { document: getReferenceString(pdf), lines }
}

function describe(before: Patient, after: Patient): string {
  const names = new Set([...Object.keys(before), ...Object.keys(after)])
  names.delete('meta')
  // Names that are not inherited.
  const elementText = (patient: Patient, name: string) =>
    JSON.stringify(patient[name as keyof Patient])
  const changed = [...names].filter(
    (name) => elementText(before, name) !== elementText(after, name),
  )
  return `${after.meta?.versionId}: ${changed.join(', ')} by ${after.meta?.author?.reference}`
}

/**
 * Input: a Patient that was just stored. Another active Patient with the same family name and date of birth is treated
 * as the same person: the older record stays and takes over the identifiers, and the two link to each other.
 * https://hl7.org/fhir/R4/patient.html#links
 */
import { type BotEvent, createReference, type MedplumClient } from '@medplum/core'
import type { Patient } from '@medplum/fhirtypes'

export async function handler(medplum: MedplumClient, event: BotEvent<Patient>) {
  const { id = '', birthDate, name } = event.input
  const family = name?.[0]?.family
  if (!birthDate || !family) return { merged: [] }
  const found = await medplum.searchResources('Patient', {
    birthdate: birthDate,
    'family:exact': family,
    active: 'true',
    _sort: '_lastUpdated',
  })
  const [kept, ...others] = found
  if (kept === undefined || others.every((other) => other.id !== id)) return { merged: [] }
  for (const other of others) {
    await medplum.updateResource<Patient>({
      ...other,
      active: false,
      link: [{ other: createReference(kept), type: 'replaced-by' }],
    })
  }
  await medplum.updateResource<Patient>({
    ...kept,
    identifier: [kept, ...others].flatMap(({ identifier }) => identifier ?? []),
    link: others.map((other) => ({ other: createReference(other), type: 'replaces' })),
  })
  return { kept: kept.id, merged: others.map((other) => other.id) }
}

/**
 * Input: a roster as CSV, `mrn,family,given,born`. Each row becomes the Patient with that number, all in one
 * transaction; the answer lists rows without number or family name. Bundle it before deployment, since it includes a
 * CSV parser.
 */
import type { BotEvent, MedplumClient } from '@medplum/core'
import type { BundleEntry, Patient } from '@medplum/fhirtypes'
import Papa from 'papaparse'

const MRN = 'https://example.org/fhir/sid/mrn'

interface Row {
  readonly mrn: string
  readonly family: string
  readonly given: string
  readonly born: string
}

export async function handler(medplum: MedplumClient, event: BotEvent<string>) {
  const { data } = Papa.parse<Row>(event.input, { header: true, skipEmptyLines: true })
  const good = data.filter(({ mrn, family }) => mrn && family)
  const bundle = await medplum.executeBatch({
    resourceType: 'Bundle',
    type: 'transaction',
    entry: good.map(toEntry),
  })
  const made = (bundle.entry ?? []).filter(({ response }) => response?.status === '201').length
  const refused = data.filter((row) => !good.includes(row))
  return { made, updated: good.length - made, refused: Papa.unparse(refused) }
}

function toEntry({ mrn, family, given, born }: Row): BundleEntry<Patient> {
  const resource: Patient = {
    resourceType: 'Patient',
    identifier: [{ system: MRN, value: mrn }],
    name: [{ family, given: given.split(' ').filter(Boolean) }],
    ...(/^\d{4}-\d{2}-\d{2}$/.test(born) ? { birthDate: born } : {}),
  }
  return { request: { method: 'PUT', url: `Patient?identifier=${MRN}|${mrn}` }, resource }
}

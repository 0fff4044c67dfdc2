/**
 * Input: `{ npi, family, given, organization }`. Creates the Practitioner and the PractitionerRole if they do not
 * exist.
 */
import { type BotEvent, createReference, type MedplumClient } from '@medplum/core'

const npis = 'http://hl7.org/fhir/sid/us-npi'

export async function handler(medplum: MedplumClient, event: BotEvent<Record<string, string>>) {
  const { npi = '', family = '', given = '', organization = '' } = event.input
  const practitioner = await medplum.createResourceIfNoneExist(
    {
      resourceType: 'Practitioner',
      identifier: [{ system: npis, value: npi }],
      name: [{ family, given: [given] }],
    },
    `identifier=${npis}|${npi}`,
  )
  const owner = await medplum.createResourceIfNoneExist(
    { resourceType: 'Organization', name: organization },
    `name:exact=${encodeURIComponent(escaped(organization))}`,
  )
  const role = await medplum.createResourceIfNoneExist(
    {
      resourceType: 'PractitionerRole',
      practitioner: createReference(practitioner),
      organization: createReference(owner),
      active: true,
    },
    `practitioner=Practitioner/${practitioner.id}&organization=Organization/${owner.id}`,
  )
  return { practitioner: practitioner.id, organization: owner.id, role: role.id }
}

/** In a search a comma separates values; these signs mean themselves only behind a backslash. */
function escaped(value: string): string {
  return value.replace(/[\\,|$]/g, '\\$&')
}

import type { BotEvent, MedplumClient } from '@medplum/core'
import type { Patient } from '@medplum/fhirtypes'

interface Person {
  readonly family: string
  readonly given: string
}

/** Stores the person it is sent, `{"family": "Chalmers", "given": "Peter"}`, as a Patient. */
export async function handler(medplum: MedplumClient, event: BotEvent<Person>): Promise<Patient> {
  const { family, given } = event.input
  const name = [{ family, given: [given] }]
  const patient = await medplum.createResource<Patient>({ resourceType: 'Patient', name })
  console.log('stored', `Patient/${patient.id}`)
  return patient
}

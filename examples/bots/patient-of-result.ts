/** Input: an Observation. Answer: one line with its patient and its performer. */
import { type BotEvent, formatHumanName, formatQuantity, type MedplumClient } from '@medplum/core'
import type { Observation, Patient, Practitioner, Reference } from '@medplum/fhirtypes'

export async function handler(medplum: MedplumClient, event: BotEvent<Observation>) {
  const { input } = event
  const [patient, performer] = await Promise.all([
    medplum.readReference(input.subject as Reference<Patient>),
    input.performer && medplum.readReference(input.performer[0] as Reference<Practitioner>),
  ])
  const by = performer ? ` by ${formatHumanName(performer.name?.[0])}` : ''
  const value = formatQuantity(input.valueQuantity)
  return `${formatHumanName(patient.name?.[0])}: ${input.code.text} ${value}${by}`
}

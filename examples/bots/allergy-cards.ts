/**
 * Answers a CDS Hooks `order-select` request: a warning for each draft whose medication the patient is
 * allergic to. https://cds-hooks.hl7.org/
 */
import { type BotEvent, formatCodeableConcept, type MedplumClient } from '@medplum/core'
import type { Bundle, MedicationRequest } from '@medplum/fhirtypes'

interface HookRequest {
  readonly hook: string
  readonly context: { readonly patientId: string; readonly draftOrders: Bundle<MedicationRequest> }
}

export async function handler(medplum: MedplumClient, event: BotEvent<HookRequest>) {
  const { hook, context } = event.input
  if (hook !== 'order-select') throw new Error(`This service does not know the hook ${hook}`)
  const allergies = await medplum.searchResources('AllergyIntolerance', {
    patient: `Patient/${context.patientId}`,
  })
  const codes = new Set(
    allergies.flatMap(({ code }) => code?.coding?.map((coding) => coding.code) ?? []),
  )
  const drafts = (context.draftOrders.entry ?? []).flatMap(({ resource }) => resource ?? [])
  const cards = drafts
    .filter(({ medicationCodeableConcept: drug }) =>
      drug?.coding?.some(({ code }) => codes.has(code)),
    )
    .map(({ medicationCodeableConcept: drug }) => ({
      uuid: crypto.randomUUID(),
      summary: `Allergic to ${formatCodeableConcept(drug)}`,
      indicator: 'critical',
      source: { label: 'Allergies on record' },
    }))
  return { cards }
}

/**
 * Input: the QuestionnaireResponse of an intake form, from which it creates a Patient, an AllergyIntolerance and an
 * Observation.
 */
import {
  type BotEvent,
  createReference,
  getAllQuestionnaireAnswers,
  getQuestionnaireAnswers,
  LOINC,
  type MedplumClient,
} from '@medplum/core'
import type { Patient, QuestionnaireResponse } from '@medplum/fhirtypes'

const clinical = 'http://terminology.hl7.org/CodeSystem/allergyintolerance-clinical'

export async function handler(medplum: MedplumClient, event: BotEvent<QuestionnaireResponse>) {
  const one = getQuestionnaireAnswers(event.input)
  const all = getAllQuestionnaireAnswers(event.input)
  const family = one['family-name']?.valueString
  if (!family) throw new Error('The form has no family name')
  const patient = await medplum.createResource<Patient>({
    resourceType: 'Patient',
    name: [{ family, given: (all['given-name'] ?? []).map((answer) => answer.valueString ?? '') }],
    birthDate: one['birth-date']?.valueDate ?? '',
    telecom: [{ system: 'email', value: one.email?.valueString ?? '' }],
  })
  const subject = createReference(patient)
  const substances = (all.allergies ?? []).flatMap((answer) => answer.valueCoding ?? [])
  const allergies = await Promise.all(
    substances.map((coding) =>
      medplum.createResource({
        resourceType: 'AllergyIntolerance',
        clinicalStatus: { coding: [{ system: clinical, code: 'active' }] },
        patient: subject,
        code: { coding: [coding] },
      }),
    ),
  )
  const smokes = one.smokes?.valueBoolean
  if (smokes !== undefined) {
    await medplum.createResource({
      resourceType: 'Observation',
      status: 'final',
      code: { coding: [{ system: LOINC, code: '72166-2', display: 'Tobacco smoking status' }] },
      subject,
      valueBoolean: smokes,
    })
  }
  await medplum.updateResource({ ...event.input, subject })
  return { patient: patient.id, allergies: allergies.length }
}

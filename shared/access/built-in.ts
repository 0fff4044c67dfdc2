/** The built-in policies of members whose membership names none. */
import { parseReference, type Resource } from '../fhir/resource.ts'
import type { Access } from './compile.ts'
import { variablesOf } from './variables.ts'

const ofPatient = [
  { resourceType: 'Patient', readonly: true, criteria: 'Patient?_id=%patient.id' },
  { resourceType: 'Binary', interaction: ['read'] },
  { resourceType: '*', readonly: true, criteria: '*?_compartment=%patient' },
]

const POLICIES: Readonly<Record<string, Resource>> = {
  Patient: { resourceType: 'AccessPolicy', id: 'built-in-patient', resource: ofPatient },
  RelatedPerson: {
    resourceType: 'AccessPolicy',
    id: 'built-in-related-person',
    resource: [
      { resourceType: 'RelatedPerson', readonly: true, criteria: 'RelatedPerson?_id=%profile.id' },
      ...ofPatient,
    ],
  },
}

/** Patients and their relatives see what is the patient's; undefined: no policy, so everything. */
export function builtInAccess(projectId: string, profile: Resource): Access | undefined {
  const policy = POLICIES[profile.resourceType]
  if (policy === undefined) return undefined
  const reference = `${profile.resourceType}/${profile.id}`
  return { policy, variables: variablesOf(projectId, reference, patientOf(profile), []) }
}

/** `Patient/id` that `%patient` stands for when no parameter says so. */
export function patientOf(profile: Resource): string | undefined {
  if (profile.resourceType === 'Patient') return `Patient/${profile.id}`
  if (profile.resourceType !== 'RelatedPerson') return `${profile.resourceType}/${profile.id}`
  // A stored RelatedPerson has one patient, by the standard.
  const { patient } = profile as { patient?: { reference?: string } }
  return parseReference(patient?.reference)?.type === 'Patient' ? patient?.reference : undefined
}

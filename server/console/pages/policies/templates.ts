/**
 * Policies to start from. Each entry with data of patients has criteria; entries without criteria are of types that a
 * directory shows to anyone.
 */
import type { AccessPolicy, AccessPolicyResource } from '@medplum/fhirtypes'
import { texts } from '../../texts/texts.ts'

const words = texts.policies.templates

type TemplateName = keyof typeof words

const DIRECTORY = ['Practitioner', 'PractitionerRole', 'Location', 'HealthcareService'] as const

const directory: readonly AccessPolicyResource[] = DIRECTORY.map((resourceType) => ({
  resourceType,
  readonly: true,
}))

const CLINICAL: readonly (readonly [type: string, subject: string])[] = [
  ['Observation', 'subject'],
  ['Condition', 'subject'],
  ['Encounter', 'subject'],
  ['Procedure', 'subject'],
  ['DiagnosticReport', 'subject'],
  ['MedicationRequest', 'subject'],
  ['ServiceRequest', 'subject'],
  ['DocumentReference', 'subject'],
  ['AllergyIntolerance', 'patient'],
  ['Immunization', 'patient'],
]

const ofOrganization = (type: string, subject: string) =>
  `${type}?${subject}:Patient.organization=%organization`

const frontDesk: readonly AccessPolicyResource[] = [
  {
    resourceType: 'Patient',
    criteria: 'Patient?organization=%organization',
    interaction: ['read', 'search', 'create', 'update'],
  },
  { resourceType: 'Appointment', criteria: ofOrganization('Appointment', 'patient') },
  { resourceType: 'Schedule', readonly: true },
  { resourceType: 'Slot', readonly: true },
  ...directory,
  {
    resourceType: 'Organization',
    criteria: 'Organization?_id=%organization.id',
    readonly: true,
  },
]

const organization: readonly AccessPolicyResource[] = [
  { resourceType: 'Patient', criteria: 'Patient?organization=%organization' },
  ...CLINICAL.map(([resourceType, subject]) => ({
    resourceType,
    criteria: ofOrganization(resourceType, subject),
  })),
  { resourceType: 'Appointment', criteria: ofOrganization('Appointment', 'patient') },
  ...directory,
  {
    resourceType: 'Organization',
    criteria: 'Organization?_id=%organization.id',
    readonly: true,
  },
]

const portal: readonly AccessPolicyResource[] = [
  { resourceType: 'Patient', criteria: 'Patient?_id=%patient.id', readonly: true },
  ...[...CLINICAL.map(([type]) => type), 'Appointment', 'CarePlan', 'Coverage'].map(
    (resourceType) => ({
      resourceType,
      criteria: `${resourceType}?_compartment=%patient`,
      readonly: true,
    }),
  ),
  ...directory,
]

const IN_STUDY = '_has:ResearchSubject:individual:study=%study'
/** Elements that name a person, or hold free text that may. */
const NAMING = ['identifier', 'text', 'contained', 'extension']

const research: readonly AccessPolicyResource[] = [
  {
    resourceType: 'Patient',
    criteria: `Patient?${IN_STUDY}`,
    readonly: true,
    hiddenFields: [
      ...NAMING,
      ...['name', 'telecom', 'address', 'birthDate', 'photo', 'contact', 'link'],
    ],
  },
  ...['Observation', 'Condition'].map((resourceType) => ({
    resourceType,
    criteria: `${resourceType}?subject:Patient.${IN_STUDY}`,
    readonly: true,
    hiddenFields: [...NAMING, 'note', 'subject.display', 'subject.identifier'],
  })),
]

const ENTRIES: Readonly<Record<TemplateName, readonly AccessPolicyResource[]>> = {
  empty: [],
  frontDesk,
  organization,
  portal,
  research,
}

export const TEMPLATE_NAMES = Object.keys(ENTRIES) as TemplateName[]

export function policyFrom(name: TemplateName): AccessPolicy {
  return {
    resourceType: 'AccessPolicy',
    name: name === 'empty' ? '' : words[name].name,
    resource: [...ENTRIES[name]],
  }
}

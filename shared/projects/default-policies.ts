/** Policies of members whose invitation names none: `Project.defaultAccessPolicies`. */
import type { Principal } from '../access/principal.ts'
import { isObject, type Reference, type Resource } from '../fhir/resource.ts'
import type { Repository } from '../store/repository.ts'
import type { TargetProject } from './provision.ts'

/** Returns the policy for administrators, or for members with a profile of this type; undefined without one. */
export function defaultPolicy(
  project: Resource,
  profileType: string,
  isAdmin: boolean,
): Reference | undefined {
  const wanted = isAdmin ? 'Admin' : profileType
  const items: readonly unknown[] = Array.isArray(project.defaultAccessPolicies)
    ? project.defaultAccessPolicies
    : []
  const found = items.filter(isObject).find((item) => item.profileType === wanted)?.accessPolicy
  const older = wanted === 'Patient' ? project.defaultPatientAccessPolicy : undefined
  const policy = found ?? older
  return isObject(policy) ? (policy as Reference) : undefined
}

const READING = ['read', 'vread', 'search', 'history']

const OWN_RECORDS = [
  { resourceType: '*', criteria: '*?_compartment=%patient', interaction: READING },
  { resourceType: 'Patient', criteria: 'Patient?_id=%patient.id', interaction: READING },
  { resourceType: 'Binary', interaction: READING },
]

/** By the codes of `Project.defaultAccessPolicies.profileType`. */
const NEW_POLICIES = {
  Admin: [
    '*',
    'AccessPolicy',
    'Bot',
    'ClientApplication',
    'OperationDefinition',
    'Project',
    'ProjectMembership',
    'SearchParameter',
    'StructureDefinition',
    'Subscription',
    'User',
  ].map((resourceType) => ({ resourceType })),
  Practitioner: [{ resourceType: '*' }],
  Patient: OWN_RECORDS,
  RelatedPerson: [
    ...OWN_RECORDS,
    {
      resourceType: 'RelatedPerson',
      criteria: 'RelatedPerson?_id=%profile.id',
      interaction: READING,
    },
  ],
}

/** Creates a policy for each kind of member in a new Project, and returns `Project.defaultAccessPolicies`. */
export async function createDefaultPolicies(
  repository: Repository,
  actor: Principal,
  { id }: TargetProject,
): Promise<readonly Record<string, unknown>[]> {
  const named: Record<string, unknown>[] = []
  for (const [profileType, resource] of Object.entries(NEW_POLICIES)) {
    const policy = await repository.create(actor, {
      resourceType: 'AccessPolicy',
      meta: { project: id },
      name: `Default policy: ${profileType}`,
      resource,
    })
    named.push({ profileType, accessPolicy: { reference: `AccessPolicy/${policy.id}` } })
  }
  return named
}

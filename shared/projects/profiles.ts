/** Profiles of who is invited: chosen, found by address, or new. */
import { type ProjectContext, systemPrincipal } from '../access/principal.ts'
import { badRequest } from '../errors.ts'
import { parseReference, type Reference, type Resource, referenceTo } from '../fhir/resource.ts'
import { displayOf } from '../identity/principals.ts'
import type { Condition, SearchRequest } from '../query/search-request.ts'
import { escapeValue } from '../query/values.ts'
import type { Transaction } from '../store/repository.ts'
import { searchFor } from '../store/rows/lookups.ts'
import { parseVersion } from '../store/rows/rows.ts'
import { requireValid } from '../validation/validate.ts'
import type { Enrollee, Inviter } from './invitation.ts'
import { onBehalfOf } from './provision.ts'

/** An existing profile that an invite names. Errors: 400. */
export async function profileIn(
  inside: Transaction,
  project: ProjectContext,
  wanted: Reference,
  type: string,
): Promise<Resource> {
  const parsed = parseReference(wanted.reference)
  if (parsed !== undefined && parsed.type !== type) {
    throw badRequest('Profile resourceType does not match request', 'membership.profile')
  }
  const profile = parsed && (await readIn(inside, project, parsed))
  if (profile === undefined) {
    throw badRequest('Profile does not belong to project', 'membership.profile')
  }
  return profile
}

/** By e-mail address, when there is one. Errors: 400, 412 for several of them. */
export async function findOrCreateProfile(
  inside: Transaction,
  { caller, project }: Inviter,
  enrollee: Enrollee,
): Promise<Resource> {
  const { resourceType, firstName, lastName, email, patient } = enrollee
  const subject = patient && (await patientIn(inside, project, patient))
  const profile: Resource = {
    resourceType,
    meta: { project: project.id },
    name: [{ given: [firstName], family: lastName }],
    ...(email === undefined ? {} : { telecom: [{ system: 'email', use: 'work', value: email }] }),
    ...(resourceType === 'RelatedPerson' && subject !== undefined ? { patient: subject } : {}),
  }
  // A RelatedPerson needs a patient, but may be invited before the patient is known.
  const anybody = resourceType === 'RelatedPerson' ? { patient: { display: 'Not known yet' } } : {}
  requireValid({ ...anybody, ...withoutPlatformMeta(profile) }, { strict: true })
  // Profiles that linked Projects share do not belong to this Project.
  const own = { ...onBehalfOf(caller), project: { ...project, links: [] } }
  if (email === undefined) return parseVersion(await inside.create(own, profile))
  const request = profileSearch(resourceType, email)
  return parseVersion(await inside.createConditional(own, profile, request))
}

/** The search that finds a profile by an address. */
export function profileSearch(type: string, email: string): SearchRequest {
  const values = [escapeValue(email)]
  const condition: Condition = { code: 'email', type: 'token', modifier: undefined, values }
  return searchFor(type, [condition], 2, [])
}

async function patientIn(
  inside: Transaction,
  project: ProjectContext,
  patient: Reference,
): Promise<Reference> {
  const parsed = parseReference(patient.reference)
  const found = parsed?.type === 'Patient' ? await readIn(inside, project, parsed) : undefined
  if (found === undefined) throw badRequest('Patient does not belong to project', 'patient')
  return named(found, displayOf(found))
}

async function readIn(
  inside: Transaction,
  project: ProjectContext,
  reference: { readonly type: string; readonly id: string },
): Promise<Resource | undefined> {
  const [found] = await inside.readMany(systemPrincipal(project), [reference])
  const resource = found?.content === undefined ? undefined : parseVersion(found)
  return resource?.meta?.project === project.id ? resource : undefined
}

/** A Reference with a name. */
export function named(resource: Resource, display: string | undefined): Reference {
  return { reference: referenceTo(resource), ...(display === undefined ? {} : { display }) }
}

/** The platform's additions to `meta` are no part of the standard's type. */
export function withoutPlatformMeta({ meta: _, ...rest }: Resource): Resource {
  return rest as Resource
}

/** Parses and validates the body of an invite. */
import {
  type Principal,
  type ProjectContext,
  servicePrincipal,
  systemPrincipal,
} from '../access/principal.ts'
import { SYSTEM_PROJECT } from '../access/project-context.ts'
import { badRequest, invalid, issue } from '../core/errors.ts'
import { parseReference, type Reference, type Resource, referenceTo } from '../fhir/resource.ts'
import { displayName } from '../identity/principals.ts'
import type { SearchRequest } from '../search/language/search-request.ts'
import { escapeValue } from '../search/language/values.ts'
import { equals, searchFor } from '../store/lookups.ts'
import type { Transaction } from '../store/repository.ts'
import { parseVersion } from '../store/rows/rows.ts'
import { requireValid } from '../validation/validate.ts'
import { defined, Fields } from './fields.ts'

export const PROFILE_TYPES = ['Patient', 'Practitioner', 'RelatedPerson'] as const
type ProfileType = (typeof PROFILE_TYPES)[number]

export interface Invitation {
  readonly resourceType: ProfileType
  readonly firstName: string
  readonly lastName: string
  readonly email: string | undefined
  readonly externalId: string | undefined
  readonly scope: 'project' | 'server'
  readonly password: string | undefined
  readonly sendEmail: boolean
  readonly mfaRequired: boolean
  readonly upsert: boolean
  readonly forceNewMembership: boolean
  readonly patient: Reference | undefined
  readonly profile: Reference | undefined
  readonly details: Readonly<Record<string, unknown>>
}

export type Enrollee = Omit<Invitation, 'password'> & { readonly passwordHash: string | undefined }

export interface Inviter {
  readonly caller: Principal
  readonly user: Reference | undefined
  readonly project: ProjectContext
}

const DETAILS = [
  'admin',
  'accessPolicy',
  'access',
  'externalId',
  'userName',
  'identifier',
  'invitedBy',
  'userConfiguration',
  'active',
]

/**
 * Ignores unknown fields as Medplum does, unless handling is strict. Those of `membership` are always errors: a
 * misspelled `access` would give all rights. Errors: 400 with one issue per field.
 */
export function readInvitation(body: Record<string, unknown>, isStrict: boolean): Invitation {
  const fields = new Fields(body)
  const membership = fields.object('membership') ?? {}
  const inner = new Fields(membership, 'membership')
  // The membership's own rule validates their values.
  inner.ignore('resourceType', ...DETAILS)
  // Set by the invite.
  inner.ignore('id', 'meta', 'project', 'user')
  const resourceType = fields.requiredOneOf(
    'resourceType',
    PROFILE_TYPES,
    'Resource type is required',
  )
  const firstName = fields.requiredText('firstName', 'First name is required')
  const lastName = fields.requiredText('lastName', 'Last name is required')
  const email = fields.email('email')
  const externalId = inner.text('externalId') ?? fields.text('externalId')
  const scope = fields.oneOf('scope', ['project', 'server'] as const)
  const sendEmail = fields.flag('sendEmail') ?? true
  const given = {
    admin: fields.flag('admin'),
    accessPolicy: fields.reference('accessPolicy'),
    access: fields.objects('access'),
    ...Object.fromEntries(DETAILS.map((name) => [name, membership[name]]).filter(isGiven)),
    ...defined({ admin: inner.flag('admin'), accessPolicy: inner.reference('accessPolicy') }),
    externalId,
  }
  const invitation = {
    resourceType: resourceType ?? 'Practitioner',
    firstName,
    lastName,
    email,
    externalId,
    scope: externalId === undefined ? (scope ?? defaultScope(resourceType)) : ('project' as const),
    password: fields.text('password'),
    sendEmail: sendEmail && email !== undefined,
    mfaRequired: fields.flag('mfaRequired') ?? false,
    upsert: fields.flag('upsert') ?? false,
    forceNewMembership: fields.flag('forceNewMembership') ?? false,
    patient: fields.reference('patient'),
    profile: inner.reference('profile'),
    details: defined(given),
  }
  const missing =
    email === undefined && externalId === undefined && !fields.hasProblem('email')
      ? [
          issue('error', 'invalid', 'Either email or externalId is required', {
            expression: 'email',
          }),
        ]
      : []
  const unknown = [...(isStrict ? fields.unknown : []), ...inner.unknown]
  const issues = [...fields.issues, ...inner.issues, ...missing, ...unknown]
  if (issues.length > 0) throw invalid(issues)
  return invitation
}

/** Patients are scoped to one Project by default. */
function defaultScope(type: ProfileType | undefined): Invitation['scope'] {
  return type === 'Patient' ? 'project' : 'server'
}

function isGiven([, value]: readonly unknown[]): boolean {
  return value !== undefined && value !== null && value !== ''
}

// Profiles of invited people: named, found by address, or new

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

/** Finds a profile by e-mail address, or creates one. Errors: 412 for several matches; 400. */
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
  // A RelatedPerson needs a patient, which may be unknown at the time of the invite.
  const anybody = resourceType === 'RelatedPerson' ? { patient: { display: 'Not known yet' } } : {}
  requireValid({ ...anybody, ...withoutPlatformMeta(profile) }, { strict: true })
  const own = { ...servicePrincipal(SYSTEM_PROJECT, caller), project: { ...project, links: [] } }
  if (email === undefined) return parseVersion(await inside.create(own, profile))
  const request = profileSearch(resourceType, email)
  return parseVersion(await inside.createConditional(own, profile, request))
}

export function profileSearch(type: string, email: string): SearchRequest {
  return searchFor(type, [equals('email', 'token', escapeValue(email))], 2, [])
}

async function patientIn(
  inside: Transaction,
  project: ProjectContext,
  patient: Reference,
): Promise<Reference> {
  const parsed = parseReference(patient.reference)
  const found = parsed?.type === 'Patient' ? await readIn(inside, project, parsed) : undefined
  if (found === undefined) throw badRequest('Patient does not belong to project', 'patient')
  return namedReference(found, displayName(found))
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

export function namedReference(resource: Resource, display: string | undefined): Reference {
  return { reference: referenceTo(resource), ...(display === undefined ? {} : { display }) }
}

/** Drops the platform's additions to `meta`, which the standard type lacks. */
export function withoutPlatformMeta({ meta: _, ...rest }: Resource): Resource {
  return rest as Resource
}

/** The body of an invite, read and checked field by field. */
import type { Principal, ProjectContext } from '../access/principal.ts'
import { invalid, issue } from '../errors.ts'
import type { Reference } from '../fhir/resource.ts'
import { defined, Fields } from './fields.ts'

export const PROFILE_TYPES = ['Patient', 'Practitioner', 'RelatedPerson'] as const
export type ProfileType = (typeof PROFILE_TYPES)[number]

export interface Invitation {
  readonly resourceType: ProfileType
  readonly firstName: string
  readonly lastName: string
  /** In lower case. */
  readonly email: string | undefined
  readonly externalId: string | undefined
  readonly scope: 'project' | 'server'
  readonly password: string | undefined
  readonly sendEmail: boolean
  readonly mfaRequired: boolean
  readonly upsert: boolean
  readonly forceNewMembership: boolean
  /** The patient of a RelatedPerson. */
  readonly patient: Reference | undefined
  /** An existing one to be used. */
  readonly profile: Reference | undefined
  /** Further elements of the membership. */
  readonly details: Readonly<Record<string, unknown>>
}

/** As `Invitation`, its password hashed: that takes too long for a transaction. */
export type Enrollee = Omit<Invitation, 'password'> & { readonly passwordHash: string | undefined }

/** The member who invites, and the Project. */
export interface Inviter {
  readonly caller: Principal
  /** The User, when it is one. */
  readonly user: Reference | undefined
  readonly project: ProjectContext
}

/** Members of `membership` that an invite passes on. */
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

/** Errors: 400 with one issue a field. */
export function readInvitation(body: Record<string, unknown>): Invitation {
  const fields = new Fields(body)
  const membership = fields.object('membership') ?? {}
  const inner = new Fields(membership, 'membership')
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
  const issues = [...fields.issues, ...inner.issues, ...missing]
  if (issues.length > 0) throw invalid(issues)
  return invitation
}

/** A patient exists in one Project alone, unless the invite says otherwise. */
function defaultScope(type: ProfileType | undefined): Invitation['scope'] {
  return type === 'Patient' ? 'project' : 'server'
}

function isGiven([, value]: readonly unknown[]): boolean {
  return value !== undefined && value !== null && value !== ''
}

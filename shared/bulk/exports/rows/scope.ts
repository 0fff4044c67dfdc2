/** Which types an export has, and what of each is asked for: in the eyes of the member whose export it is. */
import { may } from '../../../access/policy.ts'
import type { Principal } from '../../../access/principal.ts'
import { compartmentParams, isPlatformType, resourceTypes } from '../../../fhir/definitions.ts'
import type { ExportInput, ExportLevel } from './jobs.ts'

/** Whoever asks: credentials, the exports themselves, and content that travels with an Attachment. */
const NEVER: ReadonlySet<string> = new Set([
  'User',
  'Login',
  'JsonWebKey',
  'PasswordChangeRequest',
  'UserSecurityRequest',
  'DomainConfiguration',
  'SmartAppLaunch',
  'UserConfiguration',
  'AsyncJob',
  'BulkDataExport',
  'Binary',
])

/** True for a type that can be named; those of the platform by project admins only. */
export function isExportable(principal: Principal, type: string): boolean {
  return !NEVER.has(type) && (!isPlatformType(type) || principal.isProjectAdmin)
}

/** True when resources of the type can be in the compartment of a patient. */
export function isOfPatients(type: string): boolean {
  return type === 'Patient' || compartmentParams('Patient', type).length > 0
}

/** The types that the member may read, in the order of their names. */
export function typesOf(
  principal: Principal,
  { level, types, provenance, organizedBy }: Asked,
): readonly string[] {
  return resourceTypes.filter(
    (type) =>
      isExportable(principal, type) &&
      (isNamed(type, provenance) || (types?.includes(type) ?? isUsual(type))) &&
      mayExport(principal, type) &&
      (organizedBy === undefined ? fits(level, type) : isOfPatients(type)),
  )
}

export type Asked = Pick<ExportInput, 'level' | 'types' | 'provenance' | 'organizedBy'>

/** Asked for beside the types. */
function isNamed(type: string, provenance: ExportInput['provenance']): boolean {
  return type === 'Provenance' && provenance !== undefined
}

export function mayExport(principal: Principal, type: string): boolean {
  return may(principal, type, 'search') && may(principal, type, 'read')
}

/** Exported without being named. */
function isUsual(type: string): boolean {
  return !isPlatformType(type) && type !== 'AuditEvent'
}

/** A Group may have members of other types, which are exported as themselves. */
export function fits(level: ExportLevel, type: string): boolean {
  return level === 'system' || isOfPatients(type) || (level === 'group' && MEMBERS.has(type))
}

/** https://hl7.org/fhir/R4/group-definitions.html#Group.member.entity */
const MEMBERS: ReadonlySet<string> = new Set([
  'Practitioner',
  'PractitionerRole',
  'Device',
  'Medication',
  'Substance',
])

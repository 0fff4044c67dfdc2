/**
 * The scope of an export, in the eyes of the member whose export it is: which types it has, what of each is asked
 * for, and resources as they were at its time.
 */

import { decideContents, hiddenBy } from '../../../access/decisions/decide.ts'
import { may } from '../../../access/policy.ts'
import type { Principal } from '../../../access/principal.ts'
import {
  compartmentParams,
  isPlatformType,
  resourceTypes,
  typeNumber,
} from '../../../fhir/definitions.ts'
import { shownTo } from '../../../store/read/redact.ts'
import { isLegalId, type Store, scopeOf } from '../../../store/rows/context.ts'
import { toVersion, type VersionRow, versionColumns } from '../../../store/rows/rows.ts'
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
  { level, types, provenance, organizedBy }: AskedExport,
): readonly string[] {
  return resourceTypes.filter(
    (type) =>
      isExportable(principal, type) &&
      (isNamed(type, provenance) || (types?.includes(type) ?? isUsual(type))) &&
      mayExport(principal, type) &&
      (organizedBy === undefined ? fits(level, type) : isOfPatients(type)),
  )
}

export type AskedExport = Pick<ExportInput, 'level' | 'types' | 'provenance' | 'organizedBy'>

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

/** In no order; one statement for a hundred, and one more where only PostgreSQL can decide. */
export async function readAsOf(
  store: Store,
  principal: Principal,
  type: string,
  { ids, at }: { readonly ids: readonly string[]; readonly at: Date },
): Promise<readonly VersionRow[]> {
  const wanted = ids.filter(isLegalId).map((id) => store.keys.rowId(type, id))
  return readRowsAsOf(store, principal, type, { wanted, at })
}

/** The same by row ids. */
export async function readRowsAsOf(
  store: Store,
  principal: Principal,
  type: string,
  { wanted, at }: { readonly wanted: readonly string[]; readonly at: Date },
): Promise<readonly VersionRow[]> {
  if (!mayExport(principal, type)) return []
  const { project } = scopeOf(principal, type)
  const seen: VersionRow[] = []
  for (let from = 0; from < wanted.length; from += AT_ONCE) {
    const rows = await store.connection.query<VersionRow>({
      name: 'export-as-of',
      text: `select v.* from unnest($3::uuid[]) x(id) cross join lateral (
          select ${versionColumns('v')} from version v
          where v.project = $1 and v.type = $2 and v.id = x.id and v.lu <= $4
          order by v.ver desc limit 1) v
        where v.content is not null`,
      values: [project, typeNumber(type), wanted.slice(from, from + AT_ONCE), at],
    })
    const rulings = await decideContents(store, principal, ['search', 'read'], rows)
    for (const [i, row] of rows.entries()) {
      const { search, read } = rulings[i] ?? {}
      if (search === undefined || read === undefined) continue
      const shown = shownTo(principal, toVersion(row), [...hiddenBy(search), ...hiddenBy(read)])
      seen.push({ ...row, content: shown.content ?? null })
    }
  }
  return seen
}

const AT_ONCE = 100

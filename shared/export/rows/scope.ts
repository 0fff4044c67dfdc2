/** Scope of an export for its member: types, time and `_typeFilter`. Versions without a row are tested by content. */

import { decideContents, hiddenBy, needsSql } from '../../access/decisions/decide.ts'
import { allSql, visibleRows } from '../../access/decisions/grant-predicates.ts'
import { plainGrant } from '../../access/grant.ts'
import { may } from '../../access/policy.ts'
import type { Principal } from '../../access/principal.ts'
import {
  compartmentParams,
  isPlatformType,
  resourceTypes,
  typeName,
  typeNumber,
} from '../../fhir/definitions.ts'
import { binder, type Connection } from '../../postgres/statement.ts'
import { findUnits } from '../../search/planner/prepare.ts'
import { compilePredicate } from '../../search/predicates/compile.ts'
import {
  codesRead,
  filter,
  type Predicate,
  type SearchScope,
  scopeSql,
} from '../../search/predicates/predicate.ts'
import { redactFor } from '../../store/read/read.ts'
import { isLegalId, rowScope, type StoreContext } from '../../store/rows/context.ts'
import { toVersion, type VersionRow, versionColumns } from '../../store/rows/rows.ts'
import type { ExportInput, ExportLevel, TypeFilter } from './jobs.ts'

/** Never exported: credentials, exports themselves, and content sent with an Attachment. */
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

/** True for a type that can be requested; platform types need a project admin. */
export function isExportable(principal: Principal, type: string): boolean {
  return !NEVER.has(type) && (!isPlatformType(type) || principal.isProjectAdmin)
}

function isOfPatients(type: string): boolean {
  return type === 'Patient' || compartmentParams('Patient', type).length > 0
}

/** Types readable by the member, sorted by name. */
export function exportedTypes(
  principal: Principal,
  { level, types, provenance, organizedBy }: AskedExport,
): readonly string[] {
  return resourceTypes.filter(
    (type) =>
      isExportable(principal, type) &&
      ((type === 'Provenance' && provenance !== undefined) ||
        (types?.includes(type) ?? (!isPlatformType(type) && type !== 'AuditEvent'))) &&
      mayExport(principal, type) &&
      (organizedBy === undefined ? fits(level, type) : isOfPatients(type)),
  )
}

export type AskedExport = Pick<ExportInput, 'level' | 'types' | 'provenance' | 'organizedBy'>

export function mayExport(principal: Principal, type: string): boolean {
  return may(principal, type, 'search') && may(principal, type, 'read')
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

export interface TypesAt {
  readonly types: readonly string[]
  readonly at: Date
}

/** Returns the types with writes since a time; `orHere`: or with rows. One statement. */
export async function typesWritten(
  connection: Connection,
  project: number,
  { types, at }: TypesAt,
  orHere: boolean,
): Promise<readonly string[]> {
  const rows = await connection.query<{ type: number }>({
    name: 'export-types',
    text: `select t.type from unnest($2::smallint[]) t(type)
      where exists (select 1 from version n
          where n.project = $1 and n.type = t.type and n.lu > $3)
        or ($4 and exists (select 1 from resource r where r.project = $1 and r.type = t.type))`,
    values: [project, types.map(typeNumber), at, orHere],
  })
  return rows.map(({ type }) => typeName(type))
}

/** Unordered; one statement per hundred, plus one if only PostgreSQL can decide. */
export async function readVersionsAt(
  store: StoreContext,
  principal: Principal,
  type: string,
  { ids, at }: { readonly ids: readonly string[]; readonly at: Date },
): Promise<readonly VersionRow[]> {
  const wanted = ids.filter(isLegalId).map((id) => store.keys.rowId(type, id))
  return readRowsAt(store, principal, type, { wanted, at })
}

export async function readRowsAt(
  store: StoreContext,
  principal: Principal,
  type: string,
  { wanted, at }: { readonly wanted: readonly string[]; readonly at: Date },
): Promise<readonly VersionRow[]> {
  if (!mayExport(principal, type)) return []
  const { project } = rowScope(principal, type)
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
    const decisions = await decideContents(store, principal, ['search', 'read'], rows)
    for (const [i, row] of rows.entries()) {
      const { search, read } = decisions[i] ?? {}
      if (search === undefined || read === undefined) continue
      const shown = redactFor(principal, toVersion(row), [...hiddenBy(search), ...hiddenBy(read)])
      seen.push({ ...row, content: shown.content ?? null })
    }
  }
  return seen
}

const AT_ONCE = 100

export interface Filter {
  readonly scope: SearchScope
  readonly test: Predicate
  /** Sees all matches, subject only to the search conditions. */
  readonly asked: Principal
  readonly isLimited: boolean
}

/** Undefined without a filter for the type. Errors: 400, 403 for parameters the member may not search by. */
export async function buildTypeFilter(
  store: StoreContext,
  principal: Principal,
  type: string,
  filters: readonly TypeFilter[],
): Promise<Filter | undefined> {
  const own = filters.filter((one) => one.type === type).map(({ conditions }) => conditions)
  if (own.length === 0) return undefined
  const { number } = principal.project
  const units = await findUnits(
    store,
    number,
    own.map((conditions) => ({ conditions })),
  )
  const searches = own.map((conditions) => {
    const codes = conditions.flatMap((criterion) =>
      codesRead(type, criterion, principal.project.parameters),
    )
    const scope = visibleRows(store, principal, type, {
      interaction: 'search',
      project: number,
      units,
      codes,
    })
    if (scope === undefined) return undefined
    // Chained references may match any number of rows: there is no page limit.
    const wide: SearchScope = { ...scope, isPolicy: true }
    const predicates = conditions.map((criterion) => compilePredicate(wide, criterion))
    return { scope, tests: [...scope.visible, ...predicates] }
  })
  const [first] = searches
  if (first === undefined) return undefined
  const predicate = filter((bind) => {
    return `(${searches.map((one) => allSql(one?.tests ?? [], bind)).join(' or ')})`
  })
  return {
    scope: first.scope,
    test: predicate,
    asked: {
      ...principal,
      isSuperAdmin: false,
      isProjectAdmin: false,
      rules: {
        grants: own.map((criteria) => ({
          ...plainGrant(type, ['search'], '_typeFilter'),
          criteria,
        })),
      },
    },
    isLimited: principal.rules !== undefined,
  }
}

export async function applyTypeFilter(
  store: StoreContext,
  { scope, test: predicate, asked, isLimited }: Filter,
  rows: readonly VersionRow[],
): Promise<readonly VersionRow[]> {
  const decisions = await decideContents(store, asked, ['search'], rows)
  const found = rows.filter((_, i) => decisions[i]?.search !== undefined)
  if (!isLimited || !needsSql(store, asked, scope.type, 'search')) return found
  // Chained references are tested on current rows visible to the member.
  const { values, bind } = binder()
  const ids = bind(
    found.map(({ id }) => id),
    'uuid[]',
  )
  const own = scopeSql(scope.project, [typeNumber(scope.type)], bind, false)
  const seen = await store.connection.query<{ id: string }>({
    text: `select r.id from resource r where ${own.join(' and ')} and r.id = any(${ids})
      and ${allSql([predicate], bind)}`,
    values,
  })
  const visible = new Set(seen.map(({ id }) => id))
  return found.filter(({ id }) => visible.has(id))
}

/** Patients and other members of an export; patients are listed in a table instead of memory. */
import type { Principal } from '../../access/principal.ts'
import { type Issue, issue } from '../../core/errors.ts'
import { isResourceType } from '../../fhir/definitions.ts'
import { isObject, type Resource, targetIn, toObjects } from '../../fhir/resource.ts'
import { parseDate } from '../../fhir/values.ts'
import { arrayLiteral, type Bind } from '../../postgres/statement.ts'
import { normalId, type StoreContext } from '../../store/rows/context.ts'
import { contentId, parseVersion, toVersion, type VersionRow } from '../../store/rows/rows.ts'
import type { ExportInput } from './jobs.ts'
import { readVersionsAt } from './scope.ts'

export const MEMBERS_AT_ONCE = 200
const FAR = new Date('9999-12-31T00:00:00Z')
/** Key of a deleted patient, whose compartment holds only deletions. */
const DELETED_PATIENT = 0n

/** Members of one type: visible versions, the requested ids, and the number of missing ones. */
export interface MemberPage {
  readonly type: string
  readonly rows: readonly VersionRow[]
  readonly ids: readonly string[]
  readonly missing: number
}

/**
 * Yields the members of a Group, or the named patients, at a time. A page of type Group has only the number of Groups
 * and members that are not there.
 */
export async function* memberPages(
  store: StoreContext,
  principal: Principal,
  input: ExportInput,
  at: Date,
): AsyncGenerator<MemberPage> {
  const { members, missing } = await exportMembers(store, principal, input, at)
  if (missing > 0) yield { type: 'Group', rows: [], ids: [], missing }
  for (const [type, all] of members) {
    for (let from = 0; from < all.length; from += MEMBERS_AT_ONCE) {
      const ids = all.slice(from, from + MEMBERS_AT_ONCE)
      const rows = await readVersionsAt(store, principal, type, { ids, at })
      yield { type, rows, ids, missing: ids.length - rows.length }
    }
  }
}

/** Counts omitted members; the issue does not name them. */
export function leftOut(members: number, why: string): readonly Issue[] {
  if (members === 0) return []
  return [issue('information', 'informational', `${members} members of the Group are ${why}`)]
}

async function exportMembers(
  store: StoreContext,
  principal: Principal,
  { level, id = '', patients }: ExportInput,
  at: Date,
): Promise<Members> {
  const ofPatients = (ids: readonly string[]) => new Map([['Patient', ids]])
  if (level === 'instance') return { members: ofPatients([id]), missing: 0 }
  if (level === 'patient') return { members: ofPatients(patients ?? []), missing: 0 }
  const found = await groupMembers(store, principal, { id, at, on: at })
  if (patients === undefined) return found
  const wanted = new Set(patients)
  const own = (found.members.get('Patient') ?? []).filter((one) => wanted.has(one))
  return { members: ofPatients(own), missing: 0 }
}

interface Members {
  /** Ids by type. */
  readonly members: ReadonlyMap<string, readonly string[]>
  /** Groups that are not there, and members that are not on this server. */
  readonly missing: number
}

/** Returns the Patients visible to the caller and, for a Group, among its members. */
export async function patientsIn(
  store: StoreContext,
  principal: Principal,
  ids: readonly string[],
  group: string | undefined,
): Promise<ReadonlySet<string>> {
  const found =
    group && (await groupMembers(store, principal, { id: group, at: FAR, on: new Date() }))
  const own = found && new Set(found.members.get('Patient'))
  const among = ids.filter((id) => !own || own.has(id))
  const rows = await readVersionsAt(store, principal, 'Patient', { ids: among, at: FAR })
  return new Set(rows.map(({ content }) => contentId(content ?? '')))
}

/** Returns the members active `on` a day, in Groups as of `at`, including nested Groups. */
async function groupMembers(
  store: StoreContext,
  principal: Principal,
  { id, at, on }: { readonly id: string; readonly at: Date; readonly on: Date },
): Promise<Members> {
  const found = new Map<string, Set<string>>()
  let missing = 0
  const entered = new Set<string>([id])
  // Iterating a Set includes items that are added meanwhile.
  for (const group of entered) {
    const [row] = await readVersionsAt(store, principal, 'Group', { ids: [group], at })
    if (row === undefined) {
      missing += 1
      continue
    }
    for (const target of activeMembers(parseVersion(toVersion(row)), on)) {
      const { type = '', id: member = '' } = target ?? {}
      if (type === 'Group') entered.add(member)
      else if (isResourceType(type)) found.set(type, (found.get(type) ?? new Set()).add(member))
      else missing += 1
    }
  }
  return { members: new Map([...found].map(([type, ids]) => [type, [...ids]])), missing }
}

/** Returns undefined for each member that is not on this server. */
function activeMembers({ member }: Resource, on: Date) {
  const isActive = ({ inactive, period }: Readonly<Record<string, unknown>>) => {
    const end = isObject(period) ? parseDate(period.end) : undefined
    return inactive !== true && (end === undefined || end.high > on.getTime())
  }
  return toObjects(member)
    .filter(isActive)
    .map(({ entity }) => targetIn(entity))
}

/** Inserts the patients of a page, including missing ones, with the keys of `rows`. `job` is SQL. */
export function membersSql(
  { job, rows, ids }: Pick<MemberPage, 'rows' | 'ids'> & { readonly job: string },
  compartments: readonly bigint[],
  bind: Bind,
): string {
  const found = rows.map(({ content }) => `Patient/${contentId(content ?? '')}`)
  const here = new Set(found)
  const gone = ids.filter((id) => !here.has(`Patient/${normalId(id)}`)).map((id) => `Patient/${id}`)
  const keys = [...compartments, ...gone.map(() => DELETED_PATIENT)]
  return `insert into export_member (job, reference, key, id)
    select ${job}, * from unnest(${bind([...found, ...gone], 'text[]')},
      ${bind(arrayLiteral(keys), 'bigint[]')},
      ${bind([...rows.map(({ id }) => id), ...gone.map(() => null)], 'uuid[]')})
    on conflict do nothing`
}

/** Patients of an export and the rows of their compartments, listed in tables instead of memory. */
import type { Principal } from '../../access/principal.ts'
import { type Issue, issue } from '../../core/errors.ts'
import { isResourceType, typeNumber } from '../../fhir/definitions.ts'
import { isObject, parseReference, type Resource } from '../../fhir/resource.ts'
import { parseDate } from '../../fhir/values.ts'
import { keysLiteral } from '../../store/index/keys.ts'
import { normalId, type StoreContext } from '../../store/rows/context.ts'
import { contentId, parseVersion, toVersion, type VersionRow } from '../../store/rows/rows.ts'
import { type Bind, binder } from '../../store/rows/side-rows.ts'
import type { ExportInput, PlannedJob } from './jobs.ts'
import { type ListedRows, listingSql } from './list.ts'
import { readVersionsAt, type TypesAt } from './scope.ts'
import { memberSql } from './select.ts'

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

/** Yields the members of a Group, or the named patients, at a time. */
export async function* memberPages(
  store: StoreContext,
  principal: Principal,
  input: ExportInput,
  at: Date,
): AsyncGenerator<MemberPage> {
  for (const [type, all] of await exportMembers(store, principal, input, at)) {
    for (let from = 0; from < all.length; from += MEMBERS_AT_ONCE) {
      const ids = all.slice(from, from + MEMBERS_AT_ONCE)
      const rows = await readVersionsAt(store, principal, type, { ids, at })
      yield { type, rows, ids, missing: ids.length - rows.length }
    }
  }
}

/** Lists members and the rows of patient compartments, for an export by type. */
export async function listMembers(
  store: StoreContext,
  principal: Principal,
  { id, input }: PlannedJob,
  { types, at }: TypesAt,
): Promise<{ readonly listed: readonly ListedRows[]; readonly issues: readonly Issue[] }> {
  const listed: ListedRows[] = []
  let missing = 0
  for await (const page of memberPages(store, principal, input, at)) {
    const { type, rows } = page
    missing += page.missing
    if (type !== 'Patient' && !types.includes(type)) continue
    const { values, bind } = binder()
    const job = bind(id, 'uuid')
    const text =
      type === 'Patient'
        ? `with m as (${membersSql(store, principal, { ...page, job }, bind)})
          ${listingSql(job, inCompartments(store, principal, { rows, types, at }, bind))}`
        : listingSql(job, givenRows(typeNumber(type), rows, bind))
    listed.push(...(await store.connection.query<ListedRows>({ text, values })))
  }
  return { listed, issues: leftOut(missing, 'not there or may not be read') }
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
): Promise<ReadonlyMap<string, readonly string[]>> {
  if (level === 'instance') return new Map([['Patient', [id]]])
  if (level === 'patient') return new Map([['Patient', patients ?? []]])
  const members = await groupMembers(store, principal, { id, at, on: at })
  if (patients === undefined) return members
  const wanted = new Set(patients)
  return new Map([['Patient', (members.get('Patient') ?? []).filter((one) => wanted.has(one))]])
}

/** Returns the Patients visible to the caller and, for a Group, among its members. */
export async function patientsIn(
  store: StoreContext,
  principal: Principal,
  ids: readonly string[],
  group: string | undefined,
): Promise<ReadonlySet<string>> {
  const members =
    group && (await groupMembers(store, principal, { id: group, at: FAR, on: new Date() }))
  const own = members && new Set(members.get('Patient'))
  const among = ids.filter((id) => !own || own.has(id))
  const rows = await readVersionsAt(store, principal, 'Patient', { ids: among, at: FAR })
  return new Set(rows.map(({ content }) => contentId(content ?? '')))
}

/** Returns ids by type of members active `on` a day, in Groups as of `at`, including nested Groups. */
async function groupMembers(
  store: StoreContext,
  principal: Principal,
  { id, at, on }: { readonly id: string; readonly at: Date; readonly on: Date },
): Promise<ReadonlyMap<string, readonly string[]>> {
  const found = new Map<string, Set<string>>()
  const entered = new Set<string>([id])
  // Iterating a Set includes items that are added meanwhile.
  for (const group of entered) {
    const [row] = await readVersionsAt(store, principal, 'Group', { ids: [group], at })
    if (row === undefined) continue
    for (const { type, id: member } of activeMembers(parseVersion(toVersion(row)), on)) {
      if (type === 'Group') entered.add(member)
      else if (isResourceType(type)) found.set(type, (found.get(type) ?? new Set()).add(member))
    }
  }
  return new Map([...found].map(([type, ids]) => [type, [...ids]]))
}

function activeMembers({ member }: Resource, on: Date) {
  const members = Array.isArray(member) ? member.filter(isObject) : []
  return members.flatMap(({ entity, inactive, period }) => {
    const end = isObject(period) ? parseDate(period.end) : undefined
    if (inactive === true || (end !== undefined && end.high <= on.getTime())) return []
    const text = isObject(entity) ? entity.reference : undefined
    return (typeof text === 'string' ? parseReference(text) : undefined) ?? []
  })
}

/** Inserts the patients of a page, including missing ones. `job` is SQL. */
export function membersSql(
  store: StoreContext,
  principal: Principal,
  { job, rows, ids }: MemberPage & { readonly job: string },
  bind: Bind,
): string {
  const found = rows.map(({ content }) => `Patient/${contentId(content ?? '')}`)
  const here = new Set(found)
  const gone = ids.filter((id) => !here.has(`Patient/${normalId(id)}`)).map((id) => `Patient/${id}`)
  const keys = [...compartmentKeys(store, principal, rows), ...gone.map(() => DELETED_PATIENT)]
  return `insert into export_member (job, reference, key, id)
    select ${job}, * from unnest(${bind([...found, ...gone], 'text[]')},
      ${bind(keysLiteral(keys), 'bigint[]')},
      ${bind([...rows.map(({ id }) => id), ...gone.map(() => null)], 'uuid[]')})
    on conflict do nothing`
}

/** Returns the keys of rows in these patients' compartments. */
export function compartmentKeys(
  { keys }: StoreContext,
  { project }: Principal,
  patients: readonly VersionRow[],
): bigint[] {
  return patients.map(({ content }) =>
    keys.compartment(project.number, `Patient/${contentId(content ?? '')}`),
  )
}

/** Compares in small groups: each matching row is compared with all keys. */
function inCompartments(
  store: StoreContext,
  principal: Principal,
  { rows, types, at }: TypesAt & Pick<MemberPage, 'rows'>,
  bind: Bind,
): string {
  const held = compartmentKeys(store, principal, rows)
  return `select r.type, r.id, r.ver
    from (select array_agg(k) as some from unnest(${bind(keysLiteral(held), 'bigint[]')})
      with ordinality u(k, n) group by n / 10) k
    cross join lateral (select r.type, r.id, r.ver from resource r
      where r.keys && k.some and (r.project = ${bind(principal.project.number, 'int')}) is true
        and (r.type = any(${bind(types.map(typeNumber), 'smallint[]')})) is true
        and r.lu <= ${bind(at, 'timestamptz')} offset 0) r`
}

function givenRows(type: number, rows: readonly VersionRow[], bind: Bind): string {
  const ids = bind(
    rows.map(({ id }) => id),
    'uuid[]',
  )
  const versions = bind(
    rows.map(({ ver }) => ver),
    'int[]',
  )
  return `select ${bind(type, 'smallint')} as type, * from unnest(${ids}, ${versions}) x(id, ver)`
}

/** Lists rows of the compartments written after the export's time; their earlier versions are exported. */
export async function listChangedRows(
  { connection }: StoreContext,
  { project }: Principal,
  { id }: PlannedJob,
  { types, at }: TypesAt,
): Promise<readonly ListedRows[]> {
  const { values, bind } = binder()
  const [job, time, own] = [bind(id, 'uuid'), bind(at, 'timestamptz'), bind(project.number, 'int')]
  const rows = `select v.type, v.id, v.ver from version n
    cross join lateral (select v.* from version v where v.project = ${own} and v.type = n.type
      and v.id = n.id and v.ver = n.ver - 1 offset 0) v
    where n.project = ${own} and n.type = any(${bind(types.map(typeNumber), 'smallint[]')})
      and n.lu > ${time} and n.ver > 1 and v.lu <= ${time} and v.content is not null
      and ${memberSql(job, 'm.key <> 0')}`
  return connection.query<ListedRows>({ text: listingSql(job, rows), values })
}

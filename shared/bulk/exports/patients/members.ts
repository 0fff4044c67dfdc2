/**
 * Lists the patients whose compartments are exported: those of a Group at the time of the export, or those
 * that were named. They and the rows in their compartments are written to tables: however many they are,
 * no process holds them all.
 */

import { allSql } from '../../../access/decisions/grant-predicates.ts'
import type { Principal } from '../../../access/principal.ts'
import { type Issue, issue } from '../../../errors.ts'
import { isResourceType, typeNumber } from '../../../fhir/definitions.ts'
import { isObject, parseReference, type Resource } from '../../../fhir/resource.ts'
import { parseDate } from '../../../fhir/values.ts'
import { type Bind, binder, type Connection } from '../../../platform/postgres/statement.ts'
import { keysLiteral } from '../../../store/index/keys.ts'
import { normalId, type Store } from '../../../store/rows/context.ts'
import { idOf, parseVersion, toVersion, type VersionRow } from '../../../store/rows/rows.ts'
import type { ExportJob } from '../rows/jobs.ts'
import { type Listed, listingSql } from '../rows/list.ts'
import { readAsOf } from '../rows/scope.ts'
import { memberSql, rulingSql, type Selection } from '../rows/select.ts'

/** Patients that are listed by a statement. */
const AT_ONCE = 200

/** The patients that were listed, and issues about members that are left out. */
export interface Listing {
  readonly listed: readonly Listed[]
  readonly issues: readonly Issue[]
}

export async function listMembers(
  store: Store,
  principal: Principal,
  { id: job, input }: Pick<ExportJob, 'id' | 'input'>,
  { types, at }: { readonly types: readonly string[]; readonly at: Date },
): Promise<Listing> {
  const named = await membersOf(store, principal, input, at)
  const listed: Listed[] = []
  let missing = 0
  for (const [type, ids] of named) {
    for (let from = 0; from < ids.length; from += AT_ONCE) {
      const some = ids.slice(from, from + AT_ONCE)
      const rows = await readAsOf(store, principal, type, { ids: some, at })
      missing += some.length - rows.length
      const found = rows.map(({ content }) => idOf(content ?? ''))
      if (type === 'Patient') {
        const here = new Set(found)
        const gone = some.filter((one) => !here.has(normalId(one)))
        listed.push(
          ...(await addPatients(store, principal, { job, members: { found, gone }, types, at })),
        )
      } else if (types.includes(type)) {
        listed.push(...(await addRows(store, job, typeNumber(type), rows)))
      }
    }
  }
  return { listed, issues: leftOut(missing, 'not there or may not be read') }
}

/** An issue gives the number of members, not their identity. */
export function leftOut(members: number, why: string): readonly Issue[] {
  if (members === 0) return []
  return [issue('information', 'informational', `${members} members of the Group are ${why}`)]
}

/** Ids by type. */
export async function membersOf(
  store: Store,
  principal: Principal,
  { level, id = '', patients }: ExportJob['input'],
  at: Date,
): Promise<ReadonlyMap<string, readonly string[]>> {
  if (level === 'instance') return new Map([['Patient', [id]]])
  if (level === 'patient') return new Map([['Patient', patients ?? []]])
  const members = await groupMembers(store, principal, { id, at, on: at })
  if (patients === undefined) return members
  const wanted = new Set(patients)
  return new Map([['Patient', (members.get('Patient') ?? []).filter((one) => wanted.has(one))]])
}

/** By type, as Groups say it `at` a time of those who are members `on` a day; nested Groups are entered. */
export async function groupMembers(
  store: Store,
  principal: Principal,
  { id, at, on }: { readonly id: string; readonly at: Date; readonly on: Date },
): Promise<ReadonlyMap<string, readonly string[]>> {
  const found = new Map<string, Set<string>>()
  const entered = new Set<string>([id])
  // A Set gives what is added to it while it is read.
  for (const group of entered) {
    const [row] = await readAsOf(store, principal, 'Group', { ids: [group], at })
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

/** Key of a patient who is not there any more: in that compartment are deletions alone. */
export const GONE = 0n

interface AddedPatients {
  readonly job: string
  readonly members: { readonly found: readonly string[]; readonly gone: readonly string[] }
  readonly types: readonly string[]
  readonly at: Date
}

/** One statement. */
async function addPatients(
  { keys, connection }: Store,
  { project }: Principal,
  { job, members: { found, gone }, types, at }: AddedPatients,
): Promise<readonly Listed[]> {
  const held = found.map((id) => keys.compartment(project.number, `Patient/${id}`))
  return connection.query<Listed>({
    // Each row that holds one of several keys is compared with all of them: of 100 keys 14 ms, of ten at a
    // time 6. Where it sees the keys, PostgreSQL may compare them with those of each row instead.
    text: `with m as (insert into export_member (job, reference, key)
        select $1, * from unnest($2::text[], $3::bigint[]) on conflict do nothing)
      ${listingSql('$1::uuid', SOME_KEYS_AT_A_TIME)}`,
    values: [
      job,
      [...found, ...gone].map((id) => `Patient/${id}`),
      keysLiteral([...held, ...gone.map(() => GONE)]),
      keysLiteral(held),
      project.number,
      types.map(typeNumber),
      at,
    ],
  })
}

const SOME_KEYS_AT_A_TIME = `select r.type, r.id, r.ver
  from (select array_agg(k) as some from unnest($4::bigint[]) with ordinality u(k, n) group by n / 10) k
  cross join lateral (select r.type, r.id, r.ver from resource r
    where r.keys && k.some and (r.project = $5) is true and (r.type = any($6)) is true
      and r.lu <= $7 offset 0) r`

interface ChangedAt {
  readonly job: string
  readonly types: readonly string[]
  readonly at: Date
}

/** Rows in the compartments that were written after the time of the export: what was there before is exported. */
export async function addChanged(
  connection: Connection,
  { project }: Principal,
  { job, types, at }: ChangedAt,
): Promise<readonly Listed[]> {
  const { values, bind } = binder()
  const time = bind(at, 'timestamptz')
  const own = bind(project.number, 'int')
  const rows = `select v.type, v.id, v.ver from version n
    cross join lateral (select v.* from version v where v.project = ${own} and v.type = n.type
      and v.id = n.id and v.ver = n.ver - 1 offset 0) v
    where n.project = ${own}
      and n.type = any(${bind(types.map(typeNumber), 'smallint[]')})
      and n.lu > ${time} and n.ver > 1 and v.lu <= ${time} and v.content is not null
      and ${memberSql(bind(job, 'uuid'), 'm.key <> 0')}`
  return connection.query<Listed>({ text: listingSql(bind(job, 'uuid'), rows), values })
}

async function addRows(
  { connection }: Store,
  job: string,
  type: number,
  rows: readonly VersionRow[],
): Promise<readonly Listed[]> {
  return connection.query<Listed>({
    name: 'export-list',
    text: listingSql(
      '$1::uuid',
      'select $2::smallint as type, * from unnest($3::uuid[], $4::int[]) x(id, ver)',
    ),
    values: [job, type, rows.map(({ id }) => id), rows.map(({ ver }) => ver)],
  })
}

export const PATIENT = typeNumber('Patient')

/** A statement that writes down what `rows` gives, of which it reads `patient`, `place`, `ruling` and `id`. */
export function compartmentsSql(job: string, rows: string): string {
  return `insert into export_compartment (job, patient, place, ruling, ids)
    select ${job}, patient, place, ruling, array_agg(distinct id order by id)
    from (${rows}) r group by patient, place, ruling`
}

/** The row is the Patient whose compartment it is. */
export function isOwnSql(table: string, patient: string): string {
  return `${table}.type = ${PATIENT} and ${table}.id = ${patient}`
}

/** Number of the type that is at the place of a compartment. */
export function typeAtPlace(table: string): string {
  return `(case ${table}.place when 0 then ${PATIENT} else ${table}.place end)`
}

/** Selects for rows `r` of several types which grant governs, and whether they are exported. */
export function rowTestsSql(
  selections: readonly Selection[],
  bind: Bind,
): readonly [ruling: string, tests: string] {
  const rulings: string[] = []
  const tests: string[] = []
  for (const selection of selections) {
    const { scene, filter, ruled } = selection
    const when = `when ${typeNumber(scene.type)} then`
    if (ruled !== undefined) rulings.push(`${when} ${rulingSql(selection, bind)}`)
    const own = filter === undefined ? scene.visible : [...scene.visible, filter.test]
    if (own.length > 0) tests.push(`${when} ${allSql(own, bind)}`)
  }
  return [
    rulings.length === 0 ? 'null::int' : `(case r.type ${rulings.join(' ')} end)`,
    tests.length === 0 ? 'true' : `(case r.type ${tests.join(' ')} else true end)`,
  ]
}

/**
 * Whose compartments are exported: the patients of a Group as it was at the time of the export, or those
 * that were named. They and the rows in their compartments are written to tables: however many they are,
 * no process holds them all.
 */
import type { Principal } from '../../access/principal.ts'
import { isResourceType, typeNumber } from '../../fhir/definitions.ts'
import { type Issue, issue } from '../../fhir/outcome.ts'
import { isObject, parseReference, type Resource } from '../../fhir/resource.ts'
import { parseDate } from '../../fhir/values-date.ts'
import { idOf } from '../content.ts'
import { normalId, type Store } from '../context.ts'
import { keysLiteral } from '../keys.ts'
import { parseVersion, toVersion } from '../rows.ts'
import { readAsOf } from './as-of.ts'
import type { ExportJob } from './jobs.ts'

/** Reference keys that are looked for at a time: measured best between one by one and all. */
const AT_ONCE = 500

/** Answers what is to be told of members that are left out. */
export async function listMembers(
  store: Store,
  principal: Principal,
  { id: job, input }: Pick<ExportJob, 'id' | 'input'>,
  types: readonly string[],
  at: Date,
): Promise<readonly Issue[]> {
  const named = await membersOf(store, principal, input, at)
  let missing = 0
  for (const [type, ids] of named) {
    for (let from = 0; from < ids.length; from += AT_ONCE) {
      const some = ids.slice(from, from + AT_ONCE)
      const rows = await readAsOf(store, principal, type, some, at)
      missing += some.length - rows.length
      const found = rows.map(({ content }) => idOf(content ?? ''))
      if (type === 'Patient') {
        await addPatients(store, principal, job, found, types, at)
        const here = new Set(found)
        const gone = some.filter((one) => !here.has(normalId(one)))
        await addReferences(
          store,
          job,
          gone,
          gone.map(() => GONE),
        )
      } else if (types.includes(type)) {
        await addRows(
          store,
          job,
          typeNumber(type),
          rows.map(({ id }) => id),
        )
      }
    }
  }
  if (missing === 0) return []
  const text = `${missing} members of the Group are not there or may not be read`
  return [issue('information', 'informational', text)]
}

async function membersOf(
  store: Store,
  principal: Principal,
  { level, id = '', patients }: ExportJob['input'],
  at: Date,
): Promise<ReadonlyMap<string, readonly string[]>> {
  if (level === 'instance') return new Map([['Patient', [id]]])
  if (level === 'patient') return new Map([['Patient', patients ?? []]])
  const members = await groupMembers(store, principal, id, at, at)
  if (patients === undefined) return members
  const wanted = new Set(patients)
  return new Map([['Patient', (members.get('Patient') ?? []).filter((one) => wanted.has(one))]])
}

/** By type, as Groups say it `at` a time of those who are members `on` a day; nested Groups are entered. */
export async function groupMembers(
  store: Store,
  principal: Principal,
  id: string,
  at: Date,
  on: Date,
): Promise<ReadonlyMap<string, readonly string[]>> {
  const found = new Map<string, Set<string>>()
  const entered = new Set<string>([id])
  // A Set gives what is added to it while it is read.
  for (const group of entered) {
    const [row] = await readAsOf(store, principal, 'Group', [group], at)
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
const GONE = 0n

async function addReferences(
  { connection }: Store,
  job: string,
  ids: readonly string[],
  held: readonly bigint[],
): Promise<void> {
  await connection.query({
    name: 'export-members',
    text: `insert into export_member (job, reference, key)
      select $1, * from unnest($2::text[], $3::bigint[]) on conflict do nothing`,
    values: [job, ids.map((id) => `Patient/${id}`), keysLiteral(held)],
  })
}

async function addPatients(
  store: Store,
  { project }: Principal,
  job: string,
  ids: readonly string[],
  types: readonly string[],
  at: Date,
): Promise<void> {
  const held = ids.map((id) => store.keys.compartment(project.number, `Patient/${id}`))
  await addReferences(store, job, ids, held)
  const { connection } = store
  // What was written later is judged by the version before, when its part is read. Where it sees the keys,
  // PostgreSQL may compare them with those of each row instead: 530 ms for 900 of 9,000, not 28.
  await connection.query({
    text: `insert into export_row (job, type, id) select $1, r.type, r.id from resource r
      where r.keys && (select $2::bigint[]) and (r.project = $3) is true and (r.type = any($4)) is true
        and r.lu <= $5 on conflict do nothing`,
    values: [job, keysLiteral(held), project.number, types.map(typeNumber), at],
  })
}

async function addRows(
  { connection }: Store,
  job: string,
  type: number,
  ids: readonly string[],
): Promise<void> {
  await connection.query({
    name: 'export-rows',
    text: `insert into export_row (job, type, id) select $1, $2, unnest($3::uuid[])
      on conflict do nothing`,
    values: [job, type, ids],
  })
}

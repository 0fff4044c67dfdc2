/**
 * Which Provenance goes with an export: that of which some target is exported, or of it only the newest
 * of each target. https://hl7.org/fhir/uv/bulkdata/STU2/export.html#query-parameters
 */

import { allSql } from '../../../access/decisions/grant-predicates.ts'
import type { Principal } from '../../../access/principal.ts'
import { storedParameters, typeName, typeNumber } from '../../../fhir/definitions.ts'
import { isObject, parseReference } from '../../../fhir/resource.ts'
import { binder, type Connection } from '../../../platform/postgres/statement.ts'
import { bufferOf, type Slice, sliceOf } from '../../../platform/storage/storage.ts'
import type { Store } from '../../../store/rows/context.ts'
import {
  type ExportInput,
  type LineSink,
  type PlannedJob,
  type ProvenanceChoice,
  uuidOf,
} from '../rows/jobs.ts'
import { listingSql } from '../rows/list.ts'
import { type AskedExport, typesOf } from '../rows/scope.ts'
import { type Selection, selectedIds, selectionOf } from '../rows/select.ts'

/** Targets that are looked at for each at a time: mostly one of the first is exported. */
const TARGETS = 10

/** Undefined: all that the member may see. */
export function provenanceChoice({
  level,
  provenance,
}: Pick<ExportInput, 'level' | 'provenance'>): ProvenanceChoice | undefined {
  return provenance ?? (level === 'system' ? undefined : 'relevant')
}

/** Types of the targets by which Provenance goes with an export. */
export function targetTypes(principal: Principal, input: AskedExport): readonly string[] {
  const isTarget = (type: string) => type !== 'Provenance'
  const named = typesOf(principal, input).filter(isTarget)
  if (named.length > 0) return named
  // Where nothing else is asked for, it is that of what would be.
  const usual = { ...input, types: undefined, provenance: undefined }
  return typesOf(principal, usual).filter(isTarget)
}

/** Row id and content of a Provenance. */
interface ProvenanceRow {
  readonly id: string
  readonly content: string
}

/** Picks those that go with the export, in their order. */
type ProvenanceFilter = (rows: readonly ProvenanceRow[]) => Promise<ReadonlySet<string>>

export function provenanceFilter(
  store: Store,
  principal: Principal,
  job: PlannedJob,
  { own, choice }: { readonly own: Selection; readonly choice: ProvenanceChoice },
): ProvenanceFilter {
  const types = new Set(targetTypes(principal, job.input))
  const selections = new Map<string, Promise<Selection | undefined>>()
  const selectionFor = (type: string) => {
    const known = selections.get(type)
    if (known !== undefined) return known
    const made = selectionOf(store, principal, type, job)
    selections.set(type, made)
    return made
  }

  /** Returns the references that are exported. */
  async function exported(references: ReadonlySet<string>): Promise<ReadonlySet<string>> {
    const found = new Set<string>()
    const parsed = [...references].flatMap((text) => parseReference(text) ?? [])
    for (const [type, own] of Map.groupBy(parsed, (one) => one.type)) {
      const selection = types.has(type) ? await selectionFor(type) : undefined
      if (selection === undefined) continue
      for (let from = 0; from < own.length; from += AT_ONCE) {
        const some = own.slice(from, from + AT_ONCE)
        const rowIds = some.map(({ id }) => store.keys.rowId(type, id))
        const ids = await selectedIds(store, selection, rowIds)
        some.forEach(({ id }, i) => {
          if (ids.has(rowIds[i] ?? '')) found.add(`${type}/${id}`)
        })
      }
    }
    return found
  }

  return async (rows) => {
    const going = new Set<string>()
    let open = rows.map(({ id, content }) => ({ id, targets: targetsOf(content) }))
    while (open.length > 0) {
      const round = open.map(({ id, targets }) => ({ id, targets: targets.slice(0, TARGETS) }))
      const found = await exported(new Set(round.flatMap(({ targets }) => targets)))
      const newest = choice === 'latest' ? await newestOf(store, own, found) : undefined
      for (const { id, targets } of round) {
        const goes = (target: string) =>
          newest === undefined ? found.has(target) : newest.get(target) === id
        if (targets.some(goes)) going.add(id)
      }
      open = open.flatMap(({ id, targets }) => {
        const left = targets.slice(TARGETS)
        return going.has(id) || left.length === 0 ? [] : [{ id, targets: left }]
      })
    }
    return going
  }
}

const AT_ONCE = 1000

/** Hands on the lines of what goes with the export, some at a time and in their order. */
export function provenanceLines(filter: ProvenanceFilter, line: LineSink) {
  let batch: { readonly id: Buffer; readonly content: string; readonly shown: Buffer }[] = []
  let before = Promise.resolve()

  function flush(): Promise<void> {
    const rows = batch
    batch = []
    before = before.then(async () => {
      const named = rows.map(({ id, content }) => ({ id: uuidOf(id), content }))
      const going = await filter(named)
      for (const [i, { id, shown }] of rows.entries()) {
        if (going.has(named[i]?.id ?? '')) await line(sliceOf(id), sliceOf(shown))
      }
    })
    return before
  }

  return {
    add(id: Slice, content: Slice, shown: Slice): Promise<void> | undefined {
      batch.push({
        id: Buffer.from(bufferOf(id)),
        content: bufferOf(content).toString(),
        shown: Buffer.from(bufferOf(shown)),
      })
      return batch.length < AT_ONCE ? undefined : flush()
    },
    end: flush,
  }
}

/** `Type/id`, without repeats; Patients first, by which most is found. */
export function targetsOf(content: string): readonly string[] {
  const { target } = JSON.parse(content)
  const references = (Array.isArray(target) ? target : []).flatMap((item) => {
    const text = isObject(item) && typeof item.reference === 'string' ? item.reference : undefined
    const found = parseReference(text)
    return found === undefined ? [] : [`${found.type}/${found.id}`]
  })
  const isPatient = (text: string) => text.startsWith('Patient/')
  return [...new Set([...references.filter(isPatient), ...references])]
}

/** Target → row id of the newest Provenance about it that the member sees. One statement. */
async function newestOf(
  { keys, connection }: Store,
  { scene, at }: Selection,
  targets: ReadonlySet<string>,
): Promise<ReadonlyMap<string, string>> {
  if (targets.size === 0) return new Map()
  const list = [...targets]
  const [code = 'target'] = storedParameters('Provenance', 'target')
  const parameter = keys.param(scene.project, 'Provenance', code)
  const held = list.map((one) => keys.reference(parameter, keys.target(scene.project, one)))
  const { values, bind } = binder()
  const rows = await connection.query<{ n: number; id: string }>({
    text: `select t.n::int, l.id
      from unnest(${bind(`{${held.join(',')}}`, 'bigint[]')}) with ordinality t(key, n)
      cross join lateral (
        select r.id from resource r join version v using (project, type, id, ver)
        where r.keys @> array[t.key] and (r.project = ${bind(scene.project, 'int')}) is true
          and (r.type = ${bind(typeNumber(scene.type), 'smallint')}) is true
          and (r.lu <= ${bind(at, 'timestamptz')}) is true and ${allSql(scene.visible, bind)}
        order by (v.content::jsonb ->> 'recorded')::timestamptz desc nulls last, r.lu desc, r.id
        limit 1) l`,
    values,
  })
  return new Map(rows.map(({ n, id }) => [list[n - 1] ?? '', id]))
}

const PROVENANCE = typeNumber('Provenance')

/** False when there is none that could be exported. One statement. */
export async function hasProvenance(
  connection: Connection,
  { project }: Principal,
  at: Date,
): Promise<boolean> {
  const [found] = await connection.query<{ isAny: boolean }>({
    name: 'export-has-provenance',
    text: `select exists (select 1 from resource where project = $1 and type = $2)
      or exists (select 1 from version where project = $1 and type = $2 and lu > $3) as "isAny"`,
    values: [project.number, PROVENANCE, at],
  })
  return found?.isAny === true
}

/** Arrays of the list that one statement goes through. */
const ARRAYS = 16

/** Answers how many there are, about. */
export async function listProvenance(
  store: Store,
  principal: Principal,
  job: string,
  at: Date,
): Promise<number> {
  const { connection } = store
  const [list] = await connection.query<{ arrays: number; types: number[] }>({
    text: `select count(*)::int as arrays, coalesce(array_agg(distinct type), '{}') as types
      from export_list where job = $1 and type <> $2`,
    values: [job, PROVENANCE],
  })
  const { arrays = 0, types = [] } = list ?? {}
  let areThere = true
  for (let from = 0; from < arrays && areThere; from += ARRAYS) {
    areThere = await listAbout(store, principal, { job, types, at, from })
  }
  await listChanged(connection, principal, { job, at, alone: areThere })
  const [found] = await connection.query<{ rows: number }>({
    text: `select coalesce(sum(cardinality(ids)), 0)::int as rows
      from export_list where job = $1 and type = $2`,
    values: [job, PROVENANCE],
  })
  return found?.rows ?? 0
}

interface AboutScope {
  readonly job: string
  readonly types: readonly number[]
  readonly at: Date
  readonly from: number
}

/**
 * Each row's first key is its own, and that of a reference to it differs by what is the same for all of a
 * type. False when a row of the list is not there any more: nobody knows what refers to it.
 */
async function listAbout(
  { connection, keys }: Store,
  { project }: Principal,
  { job, types, at, from }: AboutScope,
): Promise<boolean> {
  const [code = 'target'] = storedParameters('Provenance', 'target')
  const parameter = keys.param(project.number, 'Provenance', code)
  const own = types.map((type) => parameter ^ keys.param(project.number, typeName(type), '_self'))
  const { values, bind } = binder()
  const [number, provenance] = [bind(project.number, 'int'), bind(PROVENANCE, 'smallint')]
  const id = bind(job, 'uuid')
  const found = `select p.type, p.id, p.ver
    from (select array_agg(key) as some from k where key is not null group by n / 50) g
    cross join lateral (select r.type, r.id, r.ver from resource r
      where r.keys && g.some and (r.project = ${number}) is true and (r.type = ${provenance}) is true
        and r.lu <= ${bind(at, 'timestamptz')} offset 0) p`
  const rows = await connection.query({
    text: `with l as (select type, ids from export_list where job = ${id} and type <> ${provenance}
          order by type, low, high offset ${bind(from, 'int')} limit ${ARRAYS}),
        k as materialized (select r.keys[1] # t.own as key, row_number() over () as n
          from l cross join lateral unnest(l.ids) x(id)
          join unnest(${bind(types, 'smallint[]')}, ${bind(`{${own.join(',')}}`, 'bigint[]')})
            t(type, own) on t.type = l.type
          left join resource r on r.project = ${number} and r.type = l.type and r.id = x.id),
        w as (${listingSql(id, found)})
      select 1 from k where key is null limit 1`,
    values,
  })
  return rows.length === 0
}

/** Lists Provenance changed after the time of the export: its targets are unknown until it is read. */
async function listChanged(
  connection: Connection,
  { project }: Principal,
  { job, at, alone }: { readonly job: string; readonly at: Date; readonly alone: boolean },
): Promise<void> {
  const { values, bind } = binder()
  const [number, provenance] = [bind(project.number, 'int'), bind(PROVENANCE, 'smallint')]
  const time = bind(at, 'timestamptz')
  const changed = `select v.type, v.id, v.ver from version v where v.project = ${number}
    and v.type = ${provenance} and v.lu > ${time} and v.ver > 1`
  const all = `select r.type, r.id, r.ver from resource r
    where r.project = ${number} and r.type = ${provenance}`
  const rows = alone ? changed : `${changed} union all ${all}`
  await connection.query({ text: listingSql(bind(job, 'uuid'), rows), values })
}

/**
 * Lists what the compartments of an export hold beside current rows: resources changed since its time, as
 * they were, and the Provenance of all of them.
 */

import { allSql } from '../../../access/decisions/grant-predicates.ts'
import {
  isResourceType,
  storedParameters,
  typeName,
  typeNumber,
} from '../../../fhir/definitions.ts'
import { parseReference } from '../../../fhir/resource.ts'
import { type Bind, binder } from '../../../platform/postgres/statement.ts'
import { keysLiteral } from '../../../store/index/keys.ts'
import type { Store } from '../../../store/rows/context.ts'
import { idOf } from '../../../store/rows/rows.ts'
import type { PlannedJob } from '../rows/jobs.ts'
import { type ChangedRow, changedRows, type Selection } from '../rows/select.ts'
import { compartmentsSql, isOwnSql, rowTestsSql, typeAtPlace } from './members.ts'
import { provenanceChoice, targetsOf } from './provenance.ts'

const PROVENANCE = typeNumber('Provenance')
/** Patients of whose compartments the Provenance is looked for by a statement, and targets by a look at the index. */
const PATIENTS = 100
const TARGETS = 50

/** In the compartments that they were in. */
export async function addChangedRows(
  store: Store,
  job: string,
  selection: Selection,
): Promise<void> {
  const { project, type } = selection.scene
  await eachChanged(store, selection, async (rows) => {
    const { values, bind } = binder()
    const own = bind(job, 'uuid')
    const found = `select m.id as patient, v.id, v.ruling,
        case when ${isOwnSql('v', 'm.id')} then 0 else v.type end as place
      from (select v.type, v.id, e.ruling, c ->> 'reference' as reference
        from ${changesSql(rows, bind)} e(id, ver, ruling)
        join version v on v.project = ${bind(project, 'int')}
          and v.type = ${bind(typeNumber(type), 'smallint')} and v.id = e.id and v.ver = e.ver
        cross join lateral jsonb_array_elements(('{' || v.meta_ext || '}')::jsonb -> 'compartment') c
        offset 0) v
      join export_member m on m.job = ${own} and m.reference = v.reference and m.id is not null`
    await store.connection.query({ text: compartmentsSql(own, found), values })
  })
}

async function eachChanged(
  store: Store,
  selection: Selection,
  take: (rows: readonly ChangedRow[]) => Promise<void>,
): Promise<void> {
  let low: string | undefined
  do {
    const range = { low, high: undefined }
    const { rows, high } = await changedRows(store, store.connection, selection, range)
    if (rows.length > 0) await take(rows)
    low = high
  } while (low !== undefined)
}

function changesSql(rows: readonly ChangedRow[], bind: Bind): string {
  const ids = bind(
    rows.map(({ id }) => id),
    'uuid[]',
  )
  const versions = bind(
    rows.map(({ ver }) => ver),
    'int[]',
  )
  const rulings = bind(
    rows.map(({ ruling }) => ruling ?? null),
    'int[]',
  )
  return `unnest(${ids}, ${versions}, ${rulings})`
}

/** In the compartments that hold something that it is about. `types` are those of its targets. */
export async function addProvenance(
  store: Store,
  job: PlannedJob,
  about: Selection,
  types: readonly string[],
): Promise<void> {
  const choice = provenanceChoice({ ...job.input, level: 'patient' })
  let low: string | undefined
  do {
    const high = await nextPatients(store, job.id, low)
    if (high === undefined) break
    const range = { low, high }
    const gone = await addAbout(store, job, { about, isLatest: choice === 'latest', range, types })
    if (gone.length > 0)
      await addAboutGone(store, job, { about, isLatest: choice === 'latest', range, gone })
    low = high
  } while (low !== undefined)
  // Only what is there can be the newest.
  if (choice !== 'latest') await addChangedProvenance(store, job.id, about)
}

interface Patients {
  readonly low: string | undefined
  readonly high: string
}

/** The last one of the next few. */
async function nextPatients(
  { connection }: Store,
  job: string,
  low: string | undefined,
): Promise<string | undefined> {
  const [row] = await connection.query<{ patient: string }>({
    name: 'export-next-patients',
    text: `select patient from (select distinct patient from export_compartment
        where job = $1 and ($2::uuid is null or patient > $2)
        order by patient limit ${PATIENTS}) p order by patient desc limit 1`,
    values: [job, low ?? null],
  })
  return row?.patient
}

/** An exported resource without a row: references to it cannot be found by one. */
interface Gone {
  readonly type: number
  readonly id: string
}

interface AboutRange {
  readonly about: Selection
  readonly isLatest: boolean
  readonly range: Patients
  readonly types: readonly string[]
}

/** As in provenance.ts: of a row the first key is its own, and that of a reference to it differs by its type. */
async function addAbout(
  { connection, keys }: Store,
  { id: job }: PlannedJob,
  { about, isLatest, range, types }: AboutRange,
): Promise<readonly Gone[]> {
  const { project } = about.scene
  const [code = 'target'] = storedParameters('Provenance', 'target')
  const parameter = keys.param(project, 'Provenance', code)
  const own = types.map((type) => parameter ^ keys.param(project, type, '_self'))
  const { values, bind } = binder()
  const id = bind(job, 'uuid')
  const targets = `select c.patient, t.type, x.id, r.self # t.own as key
    from export_compartment c
    join unnest(${bind(types.map(typeNumber), 'smallint[]')}, ${bind(keysLiteral(own), 'bigint[]')})
      t(type, own) on t.type = ${typeAtPlace('c')}
    cross join lateral unnest(c.ids) x(id)
    left join lateral (select r.keys[1] as self from resource r
      where r.project = ${bind(project, 'int')} and r.type = t.type and r.id = x.id offset 0) r on true
    where c.job = ${id} ${rangeSql(range, bind)}`
  return connection.query<Gone>({
    text: `with k as materialized (${targets}),
        w as (${compartmentsSql(id, aboutSql(about, isLatest, bind))})
      select distinct type, id from k where key is null`,
    values,
  })
}

interface GoneRange {
  readonly about: Selection
  readonly isLatest: boolean
  readonly range: Patients
  readonly gone: readonly Gone[]
}

/** By what they were called. */
async function addAboutGone(
  { connection, keys }: Store,
  { id: job }: PlannedJob,
  { about, isLatest, range, gone }: GoneRange,
): Promise<void> {
  const { project } = about.scene
  const rows = await connection.query<{ type: number; id: string; content: string }>({
    text: `select e.type, e.id, v.content from unnest($2::smallint[], $3::uuid[]) e(type, id)
      cross join lateral (select left(v.content, 200) as content from version v
        where v.project = $1 and v.type = e.type and v.id = e.id and v.content is not null
        order by v.ver desc limit 1) v`,
    values: [project, gone.map(({ type }) => type), gone.map(({ id }) => id)],
  })
  const [code = 'target'] = storedParameters('Provenance', 'target')
  const parameter = keys.param(project, 'Provenance', code)
  const held = rows.map(({ type, content }) =>
    keys.reference(parameter, keys.target(project, `${typeName(type)}/${idOf(content)}`)),
  )
  const { values, bind } = binder()
  const id = bind(job, 'uuid')
  const types = bind(
    rows.map(({ type }) => type),
    'smallint[]',
  )
  const ids = bind(
    rows.map(({ id }) => id),
    'uuid[]',
  )
  const targets = `select c.patient, e.key from export_compartment c
    join unnest(${types}, ${ids}, ${bind(keysLiteral(held), 'bigint[]')}) e(type, id, key)
      on e.type = ${typeAtPlace('c')} and e.id = any(c.ids)
    where c.job = ${id} ${rangeSql(range, bind)}`
  await connection.query({
    text: `with k as materialized (${targets})
      ${compartmentsSql(id, aboutSql(about, isLatest, bind))}`,
    values,
  })
}

function rangeSql({ low, high }: Patients, bind: Bind): string {
  const above = low === undefined ? '' : `and c.patient > ${bind(low, 'uuid')}`
  return `${above} and c.patient <= ${bind(high, 'uuid')} and c.place <> ${PROVENANCE}`
}

/** Provenance of targets `k`, of which it reads `patient` and `key`: all of it, or the newest of each. */
function aboutSql(about: Selection, isLatest: boolean, bind: Bind): string {
  const { scene, at, since, filter } = about
  const [ruling] = rowTestsSql([about], bind)
  const [time, project] = [bind(at, 'timestamptz'), bind(scene.project, 'int')]
  const own = `(r.project = ${project}) is true and (r.type = ${PROVENANCE}) is true
    and r.lu <= ${time} and ${allSql(scene.visible, bind)}`
  const asked = [
    ...(since === undefined ? [] : [`r.lu > ${bind(since, 'timestamptz')}`]),
    ...(filter === undefined ? [] : [allSql([filter.test], bind)]),
  ]
  const isAsked = asked.length === 0 ? 'true' : `(${asked.join(' and ')})`
  if (isLatest) {
    return `select k.patient, ${PROVENANCE} as place, p.ruling, p.id from k
      cross join lateral (select r.id, ${ruling} as ruling, ${isAsked} as asked
        from resource r join version v using (project, type, id, ver)
        where r.keys @> array[k.key] and ${own}
        order by (v.content::jsonb ->> 'recorded')::timestamptz desc nulls last, r.lu desc, r.id
        limit 1) p where p.asked`
  }
  return `select g.patient, ${PROVENANCE} as place, p.ruling, p.id
    from (select patient, array_agg(key) as some
      from (select *, row_number() over (partition by patient) as n from k where key is not null) k
      group by patient, n / ${TARGETS}) g
    cross join lateral (select r.id, ${ruling} as ruling from resource r
      where r.keys && g.some and ${own} and ${isAsked} offset 0) p`
}

/** The resource as it was: only its content names what it was about. */
async function addChangedProvenance(store: Store, job: string, about: Selection): Promise<void> {
  const { project } = about.scene
  await eachChanged(store, about, async (rows) => {
    const asking = binder()
    const contents = await store.connection.query<ChangedRow & { content: string }>({
      text: `select v.id, v.ver, e.ruling, v.content
        from ${changesSql(rows, asking.bind)} e(id, ver, ruling)
        join version v on v.project = ${asking.bind(project, 'int')} and v.type = ${PROVENANCE}
          and v.id = e.id and v.ver = e.ver`,
      values: asking.values,
    })
    const targets = contents.flatMap(({ id, ruling, content }) =>
      targetsOf(content).flatMap((text) => {
        const target = parseReference(text)
        return target && isResourceType(target.type) ? [{ id, ruling, target }] : []
      }),
    )
    const { values, bind } = binder()
    const own = bind(job, 'uuid')
    const column = (of: (row: (typeof targets)[number]) => unknown, type: string) =>
      bind(
        targets.map((row) => of(row) ?? null),
        type,
      )
    const found = `select c.patient, ${PROVENANCE} as place, e.ruling, e.id
      from unnest(${column(({ id }) => id, 'uuid[]')}, ${column(({ ruling }) => ruling, 'int[]')},
        ${column(({ target }) => typeNumber(target.type), 'smallint[]')},
        ${column(({ target }) => store.keys.rowId(target.type, target.id), 'uuid[]')})
        e(id, ruling, type, target)
      join export_compartment c on c.job = ${own} and e.type = ${typeAtPlace('c')}
        and e.target = any(c.ids)`
    await store.connection.query({ text: compartmentsSql(own, found), values })
  })
}

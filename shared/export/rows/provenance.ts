/** Provenance of exported resources. https://hl7.org/fhir/uv/bulkdata/STU2/export.html#query-parameters */

import { allSql } from '../../access/decisions/grant-predicates.ts'
import type { Principal } from '../../access/principal.ts'
import { isResourceType, storedParameters, typeName, typeNumber } from '../../fhir/definitions.ts'
import { isObject, parseReference } from '../../fhir/resource.ts'
import { keysLiteral } from '../../store/index/keys.ts'
import type { StoreContext } from '../../store/rows/context.ts'
import { contentId } from '../../store/rows/rows.ts'
import { type Bind, binder } from '../../store/rows/side-rows.ts'
import type { ExportInput, PlannedJob, ProvenanceChoice } from './jobs.ts'
import { compartmentsSql, type ListedRows, listingSql, typeAtPlace } from './list.ts'
import { type AskedExport, exportedTypes } from './scope.ts'
import {
  type ChangedRow,
  changedPages,
  changesSql,
  rowTestsSql,
  type Selection,
  selectedIds,
  selectType,
} from './select.ts'

const PROVENANCE = typeNumber('Provenance')
/** Targets of a Provenance checked per step: usually one of the first is exported. */
const TARGETS = 10
const AT_ONCE = 1000
/** Patients or list arrays per statement, and keys per index lookup. */
const PATIENTS = 100
const ARRAYS = 16
const KEYS = 50

export function provenanceChoice({
  level,
  provenance,
}: Pick<ExportInput, 'level' | 'provenance'>): ProvenanceChoice | undefined {
  return provenance ?? (level === 'system' ? undefined : 'relevant')
}

export function targetTypes(principal: Principal, input: AskedExport): readonly string[] {
  const isTarget = (type: string) => type !== 'Provenance'
  const named = exportedTypes(principal, input).filter(isTarget)
  if (named.length > 0) return named
  // An export of only Provenance uses the targets of an export without `_type`.
  const usual = { ...input, types: undefined, provenance: undefined }
  return exportedTypes(principal, usual).filter(isTarget)
}

/** Returns distinct `Type/id`, Patients first, since they match most often. */
function provenanceTargets(content: string): readonly string[] {
  const { target } = JSON.parse(content)
  const references = (Array.isArray(target) ? target : []).flatMap((item) => {
    const text = isObject(item) && typeof item.reference === 'string' ? item.reference : undefined
    const found = parseReference(text)
    return found === undefined ? [] : [`${found.type}/${found.id}`]
  })
  const isPatient = (text: string) => text.startsWith('Patient/')
  return [...new Set([...references.filter(isPatient), ...references])]
}

interface ProvenanceRow {
  readonly id: string
  readonly content: string
}

/** Returns the row ids to export, for parts that read Provenance by type. */
export type ProvenanceFilter = (rows: readonly ProvenanceRow[]) => Promise<ReadonlySet<string>>

export function provenanceFilter(
  store: StoreContext,
  principal: Principal,
  job: PlannedJob,
  own: Selection,
): ProvenanceFilter {
  const isLatest = provenanceChoice(job.input) === 'latest'
  const types = new Set(targetTypes(principal, job.input))
  const selections = new Map<string, Promise<Selection | undefined>>()

  async function exported(references: ReadonlySet<string>): Promise<ReadonlySet<string>> {
    const found = new Set<string>()
    const parsed = [...references].flatMap((text) => parseReference(text) ?? [])
    for (const [type, some] of Map.groupBy(parsed, (one) => one.type)) {
      if (!types.has(type)) continue
      const selected = selections.get(type) ?? selectType(store, principal, type, job)
      selections.set(type, selected)
      const selection = await selected
      if (selection === undefined) continue
      const rowIds = new Map(some.map(({ id }) => [store.keys.rowId(type, id), `${type}/${id}`]))
      const ids = [...rowIds.keys()]
      for (let from = 0; from < ids.length; from += AT_ONCE) {
        const there = await selectedIds(store, selection, ids.slice(from, from + AT_ONCE))
        for (const id of there) found.add(rowIds.get(id) ?? '')
      }
    }
    return found
  }

  return async (rows) => {
    const going = new Set<string>()
    let open = rows.map(({ id, content }) => ({ id, targets: provenanceTargets(content) }))
    while (open.length > 0) {
      const found = await exported(new Set(open.flatMap((row) => row.targets.slice(0, TARGETS))))
      const newest = isLatest ? await newestAbout(store, own, [...found]) : undefined
      for (const { id, targets } of open) {
        const goes = (target: string) =>
          newest === undefined ? found.has(target) : newest.get(target) === id
        if (targets.slice(0, TARGETS).some(goes)) going.add(id)
      }
      open = open
        .map(({ id, targets }) => ({ id, targets: targets.slice(TARGETS) }))
        .filter(({ id, targets }) => targets.length > 0 && !going.has(id))
    }
    return going
  }
}

/** Maps each target to the row id of its newest visible Provenance. One statement. */
async function newestAbout(
  store: StoreContext,
  { filter: _, since: __, ...about }: Selection,
  targets: readonly string[],
): Promise<ReadonlyMap<string, string>> {
  if (targets.length === 0) return new Map()
  const { values, bind } = binder()
  const all = { ...about, filter: undefined, since: undefined }
  const keys = referenceKeys(store, about.scene.project, targets)
  const rows = await store.connection.query<{ n: number; id: string }>({
    text: `with k as (select n, n as patient, key
        from unnest(${bind(keysLiteral(keys), 'bigint[]')}) with ordinality t(key, n))
      select a.patient::int as n, a.id from (${newestSql(all, bind)}) a`,
    values,
  })
  return new Map(rows.map(({ n, id }) => [targets[n - 1] ?? '', id]))
}

interface Listing {
  readonly job: string
  readonly about: Selection
  readonly isLatest: boolean
  readonly types: readonly string[]
  /** SQL of the targets with `patient` (null in exports by type), `type` and row `id`. `job` is SQL, too. */
  readonly targets: (job: string, bind: Bind) => string
  /** SQL that lists rows with `patient`, `place`, `ruling`, `type`, `id` and `ver`. */
  readonly insert: (job: string, rows: string) => string
}

/** Lists the Provenance of the compartments. `types` are the targets'. */
export async function addProvenance(
  store: StoreContext,
  { id: job, input }: PlannedJob,
  about: Selection,
  types: readonly string[],
): Promise<void> {
  const isLatest = provenanceChoice({ ...input, level: 'patient' }) === 'latest'
  const targets = (own: string, range = '') => `select c.patient, ${typeAtPlace('c')} as type, x.id
    from export_compartment c cross join lateral unnest(c.ids) x(id)
    where c.job = ${own} and c.place <> ${PROVENANCE} ${range}`
  const all = {
    job,
    about,
    isLatest,
    types,
    targets: (own: string) => targets(own),
    insert: compartmentsSql,
  }
  let low: string | null = null
  for (;;) {
    const [next]: { patient: string }[] = await store.connection.query<{ patient: string }>({
      name: 'export-next-patients',
      text: `select patient from (select distinct patient from export_compartment
          where job = $1 and ($2::uuid is null or patient > $2)
          order by patient limit ${PATIENTS}) p order by patient desc limit 1`,
      values: [job, low],
    })
    if (next === undefined) break
    const above = low
    const upTo: string = next.patient
    const inRange: Listing['targets'] = (own, bind) => {
      const first = above === null ? '' : `and c.patient > ${bind(above, 'uuid')}`
      return targets(own, `${first} and c.patient <= ${bind(upTo, 'uuid')}`)
    }
    await listAbout(store, { ...all, targets: inRange })
    low = upTo
  }
  // Only current Provenance can be the newest.
  if (!isLatest) await listChangedAbout(store, all)
}

/** Lists the Provenance of listed rows for an export by type. Returns its approximate number. */
export async function listProvenance(
  store: StoreContext,
  principal: Principal,
  job: PlannedJob,
): Promise<number> {
  const { connection } = store
  const selection = await selectType(store, principal, 'Provenance', job)
  if (selection === undefined) return 0
  const [list] = await connection.query<{ arrays: number; types: number[] }>({
    text: `select count(*)::int as arrays, coalesce(array_agg(distinct type), '{}') as types
      from export_list where job = $1 and type <> $2`,
    values: [job.id, PROVENANCE],
  })
  const { arrays = 0, types = [] } = list ?? {}
  const targets = (own: string, page = '') => `select null::uuid as patient, l.type, x.id
    from (select type, ids from export_list where job = ${own} and type <> ${PROVENANCE} ${page}) l
    cross join lateral unnest(l.ids) x(id)`
  const all: Listing = {
    job: job.id,
    about: { ...selection, reach: 'all' },
    isLatest: provenanceChoice(job.input) === 'latest',
    types: types.map(typeName),
    targets: (own) => targets(own),
    insert: listingSql,
  }
  for (let from = 0; from < arrays; from += ARRAYS) {
    const page = `order by type, low, high offset ${from} limit ${ARRAYS}`
    await listAbout(store, { ...all, targets: (own) => targets(own, page) })
  }
  if (!all.isLatest) await listChangedAbout(store, all)
  const [found] = await connection.query<Pick<ListedRows, 'rows'>>({
    text: `select coalesce(sum(cardinality(ids)), 0)::int as rows
      from export_list where job = $1 and type = $2`,
    values: [job.id, PROVENANCE],
  })
  return found?.rows ?? 0
}

/** A row's first key is its own; the key of a reference to it differs only by the type. */
async function listAbout(store: StoreContext, listing: Listing): Promise<void> {
  const { keys } = store
  const { types, about } = listing
  const { project } = about.scene
  const parameter = targetParameter(store, project)
  const own = types.map((type) => parameter ^ keys.param(project, type, '_self'))
  const gone = await listByKeys(store, listing, (targets, bind) => {
    const [numbers, selves] = [
      bind(types.map(typeNumber), 'smallint[]'),
      bind(keysLiteral(own), 'bigint[]'),
    ]
    return `select s.*, r.self # t.own as key from (${targets}) s
      join unnest(${numbers}, ${selves}) t(type, own) on t.type = s.type
      left join lateral (select r.keys[1] as self from resource r
        where r.project = ${bind(project, 'int')} and r.type = s.type and r.id = s.id offset 0) r on true`
  })
  if (gone.length === 0) return
  // The key of a deleted target is derived from its id.
  const rows = await store.connection.query<Target & { content: string }>({
    text: `select e.type, e.id, v.content from unnest($2::smallint[], $3::uuid[]) e(type, id)
      cross join lateral (select left(v.content, 200) as content from version v
        where v.project = $1 and v.type = e.type and v.id = e.id and v.content is not null
        order by v.ver desc limit 1) v`,
    values: [project, gone.map(({ type }) => type), gone.map(({ id }) => id)],
  })
  const names = rows.map(({ type, content }) => `${typeName(type)}/${contentId(content)}`)
  const held = keysLiteral(referenceKeys(store, project, names))
  await listByKeys(store, listing, (targets, bind) => {
    const lists = [
      bind(
        rows.map(({ type }) => type),
        'smallint[]',
      ),
      bind(
        rows.map(({ id }) => id),
        'uuid[]',
      ),
      bind(held, 'bigint[]'),
    ]
    return `select s.*, e.key from (${targets}) s join unnest(${lists}) e(type, id, key) using (type, id)`
  })
}

interface Target {
  readonly type: number
  readonly id: string
}

/** Lists the Provenance with the target keys selected by `keyed`; returns targets without a key. One statement. */
async function listByKeys(
  { connection }: StoreContext,
  listing: Listing,
  keyed: (targets: string, bind: Bind) => string,
): Promise<readonly Target[]> {
  const { values, bind } = binder()
  const job = bind(listing.job, 'uuid')
  return connection.query<Target>({
    text: `with k as materialized (${keyed(listing.targets(job, bind), bind)}),
        w as (${listing.insert(job, aboutSql(listing, bind))})
      select distinct type, id from k where key is null`,
    values,
  })
}

/** SQL of the Provenance about targets `k`, with columns `patient` and `key`. */
function aboutSql({ about, isLatest }: Listing, bind: Bind): string {
  if (isLatest) return newestSql(about, bind)
  const { columns, own, asked } = provenanceRows(about, bind)
  return `select g.patient, p.* from (select patient, array_agg(key) as some
      from (select *, row_number() over (partition by patient) as n from k where key is not null) k
      group by patient, n / ${KEYS}) g
    cross join lateral (select ${columns} from resource r
      where r.keys && g.some and ${own} and ${asked} offset 0) p`
}

function newestSql(about: Selection, bind: Bind): string {
  const { columns, own, asked } = provenanceRows(about, bind)
  return `select k.patient, p.* from k
    cross join lateral (select ${columns}, ${asked} as asked
      from resource r join version v using (project, type, id, ver)
      where r.keys @> array[k.key] and ${own}
      order by (v.content::jsonb ->> 'recorded')::timestamptz desc nulls last, r.lu desc, r.id
      limit 1) p where p.asked`
}

function provenanceRows(about: Selection, bind: Bind) {
  const { scene: scope, at, since, filter } = about
  const [ruling] = rowTestsSql([about], bind)
  const tests = [
    ...(since === undefined ? [] : [`r.lu > ${bind(since, 'timestamptz')}`]),
    ...(filter === undefined ? [] : [allSql([filter.test], bind)]),
  ]
  return {
    columns: `r.type, r.type as place, ${ruling} as ruling, r.id, r.ver`,
    own: `(r.project = ${bind(scope.project, 'int')}) is true and (r.type = ${PROVENANCE}) is true
      and r.lu <= ${bind(at, 'timestamptz')} and ${allSql(scope.visible, bind)}`,
    asked: tests.length === 0 ? 'true' : `(${tests.join(' and ')})`,
  }
}

/** Lists earlier versions of Provenance, whose targets are only in their content. */
async function listChangedAbout(store: StoreContext, listing: Listing): Promise<void> {
  const { about } = listing
  for await (const rows of changedPages(store, about)) {
    const reading = binder()
    const contents = await store.connection.query<ChangedRow & { content: string }>({
      text: `select v.id, v.ver, e.ruling, v.content
        from ${changesSql(rows, reading.bind)} e(id, ver, ruling)
        join version v on v.project = ${reading.bind(about.scene.project, 'int')}
          and v.type = ${PROVENANCE} and v.id = e.id and v.ver = e.ver`,
      values: reading.values,
    })
    const targets = contents.flatMap(({ content, ...row }) =>
      provenanceTargets(content).flatMap((text) => {
        const target = parseReference(text)
        return target && isResourceType(target.type) ? [{ row, target }] : []
      }),
    )
    const { values, bind } = binder()
    const job = bind(listing.job, 'uuid')
    const types = targets.map(({ target }) => typeNumber(target.type))
    const ids = targets.map(({ target }) => store.keys.rowId(target.type, target.id))
    const changes = changesSql(
      targets.map(({ row }) => row),
      bind,
      [bind(types, 'smallint[]'), bind(ids, 'uuid[]')],
    )
    const found = `select s.patient, ${PROVENANCE}::smallint as type, ${PROVENANCE} as place,
        e.ruling, e.id, e.ver
      from ${changes} e(id, ver, ruling, target_type, target)
      join (${listing.targets(job, bind)}) s on s.type = e.target_type and s.id = e.target`
    await store.connection.query({ text: listing.insert(job, found), values })
  }
}

function targetParameter({ keys }: StoreContext, project: number): bigint {
  const [code = 'target'] = storedParameters('Provenance', 'target')
  return keys.param(project, 'Provenance', code)
}

function referenceKeys(store: StoreContext, project: number, targets: readonly string[]): bigint[] {
  const parameter = targetParameter(store, project)
  return targets.map((one) => store.keys.reference(parameter, store.keys.target(project, one)))
}

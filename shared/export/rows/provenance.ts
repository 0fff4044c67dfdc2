/** Provenance of exported resources. https://hl7.org/fhir/uv/bulkdata/STU2/export.html#query-parameters */

import { allSql } from '../../access/decisions/grant-predicates.ts'
import type { Principal } from '../../access/principal.ts'
import { getOrInsert } from '../../core/cache.ts'
import { issue } from '../../core/errors.ts'
import { uuidFromBytes } from '../../core/uuid.ts'
import { isResourceType, storedParameters, typeName, typeNumber } from '../../fhir/definitions.ts'
import { asArray, isObject, parseReference } from '../../fhir/resource.ts'
import { type Slice, sliceToBuffer, toSlice } from '../../outbound/storage/storage.ts'
import { dialect } from '../../postgres/chosen-dialect.ts'
import { arrayLiteral, type Bind, binder } from '../../postgres/statement.ts'
import type { StoreContext } from '../../store/rows/context.ts'
import { contentId, WELL_FORMED_CONTENT } from '../../store/rows/rows.ts'
import {
  addIssues,
  type ExportInput,
  type LineWriter,
  type PlannedJob,
  type ProvenanceChoice,
  UNREADABLE,
} from './jobs.ts'
import { type AskedExport, exportedTypes } from './scope.ts'
import {
  type ChangedRow,
  changedPages,
  changesSql,
  compartmentsSql,
  rangeSql,
  rowTestsSql,
  type Selection,
  selectedRows,
  selectType,
  typeAtPlace,
} from './select.ts'

const PROVENANCE = typeNumber('Provenance')
const AT_ONCE = 1000
/** Targets of the Provenance checked at once, and their size. */
const MOST_TARGETS = 10_000
const MOST_BYTES = 8 * 1024 * 1024
/** Patients per statement, by type pages of them, and keys per index lookup. */
const PATIENTS = 100
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

/** Returns distinct `Type/id`. Errors: SyntaxError. */
function provenanceTargets(content: string): readonly string[] {
  const resource: unknown = JSON.parse(content)
  if (!isObject(resource)) throw new SyntaxError('The content is not a JSON object')
  const references = asArray(resource.target).flatMap((item) => {
    const text = isObject(item) && typeof item.reference === 'string' ? item.reference : undefined
    const found = parseReference(text)
    return found === undefined ? [] : [`${found.type}/${found.id}`]
  })
  return [...new Set(references)]
}

interface ProvenanceLine {
  readonly id: Buffer
  readonly line: Buffer
  readonly targets: readonly string[]
}

/** Writes those lines of a part whose target is exported, too, in batches and in order. */
export function provenanceLines(
  store: StoreContext,
  principal: Principal,
  job: PlannedJob,
  { about, writer }: { readonly about: Selection; readonly writer: LineWriter },
) {
  const isLatest = provenanceChoice(job.input) === 'latest'
  const exported = targetFilter(store, principal, job)
  let batch: ProvenanceLine[] = []
  let targetCount = 0
  let byteCount = 0
  let before = Promise.resolve()

  async function write(lines: readonly ProvenanceLine[]): Promise<void> {
    const found = await exported(new Set(lines.flatMap(({ targets }) => targets)))
    const newest = isLatest ? await newestProvenance(store, about, [...found]) : undefined
    for (const { id, line, targets } of lines) {
      const row = uuidFromBytes(id)
      const isWanted = (target: string) =>
        newest === undefined ? found.has(target) : newest.get(target) === row
      if (targets.some(isWanted)) await writer.add(toSlice(id), toSlice(line))
    }
  }

  function flush(): Promise<void> {
    const lines = batch
    batch = []
    targetCount = 0
    byteCount = 0
    before = before.then(() => write(lines))
    return before
  }

  return {
    /** Throws for invalid content. */
    add(id: Slice, line: Slice, [, content]: readonly (Slice | null)[]): Promise<void> | undefined {
      const targets = provenanceTargets(content ? sliceToBuffer(content).toString() : '')
      const copy = (slice: Slice) => Buffer.from(sliceToBuffer(slice))
      batch.push({ id: copy(id), line: copy(line), targets })
      targetCount += targets.length
      byteCount += line.end - line.start
      const isFull =
        batch.length >= AT_ONCE || targetCount >= MOST_TARGETS || byteCount >= MOST_BYTES
      return isFull ? flush() : undefined
    },
    end: flush,
  }
}

/** Returns a function that finds the exported ones among references. */
function targetFilter(store: StoreContext, principal: Principal, job: PlannedJob) {
  const types = new Set(targetTypes(principal, job.input))
  const selections = new Map<string, Promise<Selection | undefined>>()
  return async (references: ReadonlySet<string>): Promise<ReadonlySet<string>> => {
    const found = new Set<string>()
    const parsed = [...references].flatMap((text) => parseReference(text) ?? [])
    for (const [type, some] of Map.groupBy(parsed, (one) => one.type)) {
      if (!types.has(type)) continue
      const selection = await getOrInsert(selections, type, () =>
        selectType(store, principal, type, job),
      )
      if (selection === undefined) continue
      const rowIds = new Map(some.map(({ id }) => [store.keys.rowId(type, id), `${type}/${id}`]))
      const ids = [...rowIds.keys()]
      for (let from = 0; from < ids.length; from += AT_ONCE) {
        const there = await selectedRows(store, selection, ids.slice(from, from + AT_ONCE))
        for (const { id } of there) found.add(rowIds.get(id) ?? '')
      }
    }
    return found
  }
}

/** Maps each target to the row id of its newest visible Provenance. A statement for a thousand targets. */
async function newestProvenance(
  store: StoreContext,
  { filter: _, since: __, ...about }: Selection,
  targets: readonly string[],
): Promise<ReadonlyMap<string, string>> {
  const newest = new Map<string, string>()
  const all = { ...about, filter: undefined, since: undefined }
  for (let from = 0; from < targets.length; from += AT_ONCE) {
    const some = targets.slice(from, from + AT_ONCE)
    const { values, bind } = binder()
    const keys = referenceKeys(store, about.scope.project, some)
    const rows = await store.connection.query<{ n: number; id: string }>({
      text: `with k as (select n, n as patient, key
          from unnest(${bind(arrayLiteral(keys), 'bigint[]')}) with ordinality t(key, n))
        select a.patient::int as n, a.id from (${newestSql(all, bind)}) a`,
      values,
    })
    for (const { n, id } of rows) newest.set(some[n - 1] ?? '', id)
  }
  return newest
}

interface Listing {
  readonly job: string
  readonly about: Selection
  readonly isLatest: boolean
  readonly types: readonly string[]
  /** Patients above `low`, up to `high`; undefined is unbounded. */
  readonly low?: string | undefined
  readonly high?: string
}

/** Lists the Provenance of listed rows. `types` are the targets'. */
export async function addProvenance(
  store: StoreContext,
  { id: job, input }: PlannedJob,
  about: Selection,
  types: readonly string[],
): Promise<void> {
  const isLatest = provenanceChoice({ ...input, level: 'patient' }) === 'latest'
  const all: Listing = { job, about, isLatest, types }
  let low: string | undefined
  for (;;) {
    const [next]: { patient: string }[] = await store.connection.query<{ patient: string }>({
      name: 'export-next-patients',
      text: `select patient from (select distinct patient from export_compartment
          where job = $1 and ($2::uuid is null or patient > $2)
          order by patient limit $3) p order by patient desc limit 1`,
      values: [job, low ?? null, input.organizedBy === undefined ? 1 : PATIENTS],
    })
    if (next === undefined) break
    await listProvenance(store, { ...all, low, high: next.patient })
    low = next.patient
  }
  // Only current Provenance can be the newest.
  if (!isLatest) await listChangedProvenance(store, all)
}

/** SQL of the targets: `patient`, `type` and row `id`. `job` is SQL, too. */
function targetsSql({ low, high }: Listing, job: string, bind: Bind): string {
  const tests = [
    `c.job = ${job} and c.place <> ${PROVENANCE}`,
    ...rangeSql('c.patient', { low, high }, bind),
  ]
  return `select c.patient, ${typeAtPlace('c')} as type, x.id
    from export_compartment c cross join lateral unnest(c.ids) x(id) where ${tests.join(' and ')}`
}

/** A row's first key is its own; the key of a reference to it differs only by the type. */
async function listProvenance(store: StoreContext, listing: Listing): Promise<void> {
  const { keys } = store
  const { types, about } = listing
  const { project } = about.scope
  const parameter = targetParameter(store, project)
  const own = types.map((type) => parameter ^ keys.param(project, type, '_self'))
  const gone = await listByKeys(store, listing, (targets, bind) => {
    const [numbers, selves] = [
      bind(types.map(typeNumber), 'smallint[]'),
      bind(arrayLiteral(own), 'bigint[]'),
    ]
    return `select s.*, r.self # t.own as key from (${targets}) s
      join ${dialect.unnest(numbers, selves)} t(type, own) on t.type = s.type
      left join lateral (select r.keys[1] as self from resource r
        where r.project = ${bind(project, 'int')} and r.type = s.type and r.id = s.id offset 0) r on true`
  })
  if (gone.length === 0) return
  // The key of a deleted target is derived from its id.
  const rows = await store.connection.query<Target & { content: string }>({
    text: `select e.type, e.id, v.content from ${dialect.unnest('$2::smallint[]', '$3::uuid[]')} e(type, id)
      cross join lateral (select left(v.content, 200) as content from version v
        where v.project = $1 and v.type = e.type and v.id = e.id and v.content is not null
        order by v.ver desc limit 1) v`,
    values: [project, gone.map(({ type }) => type), gone.map(({ id }) => id)],
  })
  const names = rows.map(({ type, content }) => `${typeName(type)}/${contentId(content)}`)
  const held = arrayLiteral(referenceKeys(store, project, names))
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
    return `select s.*, e.key from (${targets}) s join ${dialect.unnest(...lists)} e(type, id, key) using (type, id)`
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
    text: `with k as materialized (${keyed(targetsSql(listing, job, bind), bind)}),
        w as (${compartmentsSql(job, aboutSql(listing, bind))})
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
      order by (${WELL_FORMED_CONTENT}::json ->> 'recorded')::timestamptz desc nulls last, r.lu desc, r.id
      limit 1) p where p.asked`
}

function provenanceRows(about: Selection, bind: Bind) {
  const { scope, at, since, filter } = about
  const [ruling] = rowTestsSql([about], bind)
  const tests = [
    ...(since === undefined ? [] : [`r.lu > ${bind(since, 'timestamptz')}`]),
    ...(filter === undefined ? [] : [allSql([filter.test], bind)]),
  ]
  return {
    columns: `r.type as place, ${ruling} as ruling, r.id`,
    own: `${dialect.projectEquals('r', bind(scope.project, 'int'))} and (r.type = ${PROVENANCE}) is true
      and r.lu <= ${bind(at, 'timestamptz')} and ${allSql(scope.visible, bind)}`,
    asked: tests.length === 0 ? 'true' : `(${tests.join(' and ')})`,
  }
}

/** Lists earlier versions of Provenance, whose targets are only in their content. */
async function listChangedProvenance(store: StoreContext, listing: Listing): Promise<void> {
  const { about } = listing
  for await (const rows of changedPages(store, about)) {
    const reading = binder()
    const contents = await store.connection.query<ChangedRow & { content: string }>({
      text: `select v.id, v.ver, e.ruling, v.content
        from ${changesSql(rows, reading.bind)} e(id, ver, ruling)
        join version v on v.project = ${reading.bind(about.scope.project, 'int')}
          and v.type = ${PROVENANCE} and v.id = e.id and v.ver = e.ver`,
      values: reading.values,
    })
    const targets: { readonly row: ChangedRow; readonly target: { type: string; id: string } }[] =
      []
    for (const { content, ...row } of contents) {
      try {
        for (const text of provenanceTargets(content)) {
          const target = parseReference(text)
          if (target && isResourceType(target.type)) targets.push({ row, target })
        }
      } catch (error) {
        if (!(error instanceof SyntaxError)) throw error
        const text = 'An earlier version of a Provenance cannot be read'
        // It may be about resources outside the export.
        const one = issue('warning', UNREADABLE, text, { diagnostics: `Row ${row.id}` })
        await addIssues(store.connection, listing.job, [one])
      }
    }
    const { values, bind } = binder()
    const job = bind(listing.job, 'uuid')
    const types = targets.map(({ target }) => typeNumber(target.type))
    const ids = targets.map(({ target }) => store.keys.rowId(target.type, target.id))
    const changes = changesSql(
      targets.map(({ row }) => row),
      bind,
      [bind(types, 'smallint[]'), bind(ids, 'uuid[]')],
    )
    const found = `select s.patient, ${PROVENANCE} as place, e.ruling, e.id
      from ${changes} e(id, ver, ruling, target_type, target)
      join (${targetsSql(listing, job, bind)}) s on s.type = e.target_type and s.id = e.target`
    await store.connection.query({ text: compartmentsSql(job, found), values })
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

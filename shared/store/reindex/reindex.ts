/** Rebuilds index rows from content where they differ. A resource written meanwhile is read again. */

import { filterByCriteria } from '../../access/decisions/decide.ts'
import { criteriaGrant } from '../../access/subscription.ts'
import { typeName, typeNumber } from '../../fhir/definitions.ts'
import type { OwnParameters } from '../../fhir/definitions-data.ts'
import { dialect } from '../../postgres/chosen-dialect.ts'
import { arrayLiteral, binder } from '../../postgres/statement.ts'
import { indexRows, type StoreContext } from '../rows/context.ts'
import { parseVersion, toVersion, type VersionRow, versionColumns } from '../rows/rows.ts'
import {
  codeRows,
  type Listed,
  newText,
  rangeRows,
  stringRows,
  textRows,
} from '../rows/side-rows.ts'

export interface ReindexPosition {
  readonly type: string
  readonly id: string
}

interface ReindexPage {
  readonly project: number
  readonly own: OwnParameters | undefined
  /** All types when undefined. */
  readonly type: string | undefined
  /** A search that selects the resources. */
  readonly filter?: string | undefined
  /** Skips resources written before; a time as PostgreSQL writes it. */
  readonly since?: string
  readonly after: ReindexPosition | undefined
  readonly count: number
}

interface Reindexed {
  readonly seen: number
  readonly next: ReindexPosition | undefined
}

/** Two statements; one more for a filter that contents alone do not decide, two more on concurrent writes. */
export async function reindexPage(store: StoreContext, page: ReindexPage): Promise<Reindexed> {
  const { project, own, type, filter, since, after, count } = page
  const rows = await store.connection.query<VersionRow>({
    text: `select ${versionColumns('v')} from (
        select project, type, id, ver from resource
        where project = $1 and ($2::smallint is null or type = $2)
          and ($3::smallint is null or (type, id) > ($3, $4))
          and ($6::timestamptz is null or lu >= $6)
        order by type, id limit $5) r
      join version v using (project, type, id, ver) order by v.type, v.id`,
    values: [
      project,
      type === undefined ? null : typeNumber(type),
      after === undefined ? null : typeNumber(after.type),
      after?.id ?? null,
      count,
      since ?? null,
    ],
  })
  const readable = rows.filter((row) => isReadable(store, row))
  const meant =
    filter === undefined
      ? readable
      : await filterRows(store, filter, { project, own, rows: readable })
  await rewrite(store, project, meant, own)
  const last = rows.at(-1)
  const isEnd = last === undefined || rows.length < count
  return { seen: rows.length, next: isEnd ? undefined : { type: typeName(last.type), id: last.id } }
}

/** Returns the versions that replaced these; none for deleted resources. */
async function newest(
  { connection }: StoreContext,
  rows: readonly VersionRow[],
): Promise<VersionRow[]> {
  return connection.query<VersionRow>({
    text: `select ${versionColumns('v')}
      from ${dialect.unnest('$1::int[]', '$2::smallint[]', '$3::uuid[]')} as x(project, type, id)
      join resource r using (project, type, id) join version v using (project, type, id, ver)`,
    values: [
      arrayLiteral(rows.map(({ project }) => project)),
      arrayLiteral(rows.map(({ type }) => type)),
      arrayLiteral(rows.map(({ id }) => id)),
    ],
  })
}

/** A damaged version must not stop the others. */
function isReadable(store: StoreContext, row: VersionRow): boolean {
  try {
    parseVersion(toVersion(row))
    return true
  } catch {
    store.logDamaged(row)
    return false
  }
}

interface ScannedRows {
  readonly project: number
  readonly own: OwnParameters | undefined
  readonly rows: readonly VersionRow[]
}

/** Filters by content, since the index may be the fault. */
async function filterRows(
  store: StoreContext,
  filter: string,
  { project, own, rows }: ScannedRows,
): Promise<readonly VersionRow[]> {
  const types = [...new Set(rows.map((row) => typeName(row.type)))]
  const grants = types.map((type) => criteriaGrant({ type, query: filter }, own))
  return await filterByCriteria(store, grants, { project, parameters: own, rows })
}

export async function rewrite(
  store: StoreContext,
  project: number,
  rows: readonly VersionRow[],
  own: OwnParameters | undefined,
): Promise<void> {
  let left = rows
  while (left.length > 0) {
    const changed = await rewriteUnchanged(store, project, left, own)
    const found = changed.length === 0 ? [] : await newest(store, changed)
    left = found.filter((row) => isReadable(store, row))
  }
}

/** Returns the rows that were changed meanwhile. One statement, which also adds to the coding dictionary. */
async function rewriteUnchanged(
  store: StoreContext,
  project: number,
  rows: readonly VersionRow[],
  own: OwnParameters | undefined,
): Promise<readonly VersionRow[]> {
  const { values, bind } = binder()
  const made = rows.map((row) => {
    const resource = parseVersion(toVersion(row))
    const index = indexRows(store, project, resource, { parameters: own })
    return { row, index, text: newText(own, resource) }
  })
  const list = <T>(items: (made_: (typeof made)[number]) => readonly T[]): Listed<T>[] =>
    made.flatMap((item, i) => items(item).map((one) => ({ n: i + 1, item: one })))
  const column = (value: (item: (typeof made)[number]) => unknown, type: string) =>
    bind(arrayLiteral(made.map(value)), `${type}[]`)
  // unnest would flatten an array of arrays, so each list of keys travels as text.
  const keys = bind(
    made.map(({ index }) => arrayLiteral(index.keys)),
    'text[]',
  )
  const parts = [
    `i as (select x.n::int as n, x.type, x.id, x.ver, x.d_lo, x.d_hi, x.nref, x.keys::bigint[] as keys
      from unnest(${column(({ row }) => row.type, 'smallint')}, ${column(({ row }) => row.id, 'uuid')},
        ${column(({ row }) => row.ver, 'int')},
        ${column(({ index }) => index.dateLow, 'timestamptz')},
        ${column(({ index }) => index.dateHigh, 'timestamptz')},
        ${column(({ index }) => index.nref, 'smallint')}, ${keys})
      with ordinality as x(type, id, ver, d_lo, d_hi, nref, keys, n))`,
    `w as materialized (select i.*, r.project, true as side from i join resource r
      on r.project = ${bind(project, 'int')} and r.type = i.type and r.id = i.id and r.ver = i.ver
      order by r.type, r.id for update of r)`,
    `u as (update resource r set d_lo = w.d_lo, d_hi = w.d_hi, nref = w.nref, keys = w.keys from w
      where r.project = w.project and r.type = w.type and r.id = w.id
        and (r.keys, r.nref, r.d_lo, r.d_hi) is distinct from (w.keys, w.nref, w.d_lo, w.d_hi))`,
    ...stringRows(
      list(({ index }) => index.strings),
      true,
      bind,
    ),
    ...rangeRows(
      list(({ index }) => index.ranges),
      true,
      bind,
    ),
    codeRows(
      list(({ index }) => index.codes),
      bind,
    ),
  ]
  const texts = list(({ text }) => (text ? [text] : []))
  if (texts.length > 0) parts.push(textRows(texts, bind))
  const text = `with ${parts.join(',\n')} select n from w`
  const written = await store.connection.query<{ n: number }>({ text, values })
  const places = new Set(written.map(({ n }) => n))
  return rows.filter((_, i) => !places.has(i + 1))
}

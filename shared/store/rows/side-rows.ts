/** Parts of the writing statement for side rows: see statements.ts. */

import { secretPaths } from '../../access/fields/fields.ts'
import { REGISTRY_TYPES } from '../../access/policy.ts'
import { findSetting } from '../../access/project-context.ts'
import { typeNumber } from '../../fhir/definitions.ts'
import type { OwnParameters } from '../../fhir/definitions-data.ts'
import type { Resource } from '../../fhir/resource.ts'
import { extractResourceText, type ResourceText } from '../../fhir/searched-text.ts'
import { dialect } from '../../postgres/chosen-dialect.ts'
import { arrayLiteral, type Bind } from '../../postgres/statement.ts'
import type { CodeRow, RangeRow, StringRow } from '../index/keys.ts'

export interface UniqueKey {
  readonly p: bigint
  readonly k: bigint
}

/** A reference that must exist; `key`, when given, must be among the keys of its row. */
export interface Target {
  readonly project: number
  readonly type: number
  readonly id: string
  readonly key: bigint | undefined
  /** True of rows `r` that the caller may read; undefined: all. One object per question. */
  readonly visible: ((bind: Bind) => string) | undefined
}

/** Replaces a target number: a patient of the write holds accounts. */
export const ACCOUNT_PATIENT = -1

export const INTO = {
  resource: 'resource (project, type, id, ver, lu, d_lo, d_hi, nref, keys)',
  version: 'version (project, type, id, ver, lu, author, content, meta_at, meta_ext)',
  string: 'idx_string (project, type, p, v, id)',
  range: 'idx_range (project, type, p, lo, hi, u, id)',
  code: 'code (project, p, k, system, code, display)',
  text: 'resource_text (project, type, id, narrative, content)',
} as const

export function contentSql(lu: string): string {
  return `head || to_char(${lu} at time zone 'utc', 'YYYY-MM-DD"T"HH24:MI:SS.MS"Z"') || tail`
}

/** Numbers start at 1. */
export interface Listed<T> {
  readonly n: number
  readonly item: T
}

type Column<T> = readonly [name: string, type: string, value: (item: T) => unknown]

/** Positions start at 0. */
export function missingTargets(targets: readonly Listed<Target>[], bind: Bind): string {
  const places = targets.map(({ n, item }, i) => ({
    n,
    item: { ...item, place: i - targets.findIndex((first) => first.n === n) },
  }))
  const conditions = [...new Set(targets.flatMap(({ item }) => item.visible ?? []))]
  const seen = conditions.map((visible, i) => `when ${i} then ${visible(bind)}`)
  const isSeen = seen.length === 0 ? '' : `and case x.sight ${seen.join(' ')} else true end`
  const list = unnest(places, bind, [
    ['project', 'int', (x) => x.project],
    ['type', 'smallint', (x) => x.type],
    ['id', 'uuid', (x) => x.id],
    ['key', 'bigint', (x) => x.key ?? null],
    ['target', 'int', (x) => x.place],
    ['sight', 'int', (x) => (x.visible === undefined ? null : conditions.indexOf(x.visible))],
  ])
  return `bx as (select * from ${list}),
  there as (select x.n, x.target from bx x join resource r
      on r.project = x.project and r.type = x.type and r.id = x.id
        and (x.key is null or r.keys @> array[x.key]) ${isSeen}),
  bad as (select n, target from bx where (n, target) not in (select n, target from there))`
}

/** Writes with a patient that holds accounts, or did. Uses the index account_holder alone. */
export function heirRows(patients: readonly Listed<string>[], bind: Bind): string {
  const list = unnest(patients, bind, [['id', 'uuid', (id) => id]])
  return `hx as (select i.n, i.project, x.id from ${list} join i using (n)),
  heir as (select distinct hx.n, ${ACCOUNT_PATIENT} as target from hx join version v
    on v.project = hx.project and v.id = hx.id and ${HOLDS_ACCOUNTS})`
}

/** `ids` is the SQL of a uuid[]. */
export function holdAccounts(project: string, ids: string): string {
  return `exists (select 1 from version v where v.project = ${project} and v.id = any(${ids})
      and ${HOLDS_ACCOUNTS})`
}

/** Condition on version `v`. Must match the predicate of the index account_holder. */
export const HOLDS_ACCOUNTS = `v.type = ${typeNumber('Patient')} and v.meta_ext like '%"accounts":%'`

export function stringRows(
  rows: readonly Listed<StringRow>[],
  isUpdate: boolean,
  bind: Bind,
): string[] {
  const sorted = distinct(rows, (a, b) => compareStrings(a.item, b.item) || a.n - b.n)
  const list = unnest(sorted, bind, [
    ['p', 'bigint', (row) => row.p],
    ['v', 'text', (row) => row.v],
  ])
  const remove = `sd as (delete from idx_string s using w
    where ${ownRows('s')} and w.side
      and not exists (select 1 from sx where sx.n = w.n and sx.p = s.p and sx.v = s.v))`
  return [
    `sx as (select * from ${list})`,
    ...(isUpdate ? [remove] : []),
    `si as (insert into ${INTO.string}
    select w.project, w.type, sx.p, sx.v, w.id from sx join w using (n)${isUpdate ? KEEP : ''})`,
  ]
}

export function rangeRows(
  rows: readonly Listed<RangeRow>[],
  isUpdate: boolean,
  bind: Bind,
): string[] {
  const sorted = distinct(rows, (a, b) => compareRanges(a.item, b.item) || a.n - b.n)
  const list = unnest(sorted, bind, [
    ['p', 'bigint', (row) => row.p],
    ['lo', 'float8', (row) => row.lo],
    ['hi', 'float8', (row) => row.hi],
    ['u', 'bigint', (row) => row.u],
  ])
  const remove = `gd as (delete from idx_range g using w
    where ${ownRows('g')} and w.side
      and not exists (select 1 from gx
        where gx.n = w.n and gx.p = g.p and gx.lo = g.lo and gx.hi = g.hi and gx.u = g.u))`
  return [
    `gx as (select * from ${list})`,
    ...(isUpdate ? [remove] : []),
    `gi as (insert into ${INTO.range}
    select w.project, w.type, gx.p, gx.lo, gx.hi, gx.u, w.id from gx join w using (n)${isUpdate ? KEEP : ''})`,
  ]
}

/** The dictionary keeps the first display. */
export function codeRows(rows: readonly Listed<CodeRow>[], bind: Bind): string {
  const sorted = rows.toSorted((a, b) => compare(a.item.p, b.item.p) || compare(a.item.k, b.item.k))
  const list = unnest(sorted, bind, [
    ['p', 'bigint', (row) => row.p],
    ['k', 'bigint', (row) => row.k],
    ['system', 'text', (row) => row.system],
    ['code', 'text', (row) => row.code],
    ['display', 'text', (row) => row.display ?? null],
  ])
  return `c as (insert into ${INTO.code}
    select w.project, x.p, x.k, x.system, x.code, x.display from ${list} join w using (n)
    on conflict do nothing)`
}

export function textRows(rows: readonly Listed<ResourceText>[], bind: Bind): string {
  const list = unnest(rows, bind, [
    ['narrative', 'text', (row) => row.narrative],
    ['content', 'text', (row) => row.content],
  ])
  const lexemes = (column: string) => lexemesSql(`x.${column}`, 'w.project', 'w.type')
  return `tx as (insert into ${INTO.text}
    select w.project, w.type, w.id, ${lexemes('narrative')}, ${lexemes('content')}
    from ${list} join w using (n)
    on conflict (project, type, id) do update
      set narrative = excluded.narrative, content = excluded.content)`
}

/** A second owner violates unique_key_pkey. */
export function uniqueRows(
  rows: readonly Listed<UniqueKey>[],
  owners: readonly number[],
  bind: Bind,
): string[] {
  const sorted = rows.toSorted((a, b) => compare(a.item.p, b.item.p) || compare(a.item.k, b.item.k))
  const list = unnest(sorted, bind, [
    ['p', 'bigint', (row) => row.p],
    ['k', 'bigint', (row) => row.k],
  ])
  return [
    `qx as (select * from ${list})`,
    `qd as (delete from unique_key q using w
    where ${ownRows('q')}
      and w.n = any(${bind(arrayLiteral(owners), 'int[]')})
      and not exists (select 1 from qx where qx.n = w.n and qx.p = q.p and qx.k = q.k))`,
    `qh as (select w.n, q.p, q.k from unique_key q join w on ${ownRows('q')})`,
    `qi as (insert into unique_key (project, type, p, k, id)
    select w.project, w.type, qx.p, qx.k, w.id from qx join w using (n)
    where (w.n, qx.p, qx.k) not in (select n, p, k from qh))`,
  ]
}

/** Cheaper than finding kept rows first. */
const KEEP = ' on conflict do nothing'

/** Side rows are found by id alone: without statistics (new database, bulk load) PostgreSQL would walk the whole project. */
function ownRows(table: string): string {
  return `${table}.id = w.id and ${table}.project + 0 = w.project and ${table}.type + 0 = w.type`
}

function unnest<T>(rows: readonly Listed<T>[], bind: Bind, columns: readonly Column<T>[]): string {
  const lists = columns.map(([, type, value]) => {
    const items = rows.map(({ item }) => value(item))
    return bind(type === 'text' ? items : arrayLiteral(items), `${type}[]`)
  })
  const ns = bind(arrayLiteral(rows.map(({ n }) => n)), 'int[]')
  const names = columns.map(([name]) => name)
  return `${dialect.unnest(ns, ...lists)} as x(n, ${names.join(', ')})`
}

/** Sorts and removes duplicates, which the insert does not check. */
export function distinct<T>(rows: readonly T[], order: (a: T, b: T) => number): readonly T[] {
  if (rows.length < 2) return rows
  const sorted = rows.toSorted(order)
  return sorted.filter((row, i) => {
    const before = sorted[i - 1]
    return before === undefined || order(before, row) !== 0
  })
}

export function compareStrings(a: StringRow, b: StringRow): number {
  return compare(a.p, b.p) || compare(a.v, b.v)
}

export function compareRanges(a: RangeRow, b: RangeRow): number {
  return compare(a.p, b.p) || compare(a.lo, b.lo) || compare(a.hi, b.hi) || compare(a.u, b.u)
}

function compare<T extends bigint | number | string>(a: T, b: T): number {
  return a < b ? -1 : a > b ? 1 : 0
}

/** Id of a Project's full-text state among its parameters, with the version that began it. */
export const FULL_TEXT_ID = '00000000-0000-0000-0000-000000000000'

/** False for types that may hold secrets, which a Binary does in its content. */
export function hasFullText(type: string): boolean {
  return !REGISTRY_TYPES.has(type) && type !== 'Binary' && secretPaths(type).length === 0
}

/** `Project.setting` `fullTextSearch`. */
export function wantsFullText(project: Resource | undefined): boolean {
  return (
    project !== undefined && findSetting(project.setting, 'fullTextSearch')?.valueBoolean === true
  )
}

/** Undefined if the Project has no full-text search, or `stored` has the same text. */
export function newText(
  own: OwnParameters | undefined,
  resource: Resource,
  stored?: Resource,
): ResourceText | undefined {
  if (own?.fullText === undefined || !hasFullText(resource.resourceType)) return undefined
  const text = extractResourceText(resource)
  // During indexing the row may not exist yet, and the index skips changed resources.
  if (stored === undefined || own.fullText === 'indexing') return text
  const before = extractResourceText(stored)
  const isSame = before.narrative === text.narrative && before.content === text.content
  return isSame ? undefined : text
}

export function lexemesSql(text: string, project: string, type: string): string {
  return `array_to_tsvector(array[${markSql(project, type)}]) || to_tsvector('simple', ${text})`
}

/** No word of a text looks like it. */
export function markSql(project: string, type: string): string {
  return `'#' || ${project} || '.' || ${type}`
}

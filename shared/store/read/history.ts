/** History, newest first by default. The policy decides on each version; on a deletion, by the version before it. */

import { seal, unseal } from '../../access/credentials/sealing.ts'
import { decideVersions, hiddenBy, readDecided } from '../../access/decisions/decide.ts'
import type { Interaction } from '../../access/grant.ts'
import { grantsFor, may } from '../../access/policy.ts'
import type { Principal } from '../../access/principal.ts'
import { attempt, badRequest, forbidden, notFound } from '../../core/errors.ts'
import { resourceTypes, typeName, typeNumber } from '../../fhir/definitions.ts'
import { timestamp } from '../../fhir/values.ts'
import { dialect } from '../../postgres/chosen-dialect.ts'
import {
  arrayLiteral,
  type Bind,
  binder,
  type Connection,
  type Statement,
} from '../../postgres/statement.ts'
import {
  isLegalId,
  projectTest,
  requireAllowed,
  rowScope,
  type StoreContext,
} from '../rows/context.ts'
import { contentId, toVersion, type VersionRow, versionColumns } from '../rows/rows.ts'
import type { HistoryPage, HistoryRequest, Version } from '../rows/version.ts'
import { redactFor } from './read.ts'

const V = versionColumns('v')
/** Most versions decided on for a total: one request, one statement. */
const MOST_JUDGED = 10_000
const JUDGED_AT_ONCE = 1000

/** Includes deletions. Errors: 404 when the id was never used or is not visible. */
export async function history(
  store: StoreContext,
  principal: Principal,
  type: string,
  { id, request }: { readonly id: string; readonly request: HistoryRequest },
): Promise<HistoryPage> {
  requireAllowed(principal, type, 'read')
  if (!isLegalId(id)) throw notFound()
  const isWhole = isWholeHistory(principal, type)
  if (!isWhole) await requireVisible(store, principal, type, id)
  requireAllowed(principal, type, 'history')
  const { project, metaPrefix, everywhere } = rowScope(principal, type)
  const { values, bind } = binder()
  const [own, rowType, rowId] = [
    bind(project, 'int'),
    bind(typeNumber(type), 'smallint'),
    bind(store.keys.rowId(type, id), 'uuid'),
  ]
  const cursor = positionIn(store, request)
  const isAscending = scansAscending(request, cursor)
  const isPlain = !(request.since ?? request.at ?? request.cursor ?? request.ascending)
  const name = everywhere ? 'history-everywhere' : 'history'
  const rows = await store.connection.query<VersionRow & { known: number; total: number }>({
    ...(isPlain ? { name } : {}),
    text: `with h as materialized (
        select v.project, v.type, v.id, v.ver, v.lu from version v
        where ${projectTest(everywhere)} and v.type = ${rowType} and v.id = ${rowId}
          and starts_with(v.meta_ext, ${bind(metaPrefix, 'text')})),
      m as materialized (select * from h v where ${windowSql(request, bind, everywhere ? undefined : own)})
      select t.known::int, t.total::int, v.* from (
        select (select count(*) from h) as known, (select count(*) from m) as total) t
      left join lateral (
        select ${V} from m join version v using (project, type, id, ver)
        where ${afterSql(isAscending, cursor, bind)}
        order by v.project = ${own} desc, ${orderSql(isAscending)}
        limit ${bind(request.count + 1, 'int')} offset ${bind(request.offset, 'int')}) v on true`,
    values,
  })
  const [first] = rows
  if (first === undefined || first.known === 0) throw notFound()
  // The outer join yields one row of nulls when the page is empty.
  const found = rows.filter((row) => row.ver !== null)
  const page = await buildHistoryPage(store, principal, { request, rows: found, idFor: () => id })
  const isAll = found.length <= request.count && isPlain && request.offset === 0
  if (isAll) return { ...page, total: page.versions.length }
  if (isWhole) return { ...page, total: first.total }
  const row = store.keys.rowId(type, id)
  return { ...page, total: await countSeen(store, principal, { types: [type], request, row }) }
}

/** Errors: 404 unless the newest version is visible, 403 unless its history is. */
async function requireVisible(
  store: StoreContext,
  principal: Principal,
  type: string,
  id: string,
): Promise<void> {
  const newest = await readDecided(store, principal, type, { id, interactions: ASKED })
  if (newest?.decisions.read === undefined) throw notFound()
  if (newest.decisions.history === undefined) {
    throw forbidden('criteria of every entry for history')
  }
}

/** Reads the history of one type, or of all readable types. Errors: 403 for a denied type. */
export async function typeHistory(
  store: StoreContext,
  principal: Principal,
  type: string | undefined,
  request: HistoryRequest,
): Promise<HistoryPage> {
  if (type !== undefined) {
    requireAllowed(principal, type, 'read')
    requireAllowed(principal, type, 'history')
  }
  const types = type === undefined ? readableTypes(principal) : [type]
  const [rows, total] = await Promise.all([
    store.connection.query<ManyRow>(pageStatement(store, principal, { types, request })),
    request.total ? countHistory(store, principal, types, request) : undefined,
  ])
  return { total, ...(await buildHistoryPage(store, principal, { request, rows, idFor: textId })) }
}

function readableTypes(principal: Principal): readonly string[] {
  return resourceTypes.filter(
    (type) => may(principal, type, 'read') && may(principal, type, 'history'),
  )
}

interface ManyRow extends VersionRow {
  readonly before: string | null
}

// A row id equals the FHIR id only for UUIDs, so that of a deletion comes from the version before.
function textId({ id, before }: ManyRow): string {
  return before === null ? id : contentId(before)
}

interface PageRows {
  readonly types: readonly string[]
  readonly request: HistoryRequest
  readonly row?: string | undefined
}

/** Probes the time index per type, so the cost of a page does not depend on the length of the history. */
function pageStatement(
  store: StoreContext,
  principal: Principal,
  { types, request, row }: PageRows,
): Statement {
  const { values, bind } = binder()
  const most = bind(request.offset + request.count + 1, 'int')
  const cursor = positionIn(store, request)
  const isAscending = scansAscending(request, cursor)
  const after = afterSql(isAscending, cursor, bind)
  const projects = [...new Set(typeProjects(principal, types))]
  const own = projects.length > 1 ? undefined : bind(projects[0], 'int')
  const window = windowSql(request, bind, own)
  const only = row === undefined ? 'true' : `v.id = ${bind(row, 'uuid')}`
  return {
    ...(own === undefined && { inSteps: pagesInSteps(store, principal, { types, request, row }) }),
    text: `select ${V}, case when v.content is null then (
        select left(b.content, 256) from version b
        where b.project = ${own ?? 'v.project'} and b.type = v.type and b.id = v.id and b.ver = v.ver - 1
      ) end as before
      from ${sources(principal, types, bind)} cross join lateral (
        select ${V} from version v
        where v.project = ${own ?? 'x.project'} and v.type = x.type and starts_with(v.meta_ext, x.prefix)
          and ${only} and ${window} and ${after}
        order by ${orderSql(isAscending)} limit ${most}) v
      order by ${orderSql(isAscending)}
      limit ${bind(request.count + 1, 'int')} offset ${bind(request.offset, 'int')}`,
    values,
  }
}

const pagesInSteps =
  (store: StoreContext, principal: Principal, { types, request, row }: PageRows) =>
  async ({ query }: Pick<Connection, 'query'>) => {
    const end = request.offset + request.count
    const ofOne = Map.groupBy(types, (type) => rowScope(principal, type).project)
      .values()
      .map((those) =>
        query<ManyRow>(
          pageStatement(store, principal, {
            types: those,
            request: { ...request, offset: 0, count: end },
            row,
          }),
        ),
      )
    const rows = (await Promise.all(ofOne))
      .flat()
      .sort(
        (a, b) =>
          a.lu.getTime() - b.lu.getTime() ||
          a.type - b.type ||
          a.id.localeCompare(b.id) ||
          a.ver - b.ver,
      )
    if (!scansAscending(request, positionIn(store, request))) rows.reverse()
    return rows.slice(request.offset, end + 1)
  }

/** Undefined when there are too many versions. */
async function countHistory(
  store: StoreContext,
  principal: Principal,
  types: readonly string[],
  request: HistoryRequest,
): Promise<number | undefined> {
  const ruled = types.filter((type) => !isWholeHistory(principal, type))
  const whole = types.filter((type) => !ruled.includes(type))
  const seen = ruled.length === 0 ? 0 : await countSeen(store, principal, { types: ruled, request })
  return seen === undefined ? undefined : seen + (await countAll(store, principal, whole, request))
}

async function countSeen(
  store: StoreContext,
  principal: Principal,
  { types, request: { since, at }, row }: PageRows,
): Promise<number | undefined> {
  let seen = 0
  let cursor: string | undefined
  for (let looked = 0; looked < MOST_JUDGED; looked += JUDGED_AT_ONCE) {
    const request = { count: JUDGED_AT_ONCE, offset: 0, since, at, cursor }
    const statement = pageStatement(store, principal, { types, request, row })
    const rows = await store.connection.query<ManyRow>(statement)
    const { versions, next } = await buildHistoryPage(store, principal, {
      request,
      rows,
      idFor: textId,
    })
    seen += versions.length
    if (next === undefined) return seen
    cursor = next
  }
  return undefined
}

async function countAll(
  store: StoreContext,
  principal: Principal,
  types: readonly string[],
  request: HistoryRequest,
): Promise<number> {
  const { values, bind } = binder()
  const from = sources(principal, types, bind)
  const window = windowSql(request, bind)
  const rows = await store.connection.query<{ count: number }>({
    perProject: typeProjects(principal, types),
    text: `select count(*)::int as count from ${from} join version v on ${dialect.projectOfList('v.project', values.length)} and v.type = x.type
      where starts_with(v.meta_ext, x.prefix) and ${window}`,
    values,
  })
  return rows.reduce((sum, { count }) => sum + count, 0)
}

function typeProjects(principal: Principal, types: readonly string[]): readonly number[] {
  return types.map((type) => rowScope(principal, type).project)
}

function sources(principal: Principal, types: readonly string[], bind: Bind): string {
  const scopes = types.map((type) => rowScope(principal, type))
  const numbers = bind(arrayLiteral(types.map(typeNumber)), 'smallint[]')
  const projects = bind(arrayLiteral(scopes.map(({ project }) => project)), 'int[]')
  const prefixes = bind(
    scopes.map(({ metaPrefix }) => metaPrefix),
    'text[]',
  )
  return `${dialect.unnest(numbers, projects, prefixes)} x(type, project, prefix)`
}

/** `_since`, and `_at`: versions that were current at some point of a period. */
function windowSql({ since, at }: HistoryRequest, bind: Bind, own = 'v.project'): string {
  const tests = ['true']
  if (since !== undefined) tests.push(`v.lu >= ${bind(timestamp(since.getTime()), 'timestamptz')}`)
  if (at !== undefined) {
    tests.push(
      `v.lu < ${bind(timestamp(at.end.getTime()), 'timestamptz')}`,
      `not exists (select 1 from version n where n.project = ${own} and n.type = v.type
        and n.id = v.id and n.ver = v.ver + 1
        and n.lu <= ${bind(timestamp(at.start.getTime()), 'timestamptz')})`,
    )
  }
  return tests.join(' and ')
}

/** Rows before a position are read in the opposite order. */
function scansAscending(
  { ascending = false }: HistoryRequest,
  cursor: Position | undefined,
): boolean {
  return ascending !== (cursor?.isBackward ?? false)
}

function orderSql(isAscending: boolean): string {
  const direction = isAscending ? '' : ' desc'
  return ['lu', 'type', 'id', 'ver'].map((column) => `v.${column}${direction}`).join(', ')
}

function positionIn({ keys }: StoreContext, { cursor }: HistoryRequest): Position | undefined {
  return cursor === undefined ? undefined : readCursor(keys.seal, cursor)
}

/** Only the bound on `lu` can use the index by time. */
function afterSql(isAscending: boolean, cursor: Position | undefined, bind: Bind): string {
  if (cursor === undefined) return 'true'
  const { lu, type, id, ver } = cursor
  const beyond = isAscending ? '>' : '<'
  const time = bind(lu, 'timestamptz')
  const position = [time, bind(type, 'smallint'), bind(id, 'uuid'), bind(ver, 'int')].join(', ')
  return `v.lu ${beyond}= ${time} and (v.lu, v.type, v.id, v.ver) ${beyond} (${position})`
}

interface PageParts<Row extends VersionRow> {
  readonly request: HistoryRequest
  readonly rows: readonly Row[]
  readonly idFor: (row: Row) => string
}

async function buildHistoryPage<Row extends VersionRow>(
  store: StoreContext,
  principal: Principal,
  { request, rows, idFor }: PageParts<Row>,
): Promise<Pick<HistoryPage, 'versions' | 'next' | 'previous'>> {
  const { count } = request
  const cursor = positionIn(store, request)
  const isBackward = cursor?.isBackward === true
  const read = rows.slice(0, count)
  const shown = isBackward ? read.toReversed() : read
  const seen = await seenVersions(store, principal, shown, idFor)
  const isBeyond = rows.length > count
  // Encrypted, since the cursor names the last row examined, visible or not.
  const last = isBackward || isBeyond ? shown.at(-1) : undefined
  const first = cursor !== undefined && (!isBackward || isBeyond) ? shown[0] : undefined
  const { seal } = store.keys
  return {
    versions: seen,
    next: last && writeCursor(seal, last),
    previous: first && writeCursor(seal, first, true),
  }
}

interface Position {
  readonly lu: string
  readonly type: number
  readonly id: string
  readonly ver: number
  /** The page ends before it. */
  readonly isBackward?: boolean
}

function writeCursor(key: Buffer, { lu, type, id, ver }: VersionRow, isBackward = false): string {
  const place = [lu.toISOString(), type, id, ver, ...(isBackward ? [true] : [])]
  return seal(JSON.stringify(place), key).toString('base64url')
}

/** Errors: 400 for a damaged cursor. */
function readCursor(key: Buffer, cursor: string): Position {
  const text = attempt(() => unseal(Buffer.from(cursor, 'base64url'), key).toString())
  if (text === undefined) throw badRequest('Invalid cursor', '_cursor')
  const read = JSON.parse(text) as [string, number, string, number, true?]
  const [lu, type, id, ver, isBackward = false] = read
  return { lu, type, id, ver, isBackward }
}

const ASKED: readonly Interaction[] = ['read', 'history']

function isWholeHistory(principal: Principal, type: string): boolean {
  return ASKED.every((item) => {
    const [first] = grantsFor(principal, type, item) ?? []
    return first === undefined || first.criteria.length + first.hidden.length === 0
  })
}

/** One more statement for deletions, and one per type that needs PostgreSQL. */
async function seenVersions<Row extends VersionRow>(
  store: StoreContext,
  principal: Principal,
  rows: readonly Row[],
  idFor: (row: Row) => string,
): Promise<readonly Version[]> {
  const ruled = rows.filter(({ type }) => !isWholeHistory(principal, typeName(type)))
  const decided = await decideVersions(store, principal, ASKED, ruled)
  const decisions = new Map(ruled.map((row, i) => [row, decided[i]]))
  return rows.flatMap((row) => {
    const version = toVersion(row, row.content === null ? idFor(row) : undefined)
    if (!ruled.includes(row)) return [redactFor(principal, version, [])]
    const found = ASKED.map((item) => decisions.get(row)?.[item])
    if (found.some((decision) => decision === undefined)) return []
    return [redactFor(principal, version, found.flatMap(hiddenBy))]
  })
}

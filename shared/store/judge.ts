/**
 * Which grant of a Principal governs a resource. Keys of its content decide where they can, the same
 * that its row holds; else PostgreSQL decides, in the statement that reads the row or, after a write,
 * in its transaction. What cannot be decided of a version without a row is not let through.
 */
import { type Grant, grantsFor, type Interaction, REGISTRY_TYPES } from '../access/policy.ts'
import type { Principal } from '../access/principal.ts'
import { typeName, typeNumber } from '../fhir/definitions.ts'
import { isLegalId, type Store, scopeOf } from './context.ts'
import { indexRows } from './index-rows.ts'
import { readRow } from './read.ts'
import { parseVersion, toVersion, type VersionRow, versionColumns } from './rows.ts'
import {
  decideByKeys,
  fewRowsSql,
  grantTests,
  type HeldKeys,
  type Place,
} from './search/grant-tests.ts'
import { type Bind, binder } from './side-rows.ts'
import { REGISTRY_PROJECT } from './tenants.ts'

/** `all`: no policy applies; undefined: nothing lets it through. */
export type Ruling = Grant | 'all' | undefined

/** The newest version of a resource, and what each interaction that was asked about says of it. */
export interface Judged {
  readonly row: VersionRow
  readonly rulings: Readonly<Partial<Record<Interaction, Ruling>>>
}

export function hiddenBy(ruling: Ruling): readonly string[] {
  return ruling === undefined || ruling === 'all' ? [] : ruling.hidden
}

/** True when every resource of the type is treated alike: without looking at it. */
export function isPlain(principal: Principal, type: string, interaction: Interaction): boolean {
  const grants = grantsFor(principal, type, interaction)
  return grants === undefined || grants.length === 0 || grants[0]?.criteria.length === 0
}

/** True when keys alone do not decide. */
export function needsSql(
  { keys }: Pick<Store, 'keys'>,
  principal: Principal,
  type: string,
  interaction: Interaction,
): boolean {
  const grants = grantsFor(principal, type, interaction)
  const place = placeOf(keys, principal, type)
  return grants?.some((grant) => decideByKeys(place, grant) === undefined) ?? false
}

/** By the keys that a row holds. A grant that they do not decide hides what it hides and lets nothing through. */
export function rulingOf(
  { keys }: Pick<Store, 'keys'>,
  principal: Principal,
  type: string,
  interaction: Interaction,
  project: number,
  held: () => HeldKeys,
): Ruling {
  const grants = grantsFor(principal, type, interaction)
  if (grants === undefined) return 'all'
  const undecided: string[] = []
  for (const grant of grants) {
    if (grant.criteria.length > 0) {
      const decide = decideByKeys({ keys, project, type }, grant)
      if (decide === undefined) undecided.push(...grant.hidden)
      if (!decide?.(held())) continue
    }
    return undecided.length === 0 ? grant : { ...grant, hidden: [...grant.hidden, ...undecided] }
  }
  return undefined
}

/** Of a version that has content. */
export function rulingOfRow(
  store: Store,
  principal: Principal,
  interaction: Interaction,
  row: VersionRow,
): Ruling {
  const type = typeName(row.type)
  return rulingOf(store, principal, type, interaction, row.project, () => heldBy(store, row))
}

function heldBy(store: Store, row: VersionRow): HeldKeys {
  const known = held.get(row)
  if (known !== undefined) return known
  // A policy knows the parameters of the standard alone.
  const { keys } = indexRows(store, row.project, parseVersion(toVersion(row)), undefined)
  const made = { rowId: row.id, keys: new Set(keys) }
  held.set(row, made)
  return made
}

const held = new WeakMap<VersionRow, HeldKeys>()

/** One statement, and one more for a deletion. Undefined for ids that are unknown or not in sight. */
export async function readJudged(
  store: Store,
  principal: Principal,
  type: string,
  id: string,
  interactions: readonly Interaction[],
): Promise<Judged | undefined> {
  // To ask PostgreSQL costs less than to make the keys of a content, unless it is a statement more.
  const asked = interactions.filter((item) =>
    store.sharesReads ? needsSql(store, principal, type, item) : !isPlain(principal, type, item),
  )
  if (asked.length === 0) {
    const row = await readRow(store, principal, type, id)
    return row && judged(store, principal, type, row, interactions, {})
  }
  const found = scopeOf(principal, type).everywhere
    ? await readThenAsk(store, principal, type, id, asked)
    : await readAsking(store, principal, type, id, asked)
  return found && judged(store, principal, type, found.row, interactions, found.rulings)
}

async function judged(
  store: Store,
  principal: Principal,
  type: string,
  row: VersionRow,
  interactions: readonly Interaction[],
  known: Judged['rulings'],
): Promise<Judged> {
  const isAlike = interactions.every((item) => isPlain(principal, type, item))
  // What is deleted is judged by its last content.
  const last =
    row.content === null && !isAlike ? ((await lastContents(store, [row]))[0] ?? row) : row
  const rulings: Partial<Record<Interaction, Ruling>> = {}
  for (const item of interactions) {
    const isKnown = item in known && row.content !== null
    rulings[item] = isKnown ? known[item] : rulingOrNone(store, principal, item, last)
  }
  return { row, rulings }
}

function rulingOrNone(
  store: Store,
  principal: Principal,
  interaction: Interaction,
  row: VersionRow,
): Ruling {
  if (row.content !== null) return rulingOfRow(store, principal, interaction, row)
  const grants = grantsFor(principal, typeName(row.type), interaction)
  return grants === undefined ? 'all' : grants.find(({ criteria }) => criteria.length === 0)
}

/** The versions before these deletions, in their order; undefined where there is none. One statement. */
export async function lastContents(
  { connection }: Store,
  deletions: readonly VersionRow[],
): Promise<readonly (VersionRow | undefined)[]> {
  if (deletions.length === 0) return []
  const list = (values: readonly (number | string)[]) => `{${values.join(',')}}`
  const rows = await connection.query<VersionRow & { n: number }>({
    name: 'last-contents',
    text: `select x.n::int, ${versionColumns('v')}
      from unnest($1::int[], $2::smallint[], $3::uuid[], $4::int[]) with ordinality
        as x(project, type, id, ver, n)
      join version v on v.project = x.project and v.type = x.type and v.id = x.id
        and v.ver = x.ver - 1
      where v.content is not null`,
    values: [
      list(deletions.map(({ project }) => project)),
      list(deletions.map(({ type }) => type)),
      list(deletions.map(({ id }) => id)),
      list(deletions.map(({ ver }) => ver)),
    ],
  })
  const found = new Map(rows.map((row) => [row.n, row]))
  return deletions.map((_, i) => found.get(i + 1))
}

type RulingColumns = Partial<Record<Interaction, number | null>>

async function readAsking(
  store: Store,
  principal: Principal,
  type: string,
  id: string,
  asked: readonly Interaction[],
): Promise<Judged | undefined> {
  if (!isLegalId(id)) return undefined
  const { project, metaPrefix } = scopeOf(principal, type)
  const { values, bind } = binder()
  const [own, number, rowId] = [
    bind(project, 'int'),
    bind(typeNumber(type), 'smallint'),
    bind(store.keys.rowId(type, id), 'uuid'),
  ]
  const place = { keys: store.keys, project, type }
  const columns = asked.map((item) => `${placeSql(place, principal, item, bind)} as "${item}"`)
  const text = `select ${versionColumns('v')}, j.* from (
      select * from version where project = ${own} and type = ${number} and id = ${rowId}
      order by ver desc limit 1) v
    left join (select ${columns.join(', ')} from resource r
      where r.project = ${own} and r.type = ${number} and r.id = ${rowId}) j on true
    where starts_with(v.meta_ext, ${bind(metaPrefix, 'text')})`
  const statement = { ...nameOf(text), text, values }
  const [row] = await store.connection.query<VersionRow & RulingColumns>(statement)
  return row && { row, rulings: rulingsIn(principal, type, asked, row) }
}

async function readThenAsk(
  store: Store,
  principal: Principal,
  type: string,
  id: string,
  asked: readonly Interaction[],
): Promise<Judged | undefined> {
  const row = await readRow(store, principal, type, id)
  if (row === undefined) return undefined
  const [first] = await ask(store, principal, type, row.project, [row.id], asked)
  return { row, rulings: first ?? {} }
}

/** Everything is found by primary keys and single keys, so one plan is as good as another. */
function nameOf(text: string): { readonly name?: string } {
  const known = names.get(text)
  if (known !== undefined) return { name: known }
  // A connection keeps what has a name; most policies ask in the same words.
  if (names.size === MAX_NAMES) return {}
  const name = `judge-${names.size}`
  names.set(text, name)
  return { name }
}

const MAX_NAMES = 100
const names = new Map<string, string>()

/** What PostgreSQL says of live rows of one type, in the order of their row ids. One statement. */
export async function ask(
  store: Store,
  principal: Principal,
  type: string,
  project: number,
  ids: readonly string[],
  asked: readonly Interaction[],
): Promise<readonly Judged['rulings'][]> {
  const live = await askLive(store, principal, type, project, ids, asked)
  return live.map((row) => row?.rulings ?? {})
}

export interface LiveRuling {
  readonly ver: number
  readonly rulings: Judged['rulings']
}

/** The same with the version that it is said of; undefined where there is no live row. */
export async function askLive(
  store: Store,
  principal: Principal,
  type: string,
  project: number,
  ids: readonly string[],
  asked: readonly Interaction[],
): Promise<readonly (LiveRuling | undefined)[]> {
  const { values, bind } = binder()
  const place = { keys: store.keys, project, type }
  const columns = asked.map((item) => `${placeSql(place, principal, item, bind)} as "${item}"`)
  const rows = await store.connection.query<{ row: string; ver: number } & RulingColumns>({
    text: `select r.id as row, r.ver, ${columns.join(', ')} from resource r
      where r.project = ${bind(project, 'int')} and r.type = ${bind(typeNumber(type), 'smallint')}
        and r.id = any(${bind(ids, 'uuid[]')})`,
    values,
  })
  const found = new Map(
    rows.map((row): [string, LiveRuling] => [
      row.row,
      { ver: row.ver, rulings: rulingsIn(principal, type, asked, row) },
    ]),
  )
  return ids.map((id) => found.get(id))
}

/** Of live rows of one type in one project, in their order; one statement where keys do not decide. */
export async function rulingsOfRows(
  store: Store,
  principal: Principal,
  interaction: Interaction,
  rows: readonly VersionRow[],
): Promise<readonly Ruling[]> {
  const [first] = rows
  if (first === undefined) return []
  const type = typeName(first.type)
  if (!needsSql(store, principal, type, interaction)) {
    return rows.map((row) => rulingOfRow(store, principal, interaction, row))
  }
  const ids = rows.map(({ id }) => id)
  const found = await ask(store, principal, type, first.project, ids, [interaction])
  return found.map((rulings) => rulings[interaction])
}

/** The place of the first grant that lets row `r` through; null for none. */
function placeSql(
  place: Place,
  principal: Principal,
  interaction: Interaction,
  bind: Bind,
): string {
  const grants = grantsFor(principal, place.type, interaction) ?? []
  const cases = grants.map(
    (grant, i) => `when ${fewRowsSql(grantTests(place, grant).tests, bind)} then ${i}`,
  )
  return `case ${cases.join(' ')} end`
}

function rulingsIn(
  principal: Principal,
  type: string,
  asked: readonly Interaction[],
  row: RulingColumns,
): Judged['rulings'] {
  const found: Partial<Record<Interaction, Ruling>> = {}
  for (const item of asked) {
    const grants = grantsFor(principal, type, item)
    found[item] = grants === undefined ? 'all' : grants[row[item] ?? -1]
  }
  return found
}

function placeOf(keys: Store['keys'], principal: Principal, type: string): Place {
  const project = REGISTRY_TYPES.has(type) ? REGISTRY_PROJECT : principal.project.number
  return { keys, project, type }
}

/**
 * Which grant of a Principal governs a resource. Its content decides where it can, by the same keys and
 * ranges that its row holds; else PostgreSQL decides, in the statement that reads the row or, after a
 * write, in its transaction. A version without a row is ruled on by its own content, with what that refers
 * to as it is now.
 */
import { membersOf } from '../../access/fields/fields.ts'
import type { Grant, Interaction, Rules } from '../../access/grant.ts'
import { grantsFor, REGISTRY_TYPES } from '../../access/policy.ts'
import { type Principal, systemPrincipal } from '../../access/principal.ts'
import { SYSTEM_PROJECT } from '../../access/project-context.ts'
import { typeName, typeNumber } from '../../fhir/definitions.ts'
import type { OwnParameters } from '../../fhir/definitions-data.ts'
import type { Meta, Resource } from '../../fhir/resource.ts'
import { type Bind, binder } from '../../platform/postgres/statement.ts'
import { type IndexPlan, planOf } from '../index/index-plan.ts'
import { indexRows } from '../index/index-rows.ts'
import type { IndexRows } from '../index/indexes.ts'
import { keysLiteral } from '../index/keys.ts'
import { readRow, type Store } from '../rows/context.ts'
import { parseVersion, toVersion, type VersionRow, versionColumns } from '../rows/rows.ts'
import { REGISTRY_PROJECT } from '../rows/tenants.ts'
import {
  allSql,
  decideInMemory,
  fewRowsSql,
  grantTests,
  type Place,
  placeIn,
} from '../search/tests/grant-tests.ts'
import { type HeldRow, heldRow } from '../search/tests/row-decisions.ts'
import { ask, codesNamed, type Ruled, type Ruling, readAsking } from './rows.ts'

export function hiddenBy(ruling: Ruling): readonly string[] {
  return ruling === undefined || ruling === 'all' ? [] : ruling.hidden
}

/** True when every resource of the type is treated alike: without looking at it. */
export function isPlain(principal: Principal, type: string, interaction: Interaction): boolean {
  const grants = grantsFor(principal, type, interaction)
  return grants === undefined || grants.length === 0 || grants[0]?.criteria.length === 0
}

/** True when a content alone does not decide. */
export function needsSql(
  { keys }: Pick<Store, 'keys'>,
  principal: Principal,
  type: string,
  interaction: Interaction,
): boolean {
  const grants = grantsFor(principal, type, interaction)
  const place = placeOf(keys, principal, type)
  return grants?.some((grant) => decideInMemory(place, grant) === undefined) ?? false
}

interface HeldContent {
  readonly type: string
  readonly interaction: Interaction
  readonly project: number
  readonly held: () => HeldRow
}

/** By a content. A grant that it does not decide hides what it hides and lets nothing through. */
export function rulingOf(
  { keys }: Pick<Store, 'keys'>,
  principal: Principal,
  { type, interaction, project, held }: HeldContent,
): Ruling {
  const grants = grantsFor(principal, type, interaction)
  if (grants === undefined) return 'all'
  const undecided: string[] = []
  for (const grant of grants) {
    if (grant.criteria.length > 0) {
      const decide = decideInMemory(placeIn(keys, principal, type, project), grant)
      if (decide === undefined) undecided.push(...grant.hidden)
      if (!decide?.(held())) continue
    }
    return undecided.length === 0 ? grant : { ...grant, hidden: [...grant.hidden, ...undecided] }
  }
  return undefined
}

/** Rules on a version that has content. */
export function rulingOfRow(
  store: Store,
  principal: Principal,
  interaction: Interaction,
  row: VersionRow,
): Ruling {
  const type = typeName(row.type)
  const held = () => heldBy(store, principal, row)
  return rulingOf(store, principal, { type, interaction, project: row.project, held })
}

/** Derives what the criteria of the Principal name, and nothing else. */
function heldBy(store: Store, principal: Principal, row: VersionRow): HeldRow {
  const known = held.get(row)
  if (known !== undefined && known.rules === principal.rules) return known.held
  const type = typeName(row.type)
  const { own } = placeIn(store.keys, principal, type, row.project)
  const only = principal.rules && codesNamed(principal, principal.rules, type)
  const resource = readPart(row, planOf(type, own, only))
  const rows = indexRows(store, row.project, resource, { parameters: own, only })
  const made = heldRow(row.id, rows)
  held.set(row, { rules: principal.rules, held: made })
  return made
}

/** With `url`, the version makes the canonical of a definition. */
const HEAD: ReadonlySet<string> = new Set(['resourceType', 'id', 'meta', 'version'])

/** As far as the plan reads it, with its platform meta. */
function readPart(row: VersionRow, { roots, whole }: IndexPlan): Resource {
  if (whole.length > 0) return parseVersion(toVersion(row))
  // Our own texts, checked when they were written.
  const part = membersOf(row.content ?? '', (name) => HEAD.has(name) || roots.has(name)) as Resource
  return { ...part, meta: { ...part.meta, ...(JSON.parse(`{${row.meta_ext}}`) as Meta) } }
}

const held = new WeakMap<
  VersionRow,
  { readonly rules: Rules | undefined; readonly held: HeldRow }
>()

/** One statement, and one more for a deletion. Undefined for ids that are unknown or not visible. */
export async function readRuled(
  store: Store,
  principal: Principal,
  type: string,
  { id, interactions }: { readonly id: string; readonly interactions: readonly Interaction[] },
): Promise<Ruled | undefined> {
  // Reads by id are batched with those of other callers, which is worth more than ruling here costs.
  const asked = interactions.filter((item) => needsSql(store, principal, type, item))
  if (asked.length === 0) {
    const row = await readRow(store, principal, type, id)
    return row && ruled(store, principal, type, { row, interactions, known: {} })
  }
  const found = await readAsking(store, principal, type, { id, asked })
  return (
    found && ruled(store, principal, type, { row: found.row, interactions, known: found.rulings })
  )
}

interface RuledRow {
  readonly row: VersionRow
  readonly interactions: readonly Interaction[]
}

/** Rules on a row that is known already; undefined where PostgreSQL has to decide. */
export async function ruleOnRow(
  store: Store,
  principal: Principal,
  type: string,
  { row, interactions }: RuledRow,
): Promise<Ruled | undefined> {
  const isAsked = interactions.some((item) => needsSql(store, principal, type, item))
  return isAsked ? undefined : ruled(store, principal, type, { row, interactions, known: {} })
}

interface KnownRow {
  readonly row: VersionRow
  readonly interactions: readonly Interaction[]
  readonly known: Ruled['rulings']
}

async function ruled(
  store: Store,
  principal: Principal,
  type: string,
  { row, interactions, known }: KnownRow,
): Promise<Ruled> {
  const rulings: Partial<Record<Interaction, Ruling>> = {}
  if (row.content === null) {
    const isAlike = interactions.every((item) => isPlain(principal, type, item))
    // The last content decides for a deletion.
    const [last] = isAlike ? [] : await lastContents(store, [row])
    if (last !== undefined) {
      const [found] = await rulingsOfContents(store, principal, interactions, [last])
      return { row, rulings: found ?? {} }
    }
    for (const item of interactions) rulings[item] = rulingWithout(principal, type, item)
    return { row, rulings }
  }
  for (const item of interactions) {
    rulings[item] = item in known ? known[item] : rulingOfRow(store, principal, item, row)
  }
  return { row, rulings }
}

/** Rules on a version that has no content any more. */
function rulingWithout(principal: Principal, type: string, interaction: Interaction): Ruling {
  const grants = grantsFor(principal, type, interaction)
  return grants === undefined ? 'all' : grants.find(({ criteria }) => criteria.length === 0)
}

/** Rules on versions with content, in their order, with rows or not. One statement a type that takes PostgreSQL. */
export async function rulingsOfContents(
  store: Store,
  principal: Principal,
  interactions: readonly Interaction[],
  rows: readonly VersionRow[],
): Promise<readonly Ruled['rulings'][]> {
  const found = new Map<VersionRow, Ruled['rulings']>()
  for (const group of Map.groupBy(rows, ({ project, type }) => `${project} ${type}`).values()) {
    const type = typeName(group[0]?.type ?? 0)
    const asked = interactions.filter((item) => needsSql(store, principal, type, item))
    const contents = asked.length === 0 ? [] : group.map((row) => contentOf(store, principal, row))
    const answers = await askContents(store, principal, type, { contents, asked })
    group.forEach((row, i) => {
      const rulings: Partial<Record<Interaction, Ruling>> = { ...answers[i] }
      for (const item of interactions) {
        if (!asked.includes(item)) rulings[item] = rulingOfRow(store, principal, item, row)
      }
      found.set(row, rulings)
    })
  }
  return rows.map((row) => found.get(row) ?? {})
}

interface MeetingRows {
  readonly project: number
  readonly parameters: OwnParameters | undefined
  readonly rows: readonly VersionRow[]
}

/** Selects a Project's versions whose content the criteria of a grant let through. As `rulingsOfContents`. */
export async function meeting(
  store: Store,
  grants: readonly Grant[],
  { project, parameters, rows }: MeetingRows,
): Promise<readonly VersionRow[]> {
  const context = { ...SYSTEM_PROJECT, number: project, parameters }
  const policy: Principal = { ...systemPrincipal(context), rules: { grants } }
  const rulings = await rulingsOfContents(store, policy, ['read'], rows)
  return rows.filter((_, i) => rulings[i]?.read !== undefined)
}

/** With all that it may refer to. */
function contentOf(store: Store, principal: Principal, row: VersionRow): Content {
  const resource = parseVersion(toVersion(row))
  const { own } = placeIn(store.keys, principal, resource.resourceType, row.project)
  const rows = indexRows(store, row.project, resource, { parameters: own })
  return { row, rows, held: heldRow(row.id, rows) }
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
    projects: deletions.map(({ project }) => project),
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

/** Rules on live rows of one type in one project, in their order; one statement where keys do not decide. */
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
  const found = await ask(store, principal, type, {
    project: first.project,
    ids,
    asked: [interaction],
  })
  return found.map((rulings) => rulings[interaction])
}

function placeOf(keys: Store['keys'], principal: Principal, type: string): Place {
  const project = REGISTRY_TYPES.has(type) ? REGISTRY_PROJECT : principal.project.number
  return placeIn(keys, principal, type, project)
}

/** The criteria of a grant as its search asks them of rows `r`, without values. */
export function criteriaSql(
  { keys }: Pick<Store, 'keys'>,
  principal: Principal,
  type: string,
  grant: Grant,
): string {
  const { tests } = grantTests(placeOf(keys, principal, type), grant)
  return allSql(tests, (_value, sqlType) => `?::${sqlType}`).replace(/\s+/g, ' ')
}

// Rulings of PostgreSQL on versions that have no row any more: which grant of a Principal is the first
// that lets each through. They take part in the statement as rows that were derived from their contents;
// what they refer to is as it is now.

/** A version and what it would be found by. */
interface Content {
  readonly row: VersionRow
  readonly rows: IndexRows
  readonly held: HeldRow
}

interface AskedContents {
  readonly contents: readonly Content[]
  readonly asked: readonly Interaction[]
}

/** Rules on contents of one type in one project, in their order. One statement. */
async function askContents(
  { connection, keys }: Store,
  principal: Principal,
  type: string,
  { contents, asked }: AskedContents,
): Promise<readonly Ruled['rulings'][]> {
  const [first] = contents
  if (first === undefined) return []
  const place = placeIn(keys, principal, type, first.row.project)
  const { values, bind } = binder()
  const columns = asked.map((item) => {
    const grants = grantsFor(principal, type, item) ?? []
    const tests = grants.map((grant) => leftSql(place, grant, bind))
    return `array[${tests.join(', ')}]::boolean[] as "${item}"`
  })
  const column = (of: (content: Content) => unknown, sqlType: string) =>
    bind(contents.map(of), `${sqlType}[]`)
  const lists = [
    column(({ row }) => row.id, 'uuid'),
    column(({ row }) => row.ver, 'int'),
    column(({ row }) => row.lu.toISOString(), 'timestamptz'),
    column(({ rows }) => rows.nref, 'smallint'),
    column(({ rows }) => keysLiteral(rows.keys), 'text'),
    column(({ rows }) => rows.dateLow ?? null, 'timestamptz'),
    column(({ rows }) => rows.dateHigh ?? null, 'timestamptz'),
  ]
  // Evaluated once a row: conditions must not take the derived table for one that has indexes.
  const text = `select r.n::int, ${columns.join(', ')} from (
      select ${bind(place.project, 'int')} as project, ${bind(typeNumber(type), 'smallint')} as type,
        x.id, x.ver, x.lu, x.nref, x.keys::bigint[] as keys, x.d_lo, x.d_hi, x.n
      from unnest(${lists.join(', ')}) with ordinality
        as x(id, ver, lu, nref, keys, d_lo, d_hi, n) offset 0) r`
  const found = await connection.query<{ n: number } & Partial<Record<Interaction, boolean[]>>>({
    text,
    values,
  })
  const answers = new Map(found.map((row) => [row.n, row]))
  return contents.map(({ held }, i) => {
    const rulings: Partial<Record<Interaction, Ruling>> = {}
    for (const item of asked) {
      const isLeft = answers.get(i + 1)?.[item] ?? []
      rulings[item] = grantsFor(principal, type, item)?.find(
        (grant, at) => isLeft[at] === true && grantTests(place, grant).decided(held),
      )
    }
    return rulings
  })
}

/** The conditions that the content does not decide. A side table only has rows of the newest version, so it denies. */
function leftSql(place: Place, grant: Grant, bind: Bind): string {
  const { left } = grantTests(place, grant)
  return left === undefined ? 'false' : `coalesce(${fewRowsSql(left, bind)}, false)`
}

/**
 * Rulings of PostgreSQL on live rows: which grant of a Principal is the first that lets each through. Every
 * row is found by its primary key, what it refers to by single keys.
 */
import { type Grant, INTERACTIONS, type Interaction, type Rules } from '../../access/grant.ts'
import { grantsFor } from '../../access/policy.ts'
import type { Principal } from '../../access/principal.ts'
import { storedParameters, typeNumber } from '../../fhir/definitions.ts'
import { type Bind, binder } from '../../platform/postgres/statement.ts'
import { type Criterion, isCondition, leavesOf } from '../../query/search-request.ts'
import type { Only } from '../index/index-plan.ts'
import { isLegalId, readRow, type Store, scopeOf } from '../rows/context.ts'
import type { RulingStatement } from '../rows/fetch.ts'
import { type VersionRow, versionColumns } from '../rows/rows.ts'
import { behindSelect } from '../search/plan/stages.ts'
import { fewRowsSql, grantTests, type Place, placeIn } from '../search/tests/grant-tests.ts'

/** `all`: no policy applies; undefined: nothing lets it through. */
export type Ruling = Grant | 'all' | undefined

/** The newest version of a resource, and what each interaction that was asked about says of it. */
export interface Ruled {
  readonly row: VersionRow
  readonly rulings: Readonly<Partial<Record<Interaction, Ruling>>>
}

type RulingColumns = Partial<Record<Interaction, number | null>>

interface AskedId {
  readonly id: string
  readonly asked: readonly Interaction[]
}

/** Undefined for ids that are unknown or not visible. One statement, shared; two for who reads everywhere. */
export async function readAsking(
  store: Store,
  principal: Principal,
  type: string,
  { id, asked }: AskedId,
): Promise<Ruled | undefined> {
  if (!isLegalId(id)) return undefined
  const { project, metaPrefix, everywhere } = scopeOf(principal, type)
  if (everywhere) return readThenAsk(store, principal, type, { id, asked })
  const key = { project, type: typeNumber(type), id: store.keys.rowId(type, id), metaPrefix }
  const ruling = rulingStatement(store, principal, type, { project, metaPrefix, asked })
  const row = await store.fetch({ ...key, everywhere, ruling })
  // Its statement has the columns that were asked for.
  return (
    row && { row, rulings: rulingsIn(principal, type, asked, row as VersionRow & RulingColumns) }
  )
}

interface AskedPlace {
  readonly project: number
  readonly metaPrefix: string
  readonly asked: readonly Interaction[]
}

/** Made once for the grants of a session: whoever asks the same shares statements. */
function rulingStatement(
  { keys }: Pick<Store, 'keys'>,
  principal: Principal,
  type: string,
  { project, metaPrefix, asked }: AskedPlace,
): RulingStatement {
  const place = placeIn(keys, principal, type, project)
  const stamp = `${place.own?.stamp ?? ''} ${place.units.join(' ')}`
  const name = `${project} ${type} ${asked.join()} ${metaPrefix} ${stamp}`
  // Grants are kept with the rules, or with the Principal whose own right it is.
  const owner = grantsFor(principal, type, asked[0] ?? 'read') ?? []
  const known = statements.get(owner)?.get(name)
  if (known !== undefined) return known
  const made = makeStatement(place, principal, metaPrefix, asked)
  statements.set(owner, (statements.get(owner) ?? new Map()).set(name, made))
  return made
}

const statements = new WeakMap<readonly Grant[], Map<string, RulingStatement>>()

function makeStatement(
  place: Place,
  principal: Principal,
  metaPrefix: string,
  asked: readonly Interaction[],
): RulingStatement {
  const { values, bind } = binder()
  const [ids, project, type] = [
    bind([], 'uuid[]'),
    bind(place.project, 'int'),
    bind(typeNumber(place.type), 'smallint'),
  ]
  const columns = asked.map((item) => `${placeSql(place, principal, item, bind)} as "${item}"`)
  // As in fetch.ts: the same plan for lists of any length.
  const text = `select x.n::int, ${versionColumns('v')}, j.*
    from unnest((select ${ids})) with ordinality as x(id, n)
    cross join lateral (
      select * from version where project = ${project} and type = ${type} and id = x.id
      order by ver desc limit 1) v
    left join lateral (select ${columns.join(', ')} from resource r
      where r.project = ${project} and r.type = ${type} and r.id = x.id) j on true
    where starts_with(v.meta_ext, ${bind(metaPrefix, 'text')})`
  const [, ...fixed] = values
  return (rows) => ({ ...nameOf(text), text, values: [`{${rows.join(',')}}`, ...fixed] })
}

async function readThenAsk(
  store: Store,
  principal: Principal,
  type: string,
  { id, asked }: AskedId,
): Promise<Ruled | undefined> {
  const row = await readRow(store, principal, type, id)
  if (row === undefined) return undefined
  const [first] = await ask(store, principal, type, { project: row.project, ids: [row.id], asked })
  return { row, rulings: first ?? {} }
}

/** Everything is found by primary keys and single keys, so one plan is as good as another. */
function nameOf(text: string): { readonly name?: string } {
  const known = names.get(text)
  if (known !== undefined) return { name: known }
  // A connection keeps what has a name; most policies ask in the same words.
  if (names.size === MAX_NAMES) return {}
  const name = `ruling-${names.size}`
  names.set(text, name)
  return { name }
}

const MAX_NAMES = 100
const names = new Map<string, string>()

interface AskedRows {
  readonly project: number
  readonly ids: readonly string[]
  readonly asked: readonly Interaction[]
}

/** Rules on live rows of one type, in the order of their row ids. One statement. */
export async function ask(
  store: Store,
  principal: Principal,
  type: string,
  { project, ids, asked }: AskedRows,
): Promise<readonly Ruled['rulings'][]> {
  const { values, bind: plainBind } = binder()
  const bind = behindSelect(plainBind)
  const place = placeIn(store.keys, principal, type, project)
  const columns = asked.map((item) => `${placeSql(place, principal, item, bind)} as "${item}"`)
  const text = `select r.id as row, ${columns.join(', ')} from resource r
    where r.project = ${bind(project, 'int')} and r.type = ${bind(typeNumber(type), 'smallint')}
      and r.id = any(${bind(ids, 'uuid[]')})`
  const rows = await store.connection.query<{ row: string } & RulingColumns>({
    ...nameOf(text),
    text,
    values,
  })
  const found = new Map(rows.map((row) => [row.row, rulingsIn(principal, type, asked, row)]))
  return ids.map((id) => found.get(id) ?? {})
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
): Ruled['rulings'] {
  const found: Partial<Record<Interaction, Ruling>> = {}
  for (const item of asked) {
    const grants = grantsFor(principal, type, item)
    found[item] = grants === undefined ? 'all' : grants[row[item] ?? -1]
  }
  return found
}

/** The codes in criteria that a content decides by itself: those of the policy, and of what is a member's own. */
export function codesNamed(principal: Principal, rules: Rules, type: string): Only {
  const known = named.get(rules) ?? new Map<string, Only>()
  named.set(rules, known)
  const found = known.get(type)
  if (found !== undefined) return found
  const grants = new Set(INTERACTIONS.flatMap((item) => grantsFor(principal, type, item) ?? []))
  const codes = [...grants].flatMap(({ criteria }) =>
    criteria.flatMap((criterion) => codesOf(type, criterion)),
  )
  const sorted = [...new Set(codes)].sort()
  const made = { stamp: sorted.join(), codes: new Set(sorted) }
  known.set(type, made)
  return made
}

const named = new WeakMap<Rules, Map<string, Only>>()

function codesOf(type: string, criterion: Criterion): readonly string[] {
  return leavesOf(criterion).flatMap((leaf) => {
    if (!isCondition(leaf)) return leaf.kind === 'compartment' ? ['_compartment'] : []
    const { code } = leaf
    return code === '_compartment' ? [code] : storedParameters(type, code)
  })
}

/**
 * Rulings of PostgreSQL on versions that have no row any more: which grant of a Principal is the first
 * that lets each through. They take part in the statement as rows that were derived from their contents;
 * what they refer to is as it is now.
 */
import type { Grant, Interaction } from '../../access/grant.ts'
import { grantsFor } from '../../access/policy.ts'
import type { Principal } from '../../access/principal.ts'
import { typeNumber } from '../../fhir/definitions.ts'
import type { IndexRows } from '../index/indexes.ts'
import { keysLiteral } from '../index/keys.ts'
import type { Store } from '../rows/context.ts'
import type { VersionRow } from '../rows/rows.ts'
import { type Bind, binder } from '../rows/side-rows.ts'
import { fewRowsSql, grantTests, type Place, placeIn } from '../search/tests/grant-tests.ts'
import type { HeldRow } from '../search/tests/row-decisions.ts'
import type { Ruled, Ruling } from './rows.ts'

/** A version and what it would be found by. */
export interface Content {
  readonly row: VersionRow
  readonly rows: IndexRows
  readonly held: HeldRow
}

interface AskedContents {
  readonly contents: readonly Content[]
  readonly asked: readonly Interaction[]
}

/** Rules on contents of one type in one project, in their order. One statement. */
export async function askContents(
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

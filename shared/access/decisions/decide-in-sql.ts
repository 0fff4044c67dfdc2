/**
 * Evaluates criteria in PostgreSQL: the first grant that lets row `r` through. A version without a row is derived
 * from its content, with references in their current state.
 */

import { memoFor } from '../../core/cache.ts'
import { typeNumber } from '../../fhir/definitions.ts'
import { arrayLiteral, binder } from '../../postgres/statement.ts'
import { hideFromPlanner } from '../../search/predicates/scan-sql.ts'
import type { IndexRows } from '../../store/index/indexes.ts'
import type { StoreContext } from '../../store/rows/context.ts'
import { type DecisionStatement, newestSql } from '../../store/rows/newest.ts'
import { type VersionRow, versionColumns } from '../../store/rows/rows.ts'
import type { Grant, Interaction } from '../grant.ts'
import { grantsFor } from '../policy.ts'
import type { Principal } from '../principal.ts'
import {
  compileGrant,
  createTypeScope,
  fewRowsSql,
  type TypeScope,
  typeScopeKey,
} from './grant-predicates.ts'
import type { IndexedRow } from './match-row.ts'

/** `all`: no policy applies; undefined: denied. */
export type AccessDecision = Grant | 'all' | undefined

export type Decisions = Readonly<Partial<Record<Interaction, AccessDecision>>>

export interface Question {
  readonly principal: Principal
  readonly type: string
  readonly project: number
  readonly asked: readonly Interaction[]
}

/** Index of a grant among those of the interaction; null for none. */
type Places = Partial<Record<Interaction, number | null>>

/** Decides on live rows, in the order of their row ids. One statement. */
export async function decideLiveRows(
  { connection, keys }: StoreContext,
  question: Question,
  ids: readonly string[],
): Promise<readonly Decisions[]> {
  const { project, type } = question
  const { values, bind: plainBind } = binder()
  const bind = hideFromPlanner(plainBind)
  const scope = createTypeScope(keys, question.principal, type, project)
  const columns = placeColumns(question, (grant) =>
    fewRowsSql(compileGrant(scope, grant).tests, bind),
  )
  const text = `select r.id as row, ${columns} from resource r
    where r.project = ${bind(project, 'int')} and r.type = ${bind(typeNumber(type), 'smallint')}
      and r.id = any(${bind(ids, 'uuid[]')})`
  const statement = { text, values, isPreparable: true }
  const rows = await connection.query<{ row: string } & Places>(statement)
  const found = new Map(rows.map((row) => [row.row, decisionsIn(question, row)]))
  return ids.map((id) => found.get(id) ?? {})
}

export interface IndexedContent {
  readonly row: VersionRow
  readonly rows: IndexRows
  readonly indexed: IndexedRow
}

/**
 * Decides on versions without rows, in their order. One statement. Side tables have live versions only, so they deny.
 */
export async function decideDerivedRows(
  { connection, keys }: StoreContext,
  question: Question,
  contents: readonly IndexedContent[],
): Promise<readonly Decisions[]> {
  const { project, type } = question
  const scope = createTypeScope(keys, question.principal, type, project)
  const { values, bind } = binder()
  const grants = [...new Set(question.asked.flatMap((item) => grantsOf(question, item)))]
  const columns = placeColumns(question, (grant) => {
    const { left } = compileGrant(scope, grant)
    if (left === undefined) return 'false'
    return `${grants.indexOf(grant)} = any(r.matched) and ${fewRowsSql(left, bind)}`
  })
  const matched = ({ indexed }: IndexedContent) =>
    grants.flatMap((grant, i) => (compileGrant(scope, grant).matchesKnown(indexed) ? [i] : []))
  const column = (of: (content: IndexedContent) => unknown, sqlType: string) =>
    bind(contents.map(of), `${sqlType}[]`)
  const lists = [
    column(({ row }) => row.id, 'uuid'),
    column(({ row }) => row.ver, 'int'),
    column(({ row }) => row.lu.toISOString(), 'timestamptz'),
    column(({ rows }) => rows.nref, 'smallint'),
    column(({ rows }) => arrayLiteral(rows.keys), 'text'),
    column(({ rows }) => rows.dateLow ?? null, 'timestamptz'),
    column(({ rows }) => rows.dateHigh ?? null, 'timestamptz'),
    column((content) => arrayLiteral(matched(content)), 'text'),
  ]
  // `offset 0` evaluates each row once: conditions must not treat the derived table as if it had indexes.
  const text = `select r.n::int, ${columns} from (
      select ${bind(project, 'int')} as project, ${bind(typeNumber(type), 'smallint')} as type,
        x.id, x.ver, x.lu, x.nref, x.keys::bigint[] as keys, x.d_lo, x.d_hi,
        x.matched::int[] as matched, x.n
      from unnest(${lists.join(', ')}) with ordinality
        as x(id, ver, lu, nref, keys, d_lo, d_hi, matched, n) offset 0) r`
  const found = await connection.query<{ n: number } & Places>({ text, values })
  const byPlace = new Map(found.map((row) => [row.n, decisionsIn(question, row)]))
  return contents.map((_, i) => byPlace.get(i + 1) ?? {})
}

/** Reads a version by id with the decisions on its live row. Reads of one event-loop turn share a statement. */
export async function readWithDecisions(
  store: StoreContext,
  question: Question,
  { id, metaPrefix }: { readonly id: string; readonly metaPrefix: string },
): Promise<{ readonly row: VersionRow; readonly decisions: Decisions } | undefined> {
  const { type, project } = question
  const row = await store.fetch({
    project,
    type: typeNumber(type),
    id: store.keys.rowId(type, id),
    metaPrefix,
    everywhere: false,
    decide: readingStatement(store, question, metaPrefix),
  })
  return row && { row, decisions: decisionsIn(question, row as VersionRow & Places) }
}

/** Returns the same object for the same question, since only equal objects share a statement. */
function readingStatement(
  { keys }: StoreContext,
  question: Question,
  metaPrefix: string,
): DecisionStatement {
  const { principal, type, project, asked } = question
  const scope = createTypeScope(keys, principal, type, project)
  const name = `${typeScopeKey(scope)} ${asked.join()} ${metaPrefix}`
  // Memoized by the grants, which live as long as the rules or the Principal.
  return statements(grantsFor(principal, type, asked[0] ?? 'read') ?? [], name, () =>
    makeStatement(scope, question, metaPrefix),
  )
}

const statements = memoFor<readonly Grant[], DecisionStatement>()

function makeStatement(
  scope: TypeScope,
  question: Question,
  metaPrefix: string,
): DecisionStatement {
  const { values, bind } = binder()
  const [ids, project, type] = [
    bind([], 'uuid[]'),
    bind(scope.project, 'int'),
    bind(typeNumber(scope.type), 'smallint'),
  ]
  const columns = placeColumns(question, (grant) =>
    fewRowsSql(compileGrant(scope, grant).tests, bind),
  )
  // One plan for lists of any length, as in newest.ts.
  const text = `select x.n::int, ${versionColumns('v')}, j.*
    from unnest((select ${ids})) with ordinality as x(id, n)
    cross join lateral (${newestSql(`project = ${project}`, type)}) v
    left join lateral (select ${columns} from resource r
      where r.project = ${project} and r.type = ${type} and r.id = x.id) j on true
    where starts_with(v.meta_ext, ${bind(metaPrefix, 'text')})`
  const [, ...fixed] = values
  return (rows) => ({ text, values: [arrayLiteral(rows), ...fixed], isPreparable: true })
}

function grantsOf({ principal, type }: Question, interaction: Interaction): readonly Grant[] {
  return grantsFor(principal, type, interaction) ?? []
}

/** Returns one column per interaction: the index of the first grant that lets row `r` through. */
function placeColumns(question: Question, grantSql: (grant: Grant) => string): string {
  const columns = question.asked.map((item) => {
    const cases = grantsOf(question, item).map((grant, i) => `when ${grantSql(grant)} then ${i}`)
    return `case ${cases.join(' ')} end as "${item}"`
  })
  return columns.join(', ')
}

function decisionsIn({ principal, type, asked }: Question, row: Places): Decisions {
  const found: Partial<Record<Interaction, AccessDecision>> = {}
  for (const item of asked) {
    const grants = grantsFor(principal, type, item)
    found[item] = grants === undefined ? 'all' : grants[row[item] ?? -1]
  }
  return found
}

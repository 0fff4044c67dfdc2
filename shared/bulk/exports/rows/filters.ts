/**
 * `_typeFilter`: rows of a type of which one of several searches holds. They are asked as the searches of
 * the member are, visible to it; of a version that has no row any more its content is asked.
 */
import { escapeLiteral } from 'pg'
import { decideContents, needsSql } from '../../../access/decisions/decide.ts'
import { allSql, visibleRows } from '../../../access/decisions/grant-predicates.ts'
import type { Grant } from '../../../access/grant.ts'
import type { Principal } from '../../../access/principal.ts'
import { typeNumber } from '../../../fhir/definitions.ts'
import { type Bind, binder } from '../../../platform/postgres/statement.ts'
import type { Criterion } from '../../../query/search-request.ts'
import type { Store } from '../../../store/rows/context.ts'
import type { VersionRow } from '../../../store/rows/rows.ts'
import { unitsOf } from '../../../store/search/plan/prepare.ts'
import { testOf } from '../../../store/search/tests/conditions.ts'
import {
  codesRead,
  filter,
  type Scene,
  scopeSql,
  type Test,
} from '../../../store/search/tests/test.ts'
import type { TypeFilter } from './jobs.ts'

export interface Filter {
  readonly scene: Scene
  /** A condition on a row `r`: one of the searches finds it. */
  readonly test: Test
  /** Sees what the searches find, by their conditions alone. */
  readonly asked: Principal
  readonly isLimited: boolean
}

/** Undefined when the type is not filtered. Errors: 400, 403 for what the member cannot search by. */
export async function filterOf(
  store: Store,
  principal: Principal,
  type: string,
  filters: readonly TypeFilter[],
): Promise<Filter | undefined> {
  const own = filters.filter((one) => one.type === type).map(({ conditions }) => conditions)
  if (own.length === 0) return undefined
  const { number } = principal.project
  const units = await unitsOf(
    store,
    number,
    own.map((conditions) => ({ conditions })),
  )
  const searches = own.map((conditions) => {
    const codes = conditions.flatMap((criterion) =>
      codesRead(type, criterion, principal.project.parameters),
    )
    const scene = visibleRows(store, principal, type, {
      interaction: 'search',
      project: number,
      units,
      codes,
    })
    if (scene === undefined) return undefined
    // As many as there are may be at the other end of a reference: nobody waits for a page.
    const wide: Scene = { ...scene, isPolicy: true }
    const tests = conditions.map((criterion) => testOf(wide, criterion))
    return { scene, tests: [...scene.visible, ...tests] }
  })
  const [first] = searches
  if (first === undefined) return undefined
  const test = filter((bind) => {
    return `(${searches.map((one) => allSql(one?.tests ?? [], bind)).join(' or ')})`
  })
  return {
    scene: first.scene,
    test,
    asked: {
      ...principal,
      isSuperAdmin: false,
      isProjectAdmin: false,
      rules: { grants: own.map((conditions) => grantOf(type, conditions)) },
    },
    isLimited: principal.rules !== undefined,
  }
}

function grantOf(type: string, criteria: readonly Criterion[]): Grant {
  return {
    source: '_typeFilter',
    type,
    interactions: new Set(['search'] as const),
    criteria,
    said: [],
    hidden: [],
    readonly: [],
    constraints: [],
    account: undefined,
    isNamed: false,
  }
}

/** Returns the versions that one of the searches finds. */
export async function filtered(
  store: Store,
  { scene, test, asked, isLimited }: Filter,
  rows: readonly VersionRow[],
): Promise<readonly VersionRow[]> {
  const rulings = await decideContents(store, asked, ['search'], rows)
  const found = rows.filter((_, i) => rulings[i]?.search !== undefined)
  if (!isLimited || !needsSql(store, asked, scene.type, 'search')) return found
  // The far end of a reference is tested on rows, as the member sees them.
  const { values, bind } = binder()
  const ids = bind(
    found.map(({ id }) => id),
    'uuid[]',
  )
  const scope = scopeSql(scene.project, [typeNumber(scene.type)], bind, false)
  const seen = await store.connection.query<{ id: string }>({
    text: `select r.id from resource r where ${scope.join(' and ')} and r.id = any(${ids})
      and ${allSql([test], bind)}`,
    values,
  })
  const visible = new Set(seen.map(({ id }) => id))
  return found.filter(({ id }) => visible.has(id))
}

// `literal` is the one place that writes values into the text of a statement: COPY takes no parameters. The driver's
// own function quotes every value, and its type must be on this list.
const TYPES = /^(int|smallint|bigint|float8|boolean|text|uuid|timestamptz)(\[\])?$/

/** `'value'::type`. Errors: a type that is not on the list, a value that is no plain one, a NUL. */
export const literal: Bind = (value, type) => {
  if (!TYPES.test(type)) throw new Error(`No literal can be written of type ${type}`)
  if (value === null || value === undefined) return `null::${type}`
  return `${escapeLiteral(textOf(value))}::${type}`
}

function textOf(value: unknown): string {
  if (Array.isArray(value)) return `{${value.map(itemOf).join(',')}}`
  if (value instanceof Date) return value.toISOString()
  switch (typeof value) {
    case 'string':
      if (value.includes('\0')) throw new Error('A literal holds no NUL')
      return value
    case 'number':
    case 'bigint':
    case 'boolean':
      return String(value)
    default:
      throw new Error(`No literal can be written of a ${typeof value}`)
  }
}

/** https://www.postgresql.org/docs/current/arrays.html#ARRAYS-IO */
function itemOf(value: unknown): string {
  if (value === null || value === undefined) return 'null'
  return `"${textOf(value).replace(/["\\]/g, '\\$&')}"`
}

/** The cost of a search: its statement, how its rows are found, PostgreSQL's plan. */
import type { Principal } from '../../access/principal.ts'
import type { SearchRequest } from '../../query/search-request.ts'
import type { Store } from '../rows/context.ts'
import { plan } from './page.ts'

export interface Explanation {
  /** `keys`, `ids`, `dates`, `join` or `walk`; undefined when nothing is visible. */
  readonly driver: string | undefined
  readonly sql: string
  readonly plan: readonly string[]
}

/** Errors: as `search`. The statement is run, but its rows stay in PostgreSQL. */
export async function explain(
  store: Store,
  principal: Principal,
  request: SearchRequest,
): Promise<Explanation> {
  const found = await plan(store, principal, request)
  if (found === undefined) return { driver: undefined, sql: '', plan: [] }
  const { text, values } = found.statement
  const rows = await store.connection.query<{ 'QUERY PLAN': string }>({
    text: `explain (analyze, buffers) ${text}`,
    values,
  })
  return { driver: found.ways, sql: text, plan: rows.map((row) => row['QUERY PLAN']) }
}

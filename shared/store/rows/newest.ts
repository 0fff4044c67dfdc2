/** Reads the newest versions of rows by id, deletions included. Reads of one event-loop turn share a statement. */

import { batchInLanes, batchPerTick, settle } from '../../core/batching.ts'
import { dialect, fixedSql } from '../../postgres/chosen-dialect.ts'
import type { Database } from '../../postgres/database.ts'
import { arrayLiteral, type Connection, type Statement } from '../../postgres/statement.ts'
import { type VersionRow, versionColumns } from './rows.ts'

export interface RowKey {
  readonly project: number
  readonly type: number
  readonly id: string
  readonly metaPrefix: string
  /** Falls back to a row of another project. */
  readonly everywhere: boolean
  /** A decision to make in the same statement; one object per question. */
  readonly decide?: DecisionStatement | undefined
}

/** Reads rows of one type in one project, with decision columns. */
export type DecisionStatement = (ids: readonly string[]) => Statement

/** Includes deletions; undefined for unknown or invisible ids. */
export type Fetch = (key: RowKey) => Promise<VersionRow | undefined>

/** Contents may be large, and all of a batch are in memory at once. */
const MAX_ROWS = 16

const V = versionColumns('v')

/** SQL of the newest version of a row. `inProject` is a condition; `type` and `id` are columns or placeholders. */
export function newestSql(inProject: string, type = 'x.type', id = 'x.id'): string {
  return `select * from version where ${inProject} and type = ${type} and id = ${id}
      order by ver desc limit 1`
}

// The newest version decides, so it is taken before the prefix is checked.
const ONE = `select ${V} from (${newestSql('project = $1', '$2', '$3')}) v where starts_with(v.meta_ext, $4)`

// Lists behind a select hide their length: otherwise PostgreSQL replans each time, expecting short ones.
const MANY = fixedSql(
  () => `select x.n::int, ${V}
  from unnest(${['$1::int[]', '$2::smallint[]', '$3::uuid[]', '$4::text[]'].map(dialect.value).join(', ')})
    with ordinality as x(project, type, id, prefix, n)
  cross join lateral (${newestSql(dialect.projectOfList('project', 4))}) v
  where starts_with(v.meta_ext, x.prefix)`,
)

// PostgreSQL runs the second half only when the first has no row: other projects cost a probe each.
const MANY_EVERYWHERE = `select x.n::int, ${V}
  from unnest((select $1::int[]), (select $2::smallint[]), (select $3::uuid[]),
      (select $4::text[]), (select $5::boolean[])) with ordinality
    as x(project, type, id, prefix, everywhere, n)
  cross join lateral (
    (${newestSql('project = x.project')})
    union all
    (select o.* from tenant t cross join lateral (${newestSql('project = t.project')}) o
      where x.everywhere and t.project <> x.project limit 1)
    limit 1) v
  where starts_with(v.meta_ext, x.prefix)`

/** Reads the newest versions of many rows. Rows have the place of their key as `n`, from 1, in any order. */
export function newestStatement(keys: readonly RowKey[]): Statement {
  if (!keys.some((key) => key.everywhere)) return knownPlacesStatement(keys)
  return {
    name: 'read-everywhere',
    text: MANY_EVERYWHERE,
    values: [...listValues(keys), arrayLiteral(keys.map(({ everywhere }) => everywhere))],
    inSteps: async (steps) => await steps.query(knownPlacesStatement(await located(steps, keys))),
  }
}

/** Reads each row in the Project of its key alone. */
function knownPlacesStatement(keys: readonly RowKey[]): Statement {
  return {
    name: 'read-n',
    text: MANY(),
    perProject: keys.map(({ project }) => project),
    values: listValues(keys),
  }
}

function listValues(keys: readonly RowKey[]): unknown[] {
  return [
    arrayLiteral(keys.map(({ project }) => project)),
    arrayLiteral(keys.map(({ type }) => type)),
    arrayLiteral(keys.map(({ id }) => id)),
    keys.map(({ metaPrefix }) => metaPrefix),
  ]
}

/** Finds the Projects of the rows on several servers; the caller's own comes first. */
async function located(
  { query }: Pick<Connection, 'query'>,
  keys: readonly RowKey[],
): Promise<readonly RowKey[]> {
  const rows = await query<{ n: number; project: number }>({
    text: `select distinct x.n::int, v.project
      from unnest($1::smallint[], $2::uuid[]) with ordinality as x(type, id, n) cross join tenant t
      join version v on v.project = t.project and v.type = x.type and v.id = x.id`,
    values: [arrayLiteral(keys.map(({ type }) => type)), arrayLiteral(keys.map(({ id }) => id))],
  })
  return keys.map((key, i) => {
    const found = rows.filter(({ n }) => n === i + 1).map(({ project }) => project)
    const [first = key.project] = found
    return !key.everywhere || found.includes(key.project) ? key : { ...key, project: first }
  })
}

export function fetchTogether(connection: Connection): Fetch {
  return batchPerTick((keys) => fetchAll(connection, keys))
}

export function createFetch(database: Pick<Database, 'lane'>): Fetch {
  return batchInLanes<Connection, RowKey, VersionRow | undefined>(() => database.lane(), {
    take(queue, share) {
      const count = Math.min(share, MAX_ROWS)
      const decide = queue[0]?.item.decide
      const alike = queue.filter(({ item }) => item.decide === decide)
      const batch = new Set(alike.slice(0, count))
      return [[...batch], queue.filter((pending) => !batch.has(pending))]
    },
    run: (connection, batch) => settle(batch, (keys) => fetchAll(connection, keys)),
  })
}

/** In the order of the keys. One statement, and one per decision question. */
export async function fetchAll(
  connection: Connection,
  keys: readonly RowKey[],
): Promise<readonly (VersionRow | undefined)[]> {
  const places = Map.groupBy(keys.keys(), (place) => keys[place]?.decide)
  if (places.size === 1) return fetchAlike(connection, keys)
  const found: (VersionRow | undefined)[] = []
  for (const own of places.values()) {
    const rows = await fetchAlike(
      connection,
      own.flatMap((place) => keys[place] ?? []),
    )
    for (const [i, place] of own.entries()) found[place] = rows[i]
  }
  return found
}

async function fetchAlike(
  connection: Connection,
  keys: readonly RowKey[],
): Promise<readonly (VersionRow | undefined)[]> {
  const decide = keys[0]?.decide
  if (decide !== undefined) {
    const decided = await connection.query<VersionRow & { n: number }>(
      decide(keys.map(({ id }) => id)),
    )
    return inOrder(keys, decided)
  }
  const [only] = keys
  if (only !== undefined && keys.length === 1 && !only.everywhere) {
    const { project, type, id, metaPrefix } = only
    const values = [project, type, id, metaPrefix]
    return connection.query<VersionRow>({ name: 'read', text: ONE, values })
  }
  return inOrder(keys, await connection.query<VersionRow & { n: number }>(newestStatement(keys)))
}

function inOrder(keys: readonly RowKey[], rows: readonly (VersionRow & { n: number })[]) {
  const found: (VersionRow | undefined)[] = keys.map(() => undefined)
  for (const row of rows) found[row.n - 1] = row
  return found
}

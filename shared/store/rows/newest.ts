/**
 * Caches recent versions: updates skip the read on a hit, and searches fetch only missing contents. Versions are
 * immutable, so entries are never stale; those of a reused id differ in their time.
 */

import { SYSTEM_PROJECT_NUMBER } from '../../access/principal.ts'
import { batchInLanes, batchPerTick, settle } from '../../core/batching.ts'
import { Cache } from '../../core/cache.ts'
import { dialect, fixedSql } from '../../postgres/chosen-dialect.ts'
import type { Database } from '../../postgres/database.ts'
import type { Connection, Statement } from '../../postgres/statement.ts'
import { type VersionRow, versionColumns } from './rows.ts'

interface Place {
  readonly project: number
  readonly typeNumbers: readonly number[]
}

export interface RecentVersions {
  get(key: RowKey): VersionRow | undefined
  keep(row: VersionRow): void
  drop(row: VersionRow): void
  find(row: Found): VersionRow | undefined
  /** True when recent searches there were mostly hits. */
  knowsMost(places: readonly Place[]): boolean
  learn(rows: readonly VersionRow[]): void
  /** Records the hits of a page. */
  note(row: Found, known: number, of: number): void
}

type Found = Pick<VersionRow, 'project' | 'type' | 'id' | 'ver' | 'lu'>

const MAX_EACH = 100_000
/** Bytes of a row in addition to its texts. */
const ROW = 500
/** Hit rate that makes reading without contents worthwhile. */
const MOST = 0.9
const WEIGHT = 1 / 8
/** One in so many pages adds to the cache. */
const LEARNED = 4
/** Larger pages would evict popular entries. */
const MOST_ROWS = 100
const MAX_SHARES = 10_000

/** `size` in characters. */
export function createRecentVersions(size: number): RecentVersions {
  const rows = new Cache<string, VersionRow>({
    name: 'recent-versions',
    max: size,
    maxEntrySize: MAX_EACH,
    size: ({ content, meta_ext }) => (content?.length ?? 0) + meta_ext.length + ROW,
  })
  const shares = new Cache<string, number>({ name: 'recent-shares', max: MAX_SHARES })
  let pages = 0
  return {
    get: ({ everywhere, ...key }) => (everywhere ? undefined : rows.get(versionKey(key))),
    keep(row) {
      // Registry rows hold secrets and are not visible to all callers.
      if (row.project !== SYSTEM_PROJECT_NUMBER && row.content !== null)
        rows.set(versionKey(row), row)
    },
    drop: (row) => void rows.delete(versionKey(row)),
    find,
    knowsMost: (places) =>
      places.every(({ project, typeNumbers }) =>
        typeNumbers.every((type) => (shares.get(`${project}/${type}`) ?? 0) >= MOST),
      ),
    learn(found) {
      const [first] = found
      pages += 1
      if (first === undefined || first.project === SYSTEM_PROJECT_NUMBER) return
      if (pages % LEARNED !== 0 || found.length > MOST_ROWS + 1) return
      let known = 0
      for (const row of found) {
        if (find(row) !== undefined) known += 1
        else this.keep(pickVersionColumns(row))
      }
      this.note(first, known, found.length)
    },
    note({ project, type }, known, of) {
      const name = `${project}/${type}`
      const before = shares.get(name) ?? 0
      shares.set(name, before + (known / of - before) * WEIGHT)
    },
  }

  function find(row: Found): VersionRow | undefined {
    const known = rows.get(versionKey(row))
    const isSame = known?.ver === row.ver && known.lu.getTime() === row.lu.getTime()
    return isSame ? known : undefined
  }
}

function versionKey({ project, type, id }: Pick<VersionRow, 'project' | 'type' | 'id'>): string {
  return `${project}/${type}/${id}`
}

function pickVersionColumns({
  project,
  type,
  id,
  ver,
  lu,
  content,
  meta_at,
  meta_ext,
}: VersionRow) {
  return { project, type, id, ver, lu, content, meta_at, meta_ext }
}

export const BARE_COLUMNS = 'r.project, r.type, r.id, r.ver, r.lu'

const V = versionColumns('v')

const CONTENTS = fixedSql(
  () => `select x.n::int, ${V}
  from unnest(${['$1::int[]', '$2::smallint[]', '$3::uuid[]', '$4::int[]'].map(dialect.value).join(', ')})
    with ordinality as x(project, type, id, ver, n)
  cross join lateral (select * from version c
    where ${dialect.projectOfList('c.project', 4)} and c.type = x.type
    and c.id = x.id and c.ver <= x.ver order by c.ver desc limit 1) v`,
)

/** Reads the rows of a search, without contents if most are cached. Leaves out rows erased meanwhile. */
export async function withContents<Row extends VersionRow>(
  { recent, connection }: { recent: RecentVersions | undefined; connection: Connection },
  places: readonly Place[],
  read: (isBare: boolean) => Promise<readonly Row[]>,
): Promise<readonly Row[]> {
  const isBare = recent?.knowsMost(places) === true
  const rows = await read(isBare)
  if (recent === undefined) return rows
  if (!isBare) {
    recent.learn(rows)
    return rows
  }
  const found = rows.map((row) => recent.find(row))
  const missing = rows.filter((_, i) => found[i] === undefined)
  const [first] = rows
  if (first !== undefined) recent.note(first, rows.length - missing.length, rows.length)
  const others = new Map<Row, VersionRow>()
  if (missing.length > 0) {
    const list = (of: (row: Row) => number | string) => `{${missing.map(of).join(',')}}`
    const versions = await connection.query<VersionRow & { n: number }>({
      name: 'contents',
      isPipelined: true,
      perProject: missing.map(({ project }) => project),
      text: CONTENTS(),
      values: [
        list((row) => row.project),
        list((row) => row.type),
        list((row) => row.id),
        list((row) => row.ver),
      ],
    })
    for (const version of versions) {
      const row = missing[version.n - 1]
      if (row !== undefined) others.set(row, version)
      if (missing.length <= MOST_ROWS) recent.keep(pickVersionColumns(version))
    }
  }
  return rows.flatMap((row, i) => {
    const version = found[i] ?? others.get(row)
    if (version === undefined) return []
    const { content, meta_at, meta_ext } = version
    return [{ ...row, content, meta_at, meta_ext }]
  })
}

export interface RowKey {
  readonly project: number
  readonly type: number
  readonly id: string
  readonly metaPrefix: string
  /** Falls back to a row of another project. */
  readonly everywhere: boolean
  /** A decision to make in the same statement; one object per question. */
  readonly ruling?: DecisionStatement | undefined
}

/** Reads rows of one type in one project, with decision columns. */
export type DecisionStatement = (ids: readonly string[]) => Statement

/** Includes deletions; undefined for unknown or invisible ids. */
export type Fetch = (key: RowKey) => Promise<VersionRow | undefined>

/** Contents may be large, and all of a batch are in memory at once. */
const MAX_ROWS = 16

// The newest version decides, so it is taken before the prefix is checked.
const ONE = `select ${V} from (
    select * from version where project = $1 and type = $2 and id = $3 order by ver desc limit 1
  ) v where starts_with(v.meta_ext, $4)`

// Lists behind a select hide their length: otherwise PostgreSQL replans each time, expecting short ones.
const MANY = fixedSql(
  () => `select x.n::int, ${V}
  from unnest(${['$1::int[]', '$2::smallint[]', '$3::uuid[]', '$4::text[]'].map(dialect.value).join(', ')})
    with ordinality as x(project, type, id, prefix, n)
  cross join lateral (
    select * from version where ${dialect.projectOfList('project', 4)}
      and type = x.type and id = x.id
    order by ver desc limit 1) v
  where starts_with(v.meta_ext, x.prefix)`,
)

// PostgreSQL runs the second half only when the first has no row: other projects cost a probe each.
const MANY_EVERYWHERE = `select x.n::int, ${V}
  from unnest((select $1::int[]), (select $2::smallint[]), (select $3::uuid[]),
      (select $4::text[]), (select $5::boolean[])) with ordinality
    as x(project, type, id, prefix, everywhere, n)
  cross join lateral (
    (select * from version where project = x.project and type = x.type and id = x.id
      order by ver desc limit 1)
    union all
    (select o.* from tenant t cross join lateral (
        select * from version where project = t.project and type = x.type and id = x.id
        order by ver desc limit 1
      ) o where x.everywhere and t.project <> x.project limit 1)
    limit 1) v
  where starts_with(v.meta_ext, x.prefix)`

/** Finds the Projects of the rows on several servers; the caller's own comes first. */
export async function located<Key extends Pick<RowKey, 'project' | 'type' | 'id' | 'everywhere'>>(
  { query }: Pick<Connection, 'query'>,
  keys: readonly Key[],
): Promise<readonly Key[]> {
  const list = (of: (key: Key) => number | string) => `{${keys.map(of).join(',')}}`
  const rows = await query<{ n: number; project: number }>({
    text: `select distinct x.n::int, v.project
      from unnest($1::smallint[], $2::uuid[]) with ordinality as x(type, id, n) cross join tenant t
      join version v on v.project = t.project and v.type = x.type and v.id = x.id`,
    values: [list(({ type }) => type), list(({ id }) => id)],
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
      const ruling = queue[0]?.item.ruling
      const alike = queue.filter(({ item }) => item.ruling === ruling)
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
  const places = Map.groupBy(keys.keys(), (place) => keys[place]?.ruling)
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
  const ruling = keys[0]?.ruling
  if (ruling !== undefined) {
    const ruled = await connection.query<VersionRow & { n: number }>(
      ruling(keys.map(({ id }) => id)),
    )
    return inOrder(keys, ruled)
  }
  const everywhere = keys.some((key) => key.everywhere)
  const [only] = keys
  if (only !== undefined && keys.length === 1 && !everywhere) {
    const { project, type, id, metaPrefix } = only
    const values = [project, type, id, metaPrefix]
    return connection.query<VersionRow>({ name: 'read', text: ONE, values })
  }
  const many = readManyStatement(keys)
  const { values } = many
  const rows = await connection.query<VersionRow & { n: number }>(
    everywhere
      ? {
          name: 'read-everywhere',
          text: MANY_EVERYWHERE,
          values: [...values, `{${keys.map((key) => key.everywhere).join(',')}}`],
          inSteps: async (steps) =>
            await steps.query(readManyStatement(await located(steps, keys))),
        }
      : many,
  )
  return inOrder(keys, rows)
}

function readManyStatement(keys: readonly RowKey[]): Statement {
  const list = (of: (key: RowKey) => number | string) => `{${keys.map(of).join(',')}}`
  return {
    name: 'read-n',
    text: MANY(),
    perProject: keys.map(({ project }) => project),
    values: [
      list((key) => key.project),
      list((key) => key.type),
      list((key) => key.id),
      keys.map((key) => key.metaPrefix),
    ],
  }
}

function inOrder(keys: readonly RowKey[], rows: readonly (VersionRow & { n: number })[]) {
  const found: (VersionRow | undefined)[] = keys.map(() => undefined)
  for (const row of rows) found[row.n - 1] = row
  return found
}

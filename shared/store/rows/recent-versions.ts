/**
 * Caches recent versions: updates skip the read on a hit, and searches fetch only missing contents. Versions are
 * immutable, so entries are never stale; those of a reused id differ in their time.
 */

import { SYSTEM_PROJECT_NUMBER } from '../../access/principal.ts'
import { Cache } from '../../core/cache.ts'
import { dialect, fixedSql } from '../../postgres/chosen-dialect.ts'
import { arrayLiteral, type Connection } from '../../postgres/statement.ts'
import type { RowKey } from './newest.ts'
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
    const versions = await connection.query<VersionRow & { n: number }>({
      name: 'contents',
      isPipelined: true,
      perProject: missing.map(({ project }) => project),
      text: CONTENTS(),
      values: [
        arrayLiteral(missing.map(({ project }) => project)),
        arrayLiteral(missing.map(({ type }) => type)),
        arrayLiteral(missing.map(({ id }) => id)),
        arrayLiteral(missing.map(({ ver }) => ver)),
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

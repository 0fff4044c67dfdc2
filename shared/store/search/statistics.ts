/**
 * How many rows hold a key, from PostgreSQL's own statistics: ANALYZE keeps the 10,000 most common
 * elements of `resource.keys`. A key that is not among them is rare. Measured: 19 ms a refresh.
 */
import type { Connection } from '../../database.ts'
import {
  NO_TEXTS,
  readTextStatistics,
  rowsStartingWith,
  type TextStatistics,
} from './text-statistics.ts'

export interface KeyStatistics {
  /** Estimated rows that hold the key; undefined is rare. */
  matches(key: bigint): number | undefined
  /** Estimated rows of side tables that begin with a normalised text; 0 where that is rare. */
  startingWith(text: string): number
  /** No key that is rare is held by more rows; undefined before the statistics are read. */
  readonly rare: number | undefined
  /** Live rows of all Projects, when they were last counted. */
  readonly rows: number
  /** Estimated live rows of a type in a project. */
  rowsOf(project: number, type: number): number
  /** Reads the statistics now, e.g. after a bulk load. */
  refresh(): Promise<void>
}

const MAX_AGE_MS = 300_000
/** Frequency of what is not among the most common values of a column. */
const RARE = 0.001

interface Snapshot {
  readonly rows: number
  readonly keys: ReadonlyMap<string, number>
  /** The lowest frequency among `keys`. */
  readonly lowest: number
  readonly projects: ReadonlyMap<number, number>
  readonly types: ReadonlyMap<number, number>
  readonly texts: TextStatistics
}

const EMPTY: Snapshot = {
  rows: 0,
  keys: new Map(),
  lowest: 1,
  projects: new Map(),
  types: new Map(),
  texts: NO_TEXTS,
}

/** Reads nothing yet; the first search starts the first refresh and does not wait for it. */
export function openStatistics(connection: Connection): KeyStatistics {
  let snapshot = EMPTY
  let readAt = Number.NEGATIVE_INFINITY

  async function refresh(): Promise<void> {
    readAt = performance.now()
    snapshot = await readSnapshot(connection)
  }

  function current(): Snapshot {
    if (performance.now() - readAt > MAX_AGE_MS) {
      // Without fresh statistics searches stay right, only their plan may be a worse one.
      refresh().catch(() => undefined)
    }
    return snapshot
  }

  return {
    refresh,
    matches: (key) => {
      const { keys, rows } = current()
      const frequency = keys.get(String(key))
      return frequency && frequency * rows
    },
    startingWith: (text) => rowsStartingWith(current().texts, text),
    get rare() {
      const { keys, rows, lowest } = current()
      return keys.size === 0 ? undefined : Math.ceil(lowest * rows)
    },
    get rows() {
      return current().rows
    },
    rowsOf: (project, type) => {
      const { rows, projects, types } = current()
      return rows * (projects.get(project) ?? RARE) * (types.get(type) ?? RARE)
    },
  }
}

async function readSnapshot(connection: Connection): Promise<Snapshot> {
  const texts = await readTextStatistics(connection)
  const rows = await connection.query<{
    attname: string
    value: string
    frequency: number
    rows: number
  }>({
    text: `
      select s.attname, x.value, x.frequency, c.reltuples::float8 as rows
      from pg_stats s
      join pg_class c on c.oid = 'resource'::regclass
      cross join lateral unnest(
        case s.attname when 'keys' then s.most_common_elems::text::text[]
          else s.most_common_vals::text::text[] end,
        case s.attname when 'keys' then s.most_common_elem_freqs else s.most_common_freqs end
      ) as x(value, frequency)
      where s.schemaname = c.relnamespace::regnamespace::text and s.tablename = 'resource'
        and s.attname in ('keys', 'project', 'type') and x.value is not null`,
    values: [],
  })
  const of = (name: string) => rows.filter(({ attname }) => attname === name)
  const numbers = (name: string) =>
    new Map(of(name).map(({ value, frequency }) => [Number(value), frequency]))
  const keys = new Map(of('keys').map(({ value, frequency }) => [value, frequency]))
  return {
    rows: Math.max(rows[0]?.rows ?? 0, 0),
    keys,
    lowest: keys.values().reduce((least, frequency) => Math.min(least, frequency), 1),
    projects: numbers('project'),
    types: numbers('type'),
    texts,
  }
}

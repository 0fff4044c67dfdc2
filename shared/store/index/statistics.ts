/**
 * Estimates how many rows hold a key, from PostgreSQL statistics: a key outside of the 10,000 most common elements of
 * `resource.keys` is rare. While searches run, one statement a second checks for a newer ANALYZE.
 */
import type { Connection } from '../../postgres/statement.ts'
import { INDEX_REVISION } from './keys.ts'

export interface KeyStatistics {
  /** Estimated rows that hold the key; undefined: rare. */
  matches(key: bigint): number | undefined
  /** Estimated side rows that begin with a normalised text; 0: rare. */
  startingWith(text: string): number
  /** Upper bound of the rows of a rare key; undefined before the first read. */
  readonly rare: number | undefined
  /** Live rows of all Projects at the last count. */
  readonly rows: number
  /** False for a Project or type with few or no rows at the last ANALYZE. */
  knows(project: number, type: number): boolean
  /** Estimated live rows of a type in a project; a middling number if unknown. */
  typeRows(project: number, type: number): number
  /** False when rows indexed by older code may lack keys. */
  readonly isIndexed: boolean
  refresh(): Promise<void>
}

const LOOK_MS = 1000
/** High enough that no plan reads all rows of an unknown type. */
const UNKNOWN_ROWS = 10_000

interface Snapshot {
  readonly rows: number
  readonly keys: ReadonlyMap<string, number>
  readonly lowest: number
  readonly projects: ReadonlyMap<number, number>
  readonly types: ReadonlyMap<number, number>
  readonly texts: TextStatistics
}

const NO_TEXTS: TextStatistics = { rows: 0, common: [], bounds: [] }
const EMPTY: Snapshot = {
  rows: 0,
  keys: new Map(),
  lowest: 1,
  projects: new Map(),
  types: new Map(),
  texts: NO_TEXTS,
}

/** The first search starts the first refresh without waiting for it. */
export function openStatistics(connection: Connection): KeyStatistics {
  let snapshot = EMPTY
  let lookedAt = Number.NEGATIVE_INFINITY
  let isLooking = false
  let seen: string | undefined
  let isSettled = false
  let size: string | undefined

  let isIndexed = false

  async function refresh(): Promise<void> {
    snapshot = await readSnapshot(connection)
  }

  async function look(): Promise<void> {
    const { analyzed, sizes, revision } = await readAnalyzeState(connection)
    isIndexed = revision === INDEX_REVISION
    if (size !== undefined && size !== sizes) connection.renewPlans?.()
    size = sizes
    if (analyzed === seen && isSettled) return
    await refresh()
    // PostgreSQL reports an ANALYZE just before it commits, so the next check reads again.
    isSettled = analyzed === seen
    seen = analyzed
  }

  function current(): Snapshot {
    if (!isLooking && performance.now() - lookedAt > LOOK_MS) {
      isLooking = true
      lookedAt = performance.now()
      // With stale statistics results stay correct; only the plan may be worse.
      look()
        .catch(() => undefined)
        .finally(() => {
          isLooking = false
        })
    }
    return snapshot
  }

  const isIndexedNow = () => {
    current()
    return isIndexed
  }
  return createStatistics(refresh, current, isIndexedNow)
}

function createStatistics(
  refresh: () => Promise<void>,
  current: () => Snapshot,
  isIndexed: () => boolean,
): KeyStatistics {
  const knows = (project: number, type: number) => {
    const { projects, types } = current()
    return projects.has(project) && types.has(type)
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
    get isIndexed() {
      return isIndexed()
    },
    knows,
    typeRows: (project, type) => {
      const { rows, projects, types } = current()
      if (!knows(project, type)) return UNKNOWN_ROWS
      return rows * (projects.get(project) ?? 0) * (types.get(type) ?? 0)
    },
  }
}

interface State {
  /** Changes with each ANALYZE and VACUUM of these tables. */
  readonly analyzed: string
  /** Orders of magnitude of the tables: cached plans depend on them, and growth may come without an ANALYZE. */
  readonly sizes: string
  readonly revision: number | null
}

async function readAnalyzeState(connection: Connection): Promise<State> {
  const [row] = await connection.query<State>({
    name: 'last-analyzed',
    text: `select string_agg(concat_ws(' ', c.reltuples, pg_stat_get_last_analyze_time(c.oid),
          pg_stat_get_last_autoanalyze_time(c.oid)), ',')
          filter (where c.relname in ('resource', 'idx_string')) as analyzed,
        string_agg(round(log(4, greatest(pg_relation_size(c.oid), 8192)))::text, ' ') as sizes,
        (select min(rev) from index_revision) as revision
      from pg_class c where c.oid in ('resource'::regclass, 'idx_string'::regclass,
        'idx_range'::regclass, 'version'::regclass)`,
    isMaintenance: true,
  })
  return row ?? { analyzed: '', sizes: '', revision: null }
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
      ) with ordinality as x(value, frequency)
      where s.schemaname = c.relnamespace::regnamespace::text and s.tablename = 'resource'
        and s.attname in ('keys', 'project', 'type') and x.value is not null`,
    isMaintenance: true,
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

interface TextStatistics {
  readonly rows: number
  /** Frequencies are 0 to 1. */
  readonly common: readonly { readonly value: string; readonly frequency: number }[]
  /** Equal numbers of other values lie between two bounds. */
  readonly bounds: readonly string[]
}

async function readTextStatistics(connection: Connection): Promise<TextStatistics> {
  const [found] = await connection.query<{
    rows: number
    values: string[] | null
    frequencies: number[] | null
    bounds: string[] | null
  }>({
    text: `
      select greatest(c.reltuples, 0)::float8 as rows, s.most_common_vals::text::text[] as values,
        s.most_common_freqs as frequencies, s.histogram_bounds::text::text[] as bounds
      from pg_stats s join pg_class c on c.oid = 'idx_string'::regclass
      where s.schemaname = c.relnamespace::regnamespace::text and s.tablename = c.relname
        and s.attname = 'v'`,
    isMaintenance: true,
  })
  if (found === undefined) return NO_TEXTS
  const { rows, values, frequencies, bounds } = found
  const common = (values ?? []).map((value, i) => ({ value, frequency: frequencies?.[i] ?? 0 }))
  return { rows, common, bounds: bounds ?? [] }
}

/** 0 if none is common. */
function rowsStartingWith({ rows, common, bounds }: TextStatistics, text: string): number {
  const isStart = (value: string) => value.startsWith(text)
  const sum = (found: TextStatistics['common']) =>
    found.reduce((total, { frequency }) => total + frequency, 0)
  const others = bounds.length === 0 ? 0 : bounds.filter(isStart).length / bounds.length
  return rows * (sum(common.filter(({ value }) => isStart(value))) + others * (1 - sum(common)))
}

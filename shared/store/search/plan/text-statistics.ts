/** How many strings begin with a text, from PostgreSQL's own statistics of `idx_string.v`. */
import type { Connection } from '../../../platform/postgres/statement.ts'

export interface TextStatistics {
  readonly rows: number
  /** Values of which it knows how frequent they are, 0 to 1. */
  readonly common: readonly { readonly value: string; readonly frequency: number }[]
  /** Between two of them lie equally many of the other values. */
  readonly bounds: readonly string[]
}

export const NO_TEXTS: TextStatistics = { rows: 0, common: [], bounds: [] }

export async function readTextStatistics(connection: Connection): Promise<TextStatistics> {
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
    values: [],
    isUpkeep: true,
  })
  if (found === undefined) return NO_TEXTS
  const { rows, values, frequencies, bounds } = found
  const common = (values ?? []).map((value, i) => ({ value, frequency: frequencies?.[i] ?? 0 }))
  return { rows, common, bounds: bounds ?? [] }
}

/** Rows of all parameters and Projects; 0 where none is common. */
export function rowsStartingWith({ rows, common, bounds }: TextStatistics, text: string): number {
  const isStart = (value: string) => value.startsWith(text)
  const sum = (found: TextStatistics['common']) =>
    found.reduce((total, { frequency }) => total + frequency, 0)
  const others = bounds.length === 0 ? 0 : bounds.filter(isStart).length / bounds.length
  return rows * (sum(common.filter(({ value }) => isStart(value))) + others * (1 - sum(common)))
}

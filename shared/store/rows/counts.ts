/** Caches exact counts. An unchanged snapshot means the count is exact; any commit in the cluster ends it. */
import { batchPerTick } from '../../core/batching.ts'
import { Cache } from '../../core/cache.ts'
import type { Connection, Statement } from '../../postgres/statement.ts'

interface Counted {
  readonly count: number
  readonly state: string | null
}

const CHARACTERS = 4_000_000
const ENTRY = 100

/** Below this, counting costs about as much as checking the snapshot. */
const FEW = 200

/** Standbys may repeat a snapshot; restarted servers may repeat transaction ids. */
const STATE = `case when pg_is_in_recovery() then null
  else pg_current_snapshot()::text || pg_postmaster_start_time() end as state`

export class KnownCounts {
  readonly #counts = new Cache<string, Counted>({
    name: 'counts',
    max: CHARACTERS,
    size: (_, name) => name.length + ENTRY,
  })
  /** All that ask in one turn share a look. */
  readonly #look: (ask: 'now') => Promise<string | null>

  constructor(primary: Connection) {
    this.#look = batchPerTick(async (asks) => {
      const state = await lookNow(primary)
      return asks.map(() => state)
    })
  }

  async count(connection: Connection, statement: Statement): Promise<number> {
    const name = JSON.stringify([statement.text, ...statement.values.map(stringifyBigint)])
    const known = this.#counts.get(name)
    if (known !== undefined && (await this.#look('now')) === known.state) return known.count
    const counted = await countNow(connection, statement)
    if (counted.state === null || counted.count < FEW) this.#counts.delete(name)
    else this.#counts.set(name, counted)
    return counted.count
  }
}

async function lookNow(primary: Connection): Promise<string | null> {
  const [row] = await primary.query<{ state: string | null }>({
    name: 'state',
    isPipelined: true,
    text: `select ${STATE}`,
    values: [],
  })
  return row?.state ?? null
}

/** Counts without the cache: a transaction sees its own changes. */
export async function countNow(connection: Connection, statement: Statement): Promise<Counted> {
  const text = `select count(*)::int as count, ${STATE} from (${statement.text}) r`
  const [row] = await connection.query<Counted>({ ...statement, text })
  return row ?? { count: 0, state: null }
}

const stringifyBigint = (value: unknown) => (typeof value === 'bigint' ? String(value) : value)

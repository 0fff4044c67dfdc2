/** Caches counts. An unchanged snapshot means that the count still holds; any commit in the cluster ends it. */
import { batchPerTick } from '../../core/batching.ts'
import { Cache } from '../../core/cache.ts'
import type { Connection, Statement } from '../../postgres/statement.ts'

export interface Total {
  readonly count: number
  readonly isEstimate: boolean
}

interface Counted extends Total {
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
  /** Callers in one turn share a check. */
  readonly #look: (ask: 'now') => Promise<string | null>

  constructor(primary: Connection) {
    this.#look = batchPerTick(async (asks) => {
      const state = await lookNow(primary)
      return asks.map(() => state)
    })
  }

  /** Runs a statement that selects a Total, unless its last one still holds. */
  async count(connection: Connection, statement: Statement): Promise<Total> {
    const name = JSON.stringify([statement.text, ...(statement.values ?? []).map(stringifyBigint)])
    const known = this.#counts.get(name)
    if (known !== undefined && (await this.#look('now')) === known.state) return known
    const counted = await countNow(connection, statement)
    if (counted.state === null || counted.count < FEW) this.#counts.delete(name)
    else this.#counts.set(name, counted)
    return counted
  }
}

async function lookNow(primary: Connection): Promise<string | null> {
  const [row] = await primary.query<{ state: string | null }>({
    name: 'state',
    isPipelined: true,
    text: `select ${STATE}`,
  })
  return row?.state ?? null
}

/** Runs a statement that selects a Total, without the cache: a transaction sees its own changes. */
export async function countNow(connection: Connection, statement: Statement): Promise<Counted> {
  const text = `select c.count::int, c.estimated as "isEstimate", ${STATE}
    from (${statement.text}) c(count, estimated)`
  const [row] = await connection.query<Counted>({ ...statement, text })
  return row ?? { count: 0, isEstimate: false, state: null }
}

const stringifyBigint = (value: unknown) => (typeof value === 'bigint' ? String(value) : value)

/**
 * Counts that this process knows. PostgreSQL numbers what changes anything, whoever changed it, and a snapshot says which
 * of these numbers it sees: two snapshots that say the same see the same rows, so a count made under one of them is right
 * under the other. Whatever is committed in the cluster ends it, also what concerns other rows. A standby may say of two
 * states the same, so it says nothing.
 */

import { batchPerTick } from '../../core/batching.ts'
import { Cache } from '../../core/cache.ts'
import type { Connection, Statement } from '../../postgres/statement.ts'

interface Counted {
  readonly count: number
  readonly state: string | null
}

const CHARACTERS = 4_000_000
/** Characters of an entry beside its statement. */
const ENTRY = 100

/** To count fewer takes hardly longer than to look whether what is known still holds. */
const FEW = 200

/** A server that is started anew, or another one in its place, may give numbers a second time. */
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

  /** Counts what a statement selects, or answers what is known of it. */
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

/** Counts without a memory: a transaction sees what nobody else does. */
export async function countNow(connection: Connection, statement: Statement): Promise<Counted> {
  const text = `select count(*)::int as count, ${STATE} from (${statement.text}) r`
  const [row] = await connection.query<Counted>({ ...statement, text })
  return row ?? { count: 0, state: null }
}

const stringifyBigint = (value: unknown) => (typeof value === 'bigint' ? String(value) : value)

/** Caches exact counts. An unchanged snapshot means the count is exact; any commit in the cluster ends it. */
import { setImmediate as nextTurn } from 'node:timers/promises'
import { LRUCache } from 'lru-cache'
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
  readonly #primary: Connection
  readonly #counts = new LRUCache<string, Counted>({
    maxSize: CHARACTERS,
    sizeCalculation: (_, name) => name.length + ENTRY,
  })
  #looking: Promise<string | null> | undefined

  constructor(primary: Connection) {
    this.#primary = primary
  }

  async count(connection: Connection, statement: Statement): Promise<number> {
    const name = JSON.stringify([statement.text, ...statement.values.map(stringifyBigint)])
    const known = this.#counts.get(name)
    if (known !== undefined && (await this.#look()) === known.state) return known.count
    const counted = await countNow(connection, statement)
    if (counted.state === null || counted.count < FEW) this.#counts.delete(name)
    else this.#counts.set(name, counted)
    return counted.count
  }

  #look(): Promise<string | null> {
    this.#looking ??= this.#lookNext()
    return this.#looking
  }

  async #lookNext(): Promise<string | null> {
    await nextTurn()
    this.#looking = undefined
    const [row] = await this.#primary.query<{ state: string | null }>({
      name: 'state',
      isPipelined: true,
      text: `select ${STATE}`,
      values: [],
    })
    return row?.state ?? null
  }
}

/** Counts without the cache: a transaction sees its own changes. */
export async function countNow(connection: Connection, statement: Statement): Promise<Counted> {
  const text = `select count(*)::int as count, ${STATE} from (${statement.text}) r`
  const [row] = await connection.query<Counted>({ ...statement, text })
  return row ?? { count: 0, state: null }
}

const stringifyBigint = (value: unknown) => (typeof value === 'bigint' ? String(value) : value)

/** Work whose writes are undone, which makes no other transaction wait, and which its process forgets. */
import { AsyncLocalStorage } from 'node:async_hooks'
import { setTimeout as delay } from 'node:timers/promises'
import pLimit from 'p-limit'
import { businessRule } from '../core/errors.ts'
import type { Database } from '../postgres/database.ts'
import type { Connection, Statement } from '../postgres/statement.ts'
import { lockStatement, type Savepoints, type TransactionOptions } from '../postgres/transaction.ts'
import { Repository } from './repository.ts'
import type { StoreContext, WritePart } from './rows/context.ts'
import { fetchAll } from './rows/newest.ts'
import { writeStatement } from './rows/statements.ts'
import type { Written } from './rows/write-rows.ts'
import { inTransaction } from './transaction.ts'
import { createKeyedMutex } from './write/conditional.ts'
import { deleteStatement } from './write/deletions.ts'

/** Others wait for the locks of the work for about this long. */
const LOOK_MS = 100
/** Shorter than the time after which PostgreSQL looks for deadlocks, whose end might be that of another transaction. */
const LOCK_TIMEOUT = { text: `set local lock_timeout = '500ms'` }
const OWN_PROCESS = { text: 'select pg_backend_pid() as pid' }

/** Undoes all that the work does on the given Database. Calls `stop` if others wait for a row that it has locked. */
export async function rolledBack<T>(
  database: Database,
  stop: () => void,
  work: (inside: Database) => Promise<T>,
): Promise<T> {
  return await database.rolledBack(async (transaction) => {
    const inside = createDatabase(database, transaction)
    await inside.query(LOCK_TIMEOUT)
    const [own] = await inside.query<{ pid: number }>(OWN_PROCESS)
    const ended = new AbortController()
    const watching = watchLocks(database, own?.pid, ended.signal, stop)
    try {
      return await work(inside)
    } finally {
      ended.abort()
      await watching
    }
  })
}

async function watchLocks(
  database: Connection,
  process: number | undefined,
  signal: AbortSignal,
  stop: () => void,
): Promise<void> {
  for (;;) {
    await delay(LOOK_MS, undefined, { signal, ref: false }).catch(() => undefined)
    if (signal.aborted) return
    // Without an answer, others wait until they look again.
    const waiting = await database.query(findWaiting(process)).catch(() => [])
    if (waiting.length > 0) return stop()
  }
}

function findWaiting(process: number | undefined): Statement {
  return {
    name: 'waits-for-process',
    isMaintenance: true,
    text: 'select 1 from pg_locks where not granted and $1::int = any(pg_blocking_pids(pid)) limit 1',
    values: [process],
  }
}

/** Each statement and each transaction is a savepoint. */
// Isolation is READ COMMITTED: only the first statement of a transaction could ask for more.
function createDatabase(outer: Database, transaction: Savepoints): Database {
  const inTurn = pLimit(1)
  /** Set inside of a transaction, whose own calls of this Database belong to it. */
  const inside = new AsyncLocalStorage<true>()

  function part<T>(work: () => Promise<T>): Promise<T> {
    if (inside.getStore() === true) return work()
    return inTurn(() => inside.run(true, () => transaction.savepoint(work)))
  }

  const inner: Database = {
    knex: outer.knex,
    directUrl: outer.directUrl,
    get statements() {
      return outer.statements
    },
    get roundTrips() {
      return outer.roundTrips
    },
    get hasDiskSpace() {
      return outer.hasDiskSpace
    },
    query: <Row extends object>(statement: Statement) =>
      part(() => transaction.query<Row>(statement)),
    transaction: <T>(
      work: (connection: Connection) => Promise<T>,
      { locks = [] }: TransactionOptions = {},
    ) =>
      part(async () => {
        if (locks.length > 0) await transaction.query(lockStatement(locks))
        return await work(transaction)
      }),
    rolledBack: (work) => work(transaction),
    lane: () => inner,
    ping: () => outer.ping(),
    close: async () => {},
  }
  return inner
}

/**
 * `database` is that of `rolledBack`. Errors of writes: also 422 for `cached` types, of which processes would keep versions
 * that never come to be.
 */
export function rolledBackRepository(
  repository: Repository,
  database: Database,
  cached: ReadonlySet<string>,
): Repository {
  return repository.withStore((outer) => {
    const store: StoreContext = {
      ...outer,
      connection: database,
      submit: (write) => database.query<Written>(writeStatement([write])),
      fetch: async (key) => (await fetchAll(database, [key]))[0],
      remove: (deletion) => database.query(deleteStatement([deletion])),
      recent: undefined,
      counts: undefined,
      seenCodes: { has: (key) => outer.seenCodes.has(key), set: () => {} },
      holders: { has: (id) => outer.holders.has(id), set: () => {} },
      announce: () => {},
      written: async () => {},
      parts: [...outer.parts, refuseTypes(cached)],
      turns: createKeyedMutex(),
      transact: (work, locks) =>
        inTransaction(database, store, (inner) => work(inner.store), { locks }),
    }
    return new Repository(store, { database, replicas: undefined })
  })
}

function refuseTypes(types: ReadonlySet<string>): WritePart {
  return {
    types,
    buildRow({ resource: { resourceType } }) {
      throw businessRule(`A dry run does not write a ${resourceType}`, resourceType)
    },
  }
}

/** A pipelined transaction: `begin` and the locks leave with the first statement, and an empty one costs nothing. */
import { arrayLiteral, type Connection, type Statement } from './statement.ts'

export interface TransactionOptions {
  /** REPEATABLE READ for all statements; otherwise READ COMMITTED. */
  readonly oneState?: boolean
  /** Advisory locks held until the end, taken in this order and before the snapshot. */
  readonly locks?: readonly bigint[]
}

export interface TransactionPool<Raw> {
  acquire(): Promise<Raw>
  send<Row extends object>(connection: Raw, statement: Statement): Promise<Row[]>
  /** Returns the connection to the pool; discards it on failure. */
  release(connection: Raw, failure?: unknown): Promise<void>
  /** Set where a pooler may change the session per transaction: runs work that holds a second connection. */
  readonly withSecondConnection?: (<T>(work: () => Promise<T>) => Promise<T>) | undefined
}

export async function runTransaction<Raw, T>(
  pool: TransactionPool<Raw>,
  work: (connection: Connection) => Promise<T>,
  options: TransactionOptions = {},
): Promise<T> {
  const { oneState = false, locks = [] } = options
  if (pool.withSecondConnection !== undefined && oneState && locks.length > 0) {
    return await pool.withSecondConnection(() => runWithSeparateLocks(pool, work, locks))
  }
  const transaction = new Transaction(pool, options)
  try {
    const result = await work(transaction)
    await transaction.commit()
    return result
  } catch (error) {
    await transaction.abandon()
    throw error
  }
}

/** A transaction of parts that can fail on their own. */
export interface Savepoints extends Connection {
  /** Undoes the statements of failed work and continues. Parts must not overlap, but may contain others. */
  savepoint<T>(work: () => Promise<T>): Promise<T>
}

/** Undoes everything, after success as well. */
export async function runRolledBack<Raw, T>(
  pool: TransactionPool<Raw>,
  work: (transaction: Savepoints) => Promise<T>,
): Promise<T> {
  const transaction = new Transaction(pool, {})
  try {
    return await work(transaction)
  } finally {
    await transaction.abandon()
  }
}

/** Holds the locks in a second transaction where session locks are impossible. */
function runWithSeparateLocks<Raw, T>(
  pool: TransactionPool<Raw>,
  work: (connection: Connection) => Promise<T>,
  locks: readonly bigint[],
): Promise<T> {
  const holdsThem = { text: 'select 1' }
  const run = async (holder: Connection) => {
    await holder.query(holdsThem)
    const guarded = async (connection: Connection) => {
      const result = await work(skipHeldLocks(connection, locks))
      // Commit only while the locks are held.
      await holder.query(holdsThem)
      return result
    }
    return await runTransaction(pool, guarded, { oneState: true })
  }
  return runTransaction(pool, run, { locks })
}

/** Skips locks that the transaction already holds, which would deadlock here. */
function skipHeldLocks(connection: Connection, held: readonly bigint[]): Connection {
  return {
    query: async (statement) => {
      if (statement.locks === undefined) return await connection.query(statement)
      const others = statement.locks.filter((lock) => !held.includes(lock))
      return others.length === 0 ? [] : await connection.query(lockStatement(others))
    },
  }
}

class Transaction<Raw> implements Savepoints {
  readonly #pool: TransactionPool<Raw>
  readonly #frame: ReturnType<typeof buildTransactionFrame>
  #opened: Promise<Raw> | undefined
  #lost: { readonly reason: unknown } | undefined
  #hasEnded = false
  #last: Promise<unknown> = Promise.resolve()

  constructor(pool: TransactionPool<Raw>, options: TransactionOptions) {
    this.#pool = pool
    this.#frame = buildTransactionFrame(options)
  }

  async query<Row extends object>(statement: Statement): Promise<Row[]> {
    this.#opened ??= this.#open()
    const connection = await this.#opened
    if (this.#hasEnded) throw new Error('A statement was sent after the end of its transaction')
    return this.#sendAfterOthers<Row>(connection, statement)
  }

  async savepoint<T>(work: () => Promise<T>): Promise<T> {
    await this.query(SAVEPOINT)
    try {
      const result = await work()
      await this.query(RELEASE)
      return result
    } catch (error) {
      await this.#last
      this.#lost = undefined
      // Fails on a lost connection, as do all later parts.
      await Promise.allSettled([this.query(UNDO), this.query(RELEASE)])
      throw error
    }
  }

  async commit(): Promise<void> {
    const connection = await this.#opened
    this.#hasEnded = true
    if (connection === undefined) return
    // Statements that were not awaited can fail the transaction too.
    await this.#last
    if (this.#lost !== undefined) throw this.#lost.reason
    await Promise.all(this.#frame.ending.map((statement) => this.#pool.send(connection, statement)))
    await this.#pool.release(connection)
  }

  async abandon(): Promise<void> {
    this.#hasEnded = true
    const connection = await this.#opened?.catch(() => undefined)
    if (connection === undefined) return
    const failures = await Promise.allSettled(
      this.#frame.abandoning.map((statement) => this.#pool.send(connection, statement)),
    )
    await this.#pool.release(connection, failures.find((one) => one.status === 'rejected')?.reason)
  }

  async #open(): Promise<Raw> {
    const connection = await this.#pool.acquire()
    for (const statement of this.#frame.opening) {
      void this.#sendAfterOthers(connection, statement).catch(() => {})
    }
    return connection
  }

  #sendAfterOthers<Row extends object>(connection: Raw, statement: Statement): Promise<Row[]> {
    const sent = this.#send<Row>(connection, statement)
    this.#last = sent.catch(() => undefined)
    return sent
  }

  async #send<Row extends object>(connection: Raw, statement: Statement): Promise<Row[]> {
    try {
      const rows = await this.#pool.send<Row>(connection, statement)
      if (this.#lost === undefined) return rows
    } catch (error) {
      // Only the first failure is meaningful: PostgreSQL rejects everything after it.
      this.#lost ??= { reason: error }
    }
    throw this.#lost.reason
  }
}

/** With REPEATABLE READ the first statement fixes the snapshot, so session locks are taken before `begin`. */
function buildTransactionFrame({ oneState = false, locks = [] }: TransactionOptions) {
  const held = locks.length > 0
  const begin = { text: oneState ? 'begin isolation level repeatable read' : 'begin' }
  const unlock = held && oneState ? [{ text: 'select pg_advisory_unlock_all()' }] : []
  const lock = held ? [lockStatement(locks, oneState ? 'pg_advisory_lock' : XACT_LOCK)] : []
  return {
    opening: oneState ? [...lock, begin] : [begin, ...lock],
    ending: [{ text: 'commit' }, ...unlock],
    abandoning: [{ text: 'rollback' }, ...unlock],
  }
}

// An inner savepoint hides an outer one of its name until it is released.
const SAVEPOINT = { text: 'savepoint part' }
const RELEASE = { text: 'release savepoint part' }
const UNDO = { text: 'rollback to savepoint part' }

const XACT_LOCK = 'pg_advisory_xact_lock'

export function lockStatement(locks: readonly bigint[], how = XACT_LOCK): Statement {
  return {
    name: how,
    locks,
    text: `select ${how}(k) from unnest($1::bigint[]) k`,
    values: [arrayLiteral(locks)],
  }
}

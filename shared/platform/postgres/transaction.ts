/**
 * A transaction on one connection. Statements are sent while those before them still run, so what does
 * not wait for an answer shares a round trip: `begin` and the locks go out together with the first
 * statement, and a transaction that sends none costs nothing.
 */
import type { Connection, Statement } from './statement.ts'

export interface TransactionOptions {
  /** All statements see one state (REPEATABLE READ); without, each sees its own (READ COMMITTED). */
  readonly oneState?: boolean
  /** Advisory locks, held until the end; taken in this order, and before that state is chosen. */
  readonly locks?: readonly bigint[]
}

/** What a transaction needs of the pool. */
export interface TransactionPool<Raw> {
  acquire(): Promise<Raw>
  send<Row extends object>(connection: Raw, statement: Statement): Promise<Row[]>
  /** Into the pool again; with a failure, never again. */
  release(connection: Raw, failure?: unknown): Promise<void>
}

/** Errors: those of `work`; the first failure of a statement, whichever came after it. */
export async function runTransaction<Raw, T>(
  pool: TransactionPool<Raw>,
  work: (connection: Connection) => Promise<T>,
  options: TransactionOptions = {},
): Promise<T> {
  const { opening, ending, abandoning } = frameOf(options)
  let opened: Promise<Raw> | undefined
  let lost: { readonly reason: unknown } | undefined
  let hasEnded = false
  let last: Promise<unknown> = Promise.resolve()

  const send = async <Row extends object>(connection: Raw, statement: Statement) => {
    try {
      const rows = await pool.send<Row>(connection, statement)
      if (lost === undefined) return rows
    } catch (error) {
      // Only the first failure has a reason of its own: PostgreSQL refuses whatever comes after it.
      lost ??= { reason: error }
    }
    throw lost.reason
  }
  const sendAfterOthers = <Row extends object>(connection: Raw, statement: Statement) => {
    const sent = send<Row>(connection, statement)
    last = sent.catch(() => undefined)
    return sent
  }
  const open = async () => {
    const connection = await pool.acquire()
    for (const statement of opening) void sendAfterOthers(connection, statement).catch(() => {})
    return connection
  }
  const query = async <Row extends object>(statement: Statement) => {
    opened ??= open()
    const connection = await opened
    if (hasEnded) throw new Error('A statement was sent after the end of its transaction')
    return sendAfterOthers<Row>(connection, statement)
  }

  try {
    const result = await work({ query })
    const connection = await opened
    hasEnded = true
    if (connection === undefined) return result
    // A statement that nobody waited for counts, too.
    await last
    if (lost !== undefined) throw lost.reason
    await Promise.all(ending.map((statement) => pool.send(connection, statement)))
    await pool.release(connection)
    return result
  } catch (error) {
    hasEnded = true
    const connection = await opened?.catch(() => undefined)
    if (connection !== undefined) {
      const failures = await Promise.allSettled(
        abandoning.map((statement) => pool.send(connection, statement)),
      )
      await pool.release(connection, failures.find(isRejected)?.reason)
    }
    throw error
  }
}

function isRejected(result: PromiseSettledResult<unknown>): result is PromiseRejectedResult {
  return result.status === 'rejected'
}

/**
 * A state is chosen by the first statement, so where there is one for all the locks come before
 * `begin` and belong to the session: a lock that had to be waited for would else be followed by a look
 * at what was there before.
 */
function frameOf({ oneState = false, locks = [] }: TransactionOptions) {
  const held = locks.length > 0
  const begin = statementOf(oneState ? 'begin isolation level repeatable read' : 'begin')
  const unlock = held && oneState ? [statementOf('select pg_advisory_unlock_all()')] : []
  const lock = held ? [lockStatement(locks, oneState ? 'pg_advisory_lock' : XACT_LOCK)] : []
  return {
    opening: oneState ? [...lock, begin] : [begin, ...lock],
    ending: [statementOf('commit'), ...unlock],
    abandoning: [statementOf('rollback'), ...unlock],
  }
}

const XACT_LOCK = 'pg_advisory_xact_lock'

/** Takes advisory locks until the transaction ends. */
export function lockStatement(locks: readonly bigint[], how = XACT_LOCK): Statement {
  return {
    name: how,
    text: `select ${how}(k) from unnest($1::bigint[]) k`,
    values: [`{${locks.join(',')}}`],
  }
}

function statementOf(text: string): Statement {
  return { text, values: [] }
}

/** PostgreSQL client: knex provides the pool; pg prepares and sends hot statements, in transactions too. */

import { AsyncLocalStorage } from 'node:async_hooks'
import { setTimeout as delay } from 'node:timers/promises'
import type { Knex } from 'knex'
import pLimit from 'p-limit'
import { type ConnectionConfig, Connection as PgConnection } from 'pg'
import { StorageFull, unavailable } from '../core/errors.ts'
import type { Logger } from '../core/log.ts'
import { CachedStatements } from './cached-statements.ts'
import { dialect } from './chosen-dialect.ts'
import { PipelinedPool, STUCK_MS } from './pipelined-pool.ts'
import {
  askRows,
  type DatabaseConfig,
  discard,
  isUsable,
  openKnex,
  type RawConnection,
  type RawPool,
  rawPool,
  STATEMENT_TIMEOUT_MS,
} from './pool.ts'
import { isConnectionLost, toFailure } from './sql-error.ts'
import type { Connection, Statement } from './statement.ts'
import {
  runRolledBack,
  runTransaction,
  type Savepoints,
  type TransactionOptions,
  type TransactionPool,
} from './transaction.ts'

export interface Database extends Connection {
  readonly knex: Knex
  /** The address of PostgreSQL itself when the pool connects through a pooler. */
  readonly directUrl: string | undefined
  /** Statements sent for requests since the process started. */
  readonly statements: number
  /** Times an idle connection was given work. */
  readonly roundTrips: number
  transaction<T>(
    work: (connection: Connection) => Promise<T>,
    options?: TransactionOptions,
  ): Promise<T>
  /** A transaction that is undone at its end, see rolled-back.ts. */
  rolledBack<T>(work: (transaction: Savepoints) => Promise<T>): Promise<T>
  /** A connection outside the pool whose prepared statements stay warm. Statements are pipelined and commit singly. */
  lane(): Connection
  /** False for a minute after PostgreSQL ran out of space. */
  readonly hasDiskSpace: boolean
  /** Milliseconds of `select 1`. Throws when PostgreSQL is unavailable. */
  ping(): Promise<number>
  close(): Promise<void>
}

/** Exceeds PostgreSQL's own statement timeout: without an answer by then the server or the network is gone. */
const SILENCE_MS = STATEMENT_TIMEOUT_MS + 5000
const FULL_MS = 60_000

/** Opens no connection: the first statement does. */
export function openDatabase(
  config: DatabaseConfig,
  log: Logger,
  silenceMs = SILENCE_MS,
  stuckMs = STUCK_MS,
): Database {
  return new PooledDatabase(config, log, silenceMs, stuckMs)
}

class PooledDatabase implements Database {
  readonly knex: Knex
  readonly directUrl: string | undefined
  readonly #pool: RawPool
  readonly #log: Logger
  readonly #silenceMs: number
  readonly #lanes: (() => Promise<void>)[] = []
  readonly #pipelined: PipelinedPool
  readonly #kept = new CachedStatements()
  readonly #inFlight = new WeakMap<RawConnection, number>()
  readonly #withSecondConnection: TransactionPool<RawConnection>['withSecondConnection']
  #statements = 0
  #roundTrips = 0
  #isAway = false
  #isClosing = false
  #fullAt = Number.NEGATIVE_INFINITY

  constructor(config: DatabaseConfig, log: Logger, silenceMs: number, stuckMs: number) {
    this.knex = openKnex(config, log)
    this.#pool = rawPool(this.knex)
    this.#log = log
    this.#silenceMs = silenceMs
    this.directUrl = config.databaseDirectUrl
    // Each holds two connections; the pool keeps enough for them to finish.
    const most = Math.floor(config.databasePool / 4)
    this.#withSecondConnection = config.databaseDirectUrl === undefined ? undefined : pLimit(most)
    const transport = {
      open: () => this.#acquirePipelined(),
      send: (connection: RawConnection, statement: Statement) => this.#send(connection, statement),
      alone: (statement: Statement, signal: AbortSignal | undefined) =>
        signal === undefined ? this.#queryAlone(statement) : this.#queryUntil(signal, statement),
      release: (connection: RawConnection) => this.#releasePipelined(connection),
      end: (connection: RawConnection, over: AbortSignal) => {
        discard(connection)
        return cancelStatements(connection, over, log)
      },
    }
    this.#pipelined = new PipelinedPool(transport, config.databasePool, stuckMs)
  }

  get statements(): number {
    return this.#statements
  }

  get hasDiskSpace(): boolean {
    return performance.now() - this.#fullAt > FULL_MS
  }

  get roundTrips(): number {
    return this.#roundTrips
  }

  query<Row extends object>(statement: Statement): Promise<Row[]> {
    return (this.#pipelined.take(statement) ?? this.#queryAlone(statement)) as Promise<Row[]>
  }

  async #queryAlone<Row extends object>(statement: Statement): Promise<Row[]> {
    const connection = await this.#acquire()
    try {
      return await this.#send<Row>(connection, statement)
    } finally {
      await this.#pool.releaseConnection(connection)
    }
  }

  until(signal: AbortSignal): Connection {
    return {
      query: async <Row extends object>(statement: Statement) => {
        signal.throwIfAborted()
        const rows = this.#pipelined.take(statement, signal) ?? this.#queryUntil(signal, statement)
        return (await rows) as Row[]
      },
    }
  }

  renewPlans(): void {
    this.#kept.renew()
  }

  async #queryUntil<Row extends object>(signal: AbortSignal, statement: Statement): Promise<Row[]> {
    signal.throwIfAborted()
    const connection = await this.#acquire()
    const over = new AbortController()
    let cancelling: Promise<void> | undefined
    const cancel = () => {
      // A late cancel request may hit the connection's next statement, so it gets none.
      discard(connection)
      cancelling = cancelStatements(connection, over.signal, this.#log)
    }
    try {
      signal.throwIfAborted()
      signal.addEventListener('abort', cancel)
      return await this.#send<Row>(connection, statement)
    } catch (error) {
      signal.throwIfAborted()
      throw error
    } finally {
      signal.removeEventListener('abort', cancel)
      over.abort()
      await cancelling
      await this.#pool.releaseConnection(connection)
    }
  }

  async transaction<T>(
    work: (connection: Connection) => Promise<T>,
    options?: TransactionOptions,
  ): Promise<T> {
    return runTransaction(this.#transactionPool(), work, options)
  }

  rolledBack<T>(work: (transaction: Savepoints) => Promise<T>): Promise<T> {
    return runRolledBack(this.#transactionPool(), work)
  }

  #transactionPool(): TransactionPool<RawConnection> {
    return {
      withSecondConnection: this.#withSecondConnection,
      acquire: () => this.#acquirePipelined(),
      send: (connection, statement) => this.#send(connection, statement),
      release: (connection, failure) => {
        if (failure !== undefined) discard(connection)
        return this.#releasePipelined(connection)
      },
    }
  }

  lane(): Connection {
    let opening: Promise<RawConnection> | undefined
    const close = async () => {
      const connection = await opening?.catch(() => undefined)
      opening = undefined
      if (connection !== undefined) await this.#releasePipelined(connection)
    }
    this.#lanes.push(close)
    const connected = async () => {
      opening ??= this.#acquirePipelined()
      const used = opening
      const connection = await used.catch((error: unknown) => {
        if (opening === used) opening = undefined
        throw error
      })
      if (isUsable(connection)) return connection
      if (opening === used) await close()
      return connected()
    }
    return { query: async (statement) => this.#send(await connected(), statement) }
  }

  async ping(): Promise<number> {
    const start = performance.now()
    await this.query({ text: 'select 1' })
    return performance.now() - start
  }

  async close(): Promise<void> {
    this.#isClosing = true
    for (const release of this.#lanes) await release()
    await this.#pipelined.close()
    await this.knex.destroy()
  }

  async #acquire(): Promise<RawConnection> {
    try {
      return await this.#pool.acquireConnection()
    } catch (error) {
      this.#noteAway(error)
      throw unavailable('Database', error)
    }
  }

  async #acquirePipelined(): Promise<RawConnection> {
    const connection = await this.#acquire()
    connection.pipeline = true
    return connection
  }

  async #releasePipelined(connection: RawConnection): Promise<void> {
    connection.pipeline = false
    await this.#pool.releaseConnection(connection)
  }

  #send<Row extends object>(connection: RawConnection, statement: Statement): Promise<Row[]> {
    return dialect.run<Row>(statement, (one) => this.#sendOne(connection, one))
  }

  async #sendOne<Row extends object>(
    connection: RawConnection,
    statement: Statement,
  ): Promise<Row[]> {
    const inFlight = this.#inFlight.get(connection) ?? 0
    if (statement.isMaintenance !== true) {
      this.#statements += 1
      if (inFlight === 0) this.#roundTrips += 1
    }
    this.#inFlight.set(connection, inFlight + 1)
    const startedAt = performance.now()
    try {
      const sent = this.#kept.named(connection, statement)
      const rows = await askRows<Row>(connection, sent, this.#silenceMs)
      if (this.#isAway) this.#log.info('PostgreSQL is back')
      this.#isAway = false
      return rows
    } catch (error) {
      const failure = toFailure(error, statement)
      if (failure instanceof StorageFull && this.hasDiskSpace) {
        this.#fullAt = performance.now()
        this.#log.error({ cause: failure.cause }, 'PostgreSQL has no room left')
      }
      if (isConnectionLost(failure)) {
        discard(connection)
        this.#noteAway(error)
      }
      throw failure
    } finally {
      countDatabaseTime(startedAt)
      this.#inFlight.set(connection, (this.#inFlight.get(connection) ?? 1) - 1)
    }
  }

  /** Logged once per outage. A busy or closed pool is not an outage. */
  #noteAway(error: unknown): void {
    if (
      this.#isClosing ||
      this.#isAway ||
      !(error instanceof Error) ||
      error.name === 'KnexTimeoutError'
    )
      return
    this.#isAway = true
    this.#log.error({ reason: error.message }, 'PostgreSQL is away')
  }
}

// The protocol's cancel request needs no pool slot, no login and no server connection, and poolers forward it.
// https://www.postgresql.org/docs/current/protocol-flow.html#PROTOCOL-FLOW-CANCELING-REQUESTS

const AGAIN_MS = 200
const ANSWER_MS = 2000

interface Place {
  readonly host: string
  readonly port: number
  readonly ssl: ConnectionConfig['ssl'] | false
  readonly secretKey: number
}

interface Wire {
  connect(port: number | string, host?: string): void
  requestSsl(): void
  cancel(processId: number, secretKey: number): void
}

/** Repeats the request until `over`, since it may arrive before its statement. Does not throw: a timeout ends that. */
async function cancelStatements(
  connection: RawConnection,
  over: AbortSignal,
  log: Logger,
): Promise<void> {
  let isLogged = false
  while (!over.aborted) {
    await requestCancel(connection).catch((error: Error) => {
      if (!isLogged) log.warn({ reason: error.message }, 'A statement was not cancelled')
      isLogged = true
    })
    await delay(AGAIN_MS, undefined, { signal: over, ref: false }).catch(() => undefined)
  }
}

/** Resolves when the server closes the connection, which is its only answer. */
function requestCancel(client: RawConnection): Promise<void> {
  const { host, port, ssl, secretKey } = client as RawConnection & Place
  return new Promise((resolve, reject) => {
    const connection = new PgConnection({ ssl: ssl || undefined }) as PgConnection & Wire
    const timer = setTimeout(() => connection.stream.destroy(new Error('No answer')), ANSWER_MS)
    const send = () => connection.cancel(client.processID, secretKey)
    connection.on('connect', () => (ssl ? connection.requestSsl() : send()))
    connection.on('sslconnect', send)
    connection.on('error', reject)
    connection.on('end', () => {
      clearTimeout(timer)
      resolve()
    })
    if (host.startsWith('/')) connection.connect(`${host}/.s.PGSQL.${port}`)
    else connection.connect(port, host)
  })
}

/* Database wait time of a request, for `Server-Timing`. */

const asked = new AsyncLocalStorage<{ ms: number }>()

/** Measures the milliseconds spent in statements during `work`; a shared statement counts for one request. */
export async function measureDatabaseTime<T>(
  work: () => Promise<T>,
): Promise<{ readonly result: T; readonly ms: number }> {
  const time = { ms: 0 }
  const result = await asked.run(time, work)
  return { result, ms: time.ms }
}

export function countDatabaseTime(startedAt: number): void {
  const time = asked.getStore()
  if (time !== undefined) time.ms += performance.now() - startedAt
}

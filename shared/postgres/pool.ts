/** Raw pg connections below knex, and knex's log. */

import createKnex, { type Knex } from 'knex'
import { type Client, Query, types } from 'pg'
import type { Config } from '../core/config/config.ts'
import type { Logger } from '../core/log.ts'
import type { Statement, WireConnection } from './statement.ts'

export interface RawConnection extends Client {
  pipeline: boolean
  readonly processID: number
  readonly connection: WireConnection
}

/** The public members of `Knex.Client` that are used, with the types of pg and of tarn, knex's pool. */
export interface RawPool extends Pick<Knex.Client, 'config'> {
  acquireConnection(): Promise<RawConnection>
  releaseConnection(connection: RawConnection): Promise<void>
  /** Undefined once closed. */
  readonly pool?: Readonly<Record<'numUsed' | 'numFree' | 'numPendingAcquires', () => number>>
}

export const STATEMENT_TIMEOUT_MS = 20_000
export const LOCK_TIMEOUT_MS = 3000
const ACQUIRE_TIMEOUT_MS = 5000

export type DatabaseConfig = Pick<Config, 'databaseUrl' | 'databasePool'> &
  Partial<Pick<Config, 'databaseTlsInsecure' | 'databaseDirectUrl'>>

const SESSION = {
  // Searches contain branches that may not run; their estimated cost alone would trigger a slow JIT compilation.
  options: '-c jit=off',
  statement_timeout: STATEMENT_TIMEOUT_MS,
  lock_timeout: LOCK_TIMEOUT_MS,
}

/** Opens no connection: the first statement does. */
export function openKnex(config: DatabaseConfig, log: Logger): Knex {
  // knex's types omit options that it passes to pg.
  const settings = {
    connectionString: config.databaseUrl,
    // pg applies the URL last, so its TLS options are removed first.
    ...(config.databaseTlsInsecure ? { ssl: { rejectUnauthorized: false } } : {}),
    application_name: 'botica',
    // Poolers reject these: behind one the role has them (sessions.ts).
    ...(config.databaseDirectUrl === undefined ? SESSION : {}),
    connectionTimeoutMillis: ACQUIRE_TIMEOUT_MS,
    keepAlive: true,
    types: columnTypes,
  }
  return createKnex({
    client: 'pg',
    connection: settings,
    pool: { min: 0, max: config.databasePool, afterCreate: watchEnd, validate: isUsable },
    acquireConnectionTimeout: ACQUIRE_TIMEOUT_MS,
    log: knexLog(log),
  })
}

const unusable = new WeakSet<RawConnection>()

/** The pool does not hand the connection out again. */
export function discard(connection: RawConnection): void {
  unusable.add(connection)
}

export function isUsable(connection: RawConnection): boolean {
  return !unusable.has(connection)
}

function watchEnd(
  connection: RawConnection,
  done: (error: Error | undefined, connection: RawConnection) => void,
): void {
  const end = () => discard(connection)
  connection.on('error', end)
  connection.on('end', end)
  done(undefined, connection)
}

export function rawPool(knex: Knex): RawPool {
  // knex declares `client` as `any`.
  return knex.client as RawPool
}

/** Returns the rows; a timeout cuts the connection. Uses a callback: pg's promise would retain the rows for long. */
export function askRows<Row extends object>(
  connection: RawConnection,
  statement: Sent,
  silenceMs: number,
): Promise<Row[]> {
  return new Promise((resolve, reject) => {
    const timer = setTimeout(cutSilent, silenceMs, connection)
    // pg's types ask for a mutable array but pg does not change it.
    const values = (statement.values ?? []) as unknown[]
    const answered = (error: Error | null | undefined, result: Rows<Row>) => {
      clearTimeout(timer)
      if (error) reject(error)
      else resolve(result.rows)
    }
    // pg would copy a plain object property by property.
    const query = new (statement.hasBlocks ? BlockQuery : PreparedQuery)(
      statement.text,
      values,
      answered,
    )
    connection.query(Object.assign(query, { name: statement.name, columns: statement.columns }))
  })
}

interface Rows<Row> {
  readonly rows: Row[]
}

function cutSilent({ connection }: RawConnection): void {
  connection.stream.destroy(new Error('Query read timeout'))
}

function knexLog(log: Logger) {
  return {
    warn: (message: unknown) => {
      const [line = ''] = String(message).split('\n')
      // Repeats for each connection and attempt; the database logs an outage once.
      if (/connection error/i.test(line)) log.debug({ knex: line }, 'knex warning')
      else log.warn({ knex: line }, 'knex warning')
    },
    error: (message: unknown) => log.error({ knex: String(message) }, 'knex error'),
    deprecate: (method: string) => log.warn({ method }, 'knex deprecation'),
    debug: () => undefined,
  }
}

/**
 * Sends parameters from their own memory: pg copies all into one growing message.
 * https://www.postgresql.org/docs/current/protocol-message-formats.html#PROTOCOL-MESSAGE-FORMATS-BIND
 */
interface Bind {
  /** Absent for an unnamed statement. */
  readonly statement?: string
  readonly values: readonly unknown[]
}

class BlockQuery extends Query {
  prepare(connection: WireConnection): void {
    const bind = ({ statement = '', values }: Bind) => {
      for (const piece of bindMessage(statement, values)) connection.stream.write(piece)
    }
    prepareQuery.call(this, Object.create(connection, { bind: { value: bind } }))
  }
}

// Missing from pg's types.
const prepareQuery: (connection: WireConnection) => void = Object(Query.prototype).prepare

const NO_PORTAL = '\0'
const TEXT = 0
const BINARY = 1

function bindMessage(statement: string, values: readonly unknown[]): readonly Buffer[] {
  const blocks = values.map(encodeParameter)
  const name = Buffer.from(`${NO_PORTAL}${statement}\0`)
  const formats = words([values.length, ...values.map(parameterFormat), values.length])
  const parameters = blocks.flatMap((block) =>
    block === undefined ? [int32(-1)] : [int32(block.length), block],
  )
  const rest = [name, formats, ...parameters, words([1, TEXT])]
  const size = rest.reduce((sum, { length }) => sum + length, int32(0).length)
  return [Buffer.from('B'), int32(size), ...rest]
}

function encodeParameter(value: unknown): Buffer | undefined {
  if (value === null) return undefined
  return Buffer.isBuffer(value) ? value : Buffer.from(String(value))
}

function parameterFormat(value: unknown): number {
  return Buffer.isBuffer(value) ? BINARY : TEXT
}

function int32(value: number): Buffer {
  const bytes = Buffer.allocUnsafe(4)
  bytes.writeInt32BE(value)
  return bytes
}

function words(values: readonly number[]): Buffer {
  const bytes = Buffer.allocUnsafe(values.length * 2)
  for (const [i, value] of values.entries()) bytes.writeInt16BE(value, i * 2)
  return bytes
}

const NO_TLS = /no encryption|SSL off/
const NO_TLS_THERE = /does not support SSL/
/** Node's codes for an untrusted certificate: OpenSSL's, and a host name mismatch. */
const CERTIFICATE =
  /^(CERT_|ERR_TLS_CERT|UNABLE_TO_|DEPTH_ZERO_|SELF_SIGNED_|CA_|INVALID_(CA|PURPOSE)|PATH_LENGTH)/

/** Returns the reason of a permanent failure without a full stop or password. Class 28: login, 3D000: no such database. */
export function connectionErrorReason(error: unknown): string | undefined {
  const cause = error instanceof Error && error.cause !== undefined ? error.cause : error
  if (!(cause instanceof Error)) return undefined
  const code = 'code' in cause ? String(cause.code) : ''
  if (CERTIFICATE.test(code)) {
    return (
      `its certificate cannot be checked (${code}); DATABASE_TLS_INSECURE=true takes it unchecked, ` +
      'NODE_EXTRA_CA_CERTS names the file of its authority'
    )
  }
  if (/^unsupported startup parameter/.test(cause.message)) {
    return 'it is a pooler; set DATABASE_DIRECT_URL to the address of PostgreSQL itself, which the release step needs'
  }
  if (NO_TLS_THERE.test(cause.message)) {
    return 'it has no TLS; take sslmode out of DATABASE_URL, or DATABASE_TLS_INSECURE'
  }
  if (!/^(28...|3D000)$/.test(code)) return undefined
  if (!NO_TLS.test(cause.message)) return `${cause.message}; check DATABASE_URL`
  return (
    `it takes encrypted connections only; set DATABASE_TLS_INSECURE=true where its certificate is its own, ` +
    'or add ?sslmode=verify-full to DATABASE_URL'
  )
}

const TIMESTAMPTZ = 1184

export const columnTypes = {
  getTypeParser(oid: number, format?: string): (text: string) => unknown {
    if (format === 'binary') return types.getTypeParser(oid, 'binary')
    return oid === TIMESTAMPTZ ? readTimestamp : types.getTypeParser(oid, 'text')
  },
}

const usual = types.getTypeParser(TIMESTAMPTZ, 'text')
const [ZERO, DASH, COLON, SPACE, POINT] = [48, 45, 58, 32, 46]
const SECONDS_END = 19

function readTimestamp(text: string): Date {
  const end = text.length - 3
  const at = (place: number) => text.charCodeAt(place)
  const isUsual =
    end >= SECONDS_END &&
    at(4) === DASH &&
    at(7) === DASH &&
    at(10) === SPACE &&
    at(13) === COLON &&
    at(16) === COLON &&
    (end === SECONDS_END || at(SECONDS_END) === POINT) &&
    at(0) > ZERO &&
    text.endsWith('+00')
  // Other time zones, and years without four digits.
  if (!isUsual) return usual(text)
  const two = (place: number) => (at(place) - ZERO) * 10 + at(place + 1) - ZERO
  const fraction = (place: number) => (place < end ? at(place) - ZERO : 0)
  const ms = fraction(20) * 100 + fraction(21) * 10 + fraction(22)
  return new Date(
    Date.UTC(two(0) * 100 + two(2), two(5) - 1, two(8), two(11), two(14), two(17), ms),
  )
}

// Describe runs once: PostgreSQL rejects a prepared statement whose columns change.

interface Described {
  readonly fields: readonly object[]
  readonly _parsers: readonly unknown[] | undefined
  readonly _prebuiltEmptyResultObject: object | null
}

export interface Columns {
  /** Undefined until PostgreSQL has described them. */
  known: Described | undefined
  readonly wire: WireConnection
}

export interface Sent extends Statement {
  readonly columns?: Columns
}

/** Execute all, then Sync. https://www.postgresql.org/docs/current/protocol-message-formats.html */
const EXECUTE_AND_SYNC = Buffer.from('E\0\0\0\x09\0\0\0\0\0S\0\0\0\x04', 'latin1')

/** Wraps a connection to skip Describe and to send Execute and Sync in one write. */
export function skipDescribe(connection: WireConnection): WireConnection {
  let isSynced = false
  const execute = () => {
    connection.stream.write(EXECUTE_AND_SYNC)
    isSynced = true
  }
  // Sent alone when the values could not be written.
  const sync = () => {
    if (!isSynced) connection.sync()
    isSynced = false
  }
  const describe = () => undefined
  return Object.create(connection, {
    describe: { value: describe },
    execute: { value: execute },
    sync: { value: sync },
  })
}

const ofPg: {
  prepare(connection: WireConnection): void
  handleRowDescription(message: object): void
} = Object(Query.prototype)

class PreparedQuery extends Query {
  declare _result: Described & { _types: unknown }
  declare _accumulateRows: boolean
  columns: Columns | undefined

  prepare(connection: WireConnection): void {
    const { columns } = this
    if (columns?.known === undefined) {
      ofPg.prepare.call(this, connection)
      return
    }
    Object.assign(this._result, columns.known)
    this._accumulateRows = true
    ofPg.prepare.call(this, columns.wire)
  }

  handleRowDescription(message: object): void {
    ofPg.handleRowDescription.call(this, message)
    const { fields, _parsers, _prebuiltEmptyResultObject } = this._result
    if (this.columns) this.columns.known = { fields, _parsers, _prebuiltEmptyResultObject }
  }
}

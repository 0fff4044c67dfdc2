/** Raw connections below the interface of knex, and its log. */

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

// pg's types know less of it than there is.

export interface RawPool {
  acquireConnection(): Promise<RawConnection>
  releaseConnection(connection: RawConnection): Promise<void>
  readonly config: Knex.Config
}

export const STATEMENT_TIMEOUT_MS = 20_000
export const LOCK_TIMEOUT_MS = 3000
const ACQUIRE_TIMEOUT_MS = 5000

export type DatabaseConfig = Pick<Config, 'databaseUrl' | 'databasePool'> &
  Partial<Pick<Config, 'databaseTlsInsecure' | 'databaseDirectUrl'>>

const SESSION = {
  // A search holds ways that it may not take; their cost alone would have it compiled, for 0.1 s and more.
  options: '-c jit=off',
  statement_timeout: STATEMENT_TIMEOUT_MS,
  lock_timeout: LOCK_TIMEOUT_MS,
}

/** Opens no connection yet. */
export function openKnex(config: DatabaseConfig, log: Logger): Knex {
  // knex's types do not know all that it hands on to pg.
  const settings = {
    connectionString: config.databaseUrl,
    // pg reads the URL last: what it says of TLS goes first.
    ...(config.databaseTlsInsecure ? { ssl: { rejectUnauthorized: false } } : {}),
    application_name: 'botica',
    // Poolers refuse them: behind one the role has them (sessions.ts).
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
  // knex declares `client` as `any`; these members are what its own runner uses.
  return knex.client as RawPool
}

/**
 * Returns the rows of a statement; a connection without an answer for so long is cut. pg reports through a callback
 * here, not through its own promise or timeout: for those pg writes a function into a property, V8 makes such a
 * function old at once, and all that it can reach, the rows of the answer too, stays until the next collection of
 * old objects.
 */
export function askRows<Row extends object>(
  connection: RawConnection,
  statement: Sent,
  silenceMs: number,
): Promise<Row[]> {
  return new Promise((resolve, reject) => {
    const timer = setTimeout(cutSilent, silenceMs, connection)
    // pg's types ask for a mutable array; it does not change it.
    const values = statement.values as unknown[]
    const answered = (error: Error | null | undefined, result: Rows<Row>) => {
      clearTimeout(timer)
      if (error) reject(error)
      else resolve(result.rows)
    }
    // pg copies an object with text and name property by property, which takes 11 µs.
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
      // One for each connection and each attempt; that PostgreSQL is away is said once, by the database.
      if (/connection error/i.test(line)) log.debug({ knex: line }, 'knex warning')
      else log.warn({ knex: line }, 'knex warning')
    },
    error: (message: unknown) => log.error({ knex: String(message) }, 'knex error'),
    deprecate: (method: string) => log.warn({ method }, 'knex deprecation'),
    debug: () => undefined,
  }
}

/**
 * Statements whose parameters are sent as they stand in memory. pg copies all of them into one message, which it
 * makes larger again and again. Where a connection is slow to take messages of 1 MB each they become old, and V8
 * goes through all its objects to be rid of them: six times in an import of 15,000 lines, and once or twice without.
 * https://www.postgresql.org/docs/current/protocol-message-formats.html#PROTOCOL-MESSAGE-FORMATS-BIND
 */
interface Bind {
  /** Absent: it has no name. */
  readonly statement?: string
  readonly values: readonly unknown[]
}

/** Blocks are binary, anything else is text. */
class BlockQuery extends Query {
  /** As pg does it, but for the one message. */
  prepare(connection: WireConnection): void {
    const bind = ({ statement = '', values }: Bind) => {
      for (const piece of bindMessage(statement, values)) connection.stream.write(piece)
    }
    prepareQuery.call(this, Object.create(connection, { bind: { value: bind } }))
  }
}

// pg's types do not know it.
const prepareQuery: (connection: WireConnection) => void = Object(Query.prototype).prepare

const NO_PORTAL = '\0'
const TEXT = 0
const BINARY = 1

function bindMessage(statement: string, values: readonly unknown[]): readonly Buffer[] {
  const blocks = values.map(encodeParameter)
  const name = Buffer.from(`${NO_PORTAL}${statement}\0`)
  const formats = words([values.length, ...values.map(parameterFormat), values.length])
  const parameters = blocks.flatMap((block) =>
    block === undefined ? [long(-1)] : [long(block.length), block],
  )
  const rest = [name, formats, ...parameters, words([1, TEXT])]
  const size = rest.reduce((sum, { length }) => sum + length, long(0).length)
  return [Buffer.from('B'), long(size), ...rest]
}

function encodeParameter(value: unknown): Buffer | undefined {
  if (value === null) return undefined
  return Buffer.isBuffer(value) ? value : Buffer.from(String(value))
}

function parameterFormat(value: unknown): number {
  return Buffer.isBuffer(value) ? BINARY : TEXT
}

function long(value: number): Buffer {
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
/** Node's codes of a certificate that is not trusted: OpenSSL's own, and that of another name. */
const CERTIFICATE =
  /^(CERT_|ERR_TLS_CERT|UNABLE_TO_|DEPTH_ZERO_|SELF_SIGNED_|CA_|INVALID_(CA|PURPOSE)|PATH_LENGTH)/

/**
 * A reason that waiting does not mend, without a full stop; undefined for every other error. It never holds
 * a password. SQLSTATE class 28 is a wrong account or way in, 3D000 no such database.
 */
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
  if (!NO_TLS.test(cause.message)) return `${cause.message}; look at DATABASE_URL`
  return (
    `it takes encrypted connections only; set DATABASE_TLS_INSECURE=true where its certificate is its own, ` +
    'or add ?sslmode=verify-full to DATABASE_URL'
  )
}

const TIMESTAMPTZ = 1184

/** The readers of columns, for pg. */
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
  // Other zones, and years that are not of four digits.
  if (!isUsual) return usual(text)
  const two = (place: number) => (at(place) - ZERO) * 10 + at(place + 1) - ZERO
  const fraction = (place: number) => (place < end ? at(place) - ZERO : 0)
  const ms = fraction(20) * 100 + fraction(21) * 10 + fraction(22)
  return new Date(
    Date.UTC(two(0) * 100 + two(2), two(5) - 1, two(8), two(11), two(14), two(17), ms),
  )
}

// A prepared statement has the same columns whenever it runs: PostgreSQL refuses it once its tables have others. So they
// are asked for once and not with each use, which costs both sides as much as several rows.

// pg's types know none of this.

interface Described {
  readonly fields: readonly object[]
  readonly _parsers: readonly unknown[] | undefined
  readonly _prebuiltEmptyResultObject: object | null
}

/** The columns of one statement on one connection. */
export interface Columns {
  /** Undefined until PostgreSQL has described them. */
  known: Described | undefined
  /** The connection, as it is written to where they are known. */
  readonly wire: WireConnection
}

/** A statement as it goes to a connection; a prepared one has columns. */
export interface Sent extends Statement {
  readonly columns?: Columns
}

/** Execute all, then Sync. https://www.postgresql.org/docs/current/protocol-message-formats.html */
const EXECUTE_AND_SYNC = Buffer.from('E\0\0\0\x09\0\0\0\0\0S\0\0\0\x04', 'latin1')

/** The connection without Describe, and with one write for Execute and Sync. */
export function skipDescribe(connection: WireConnection): WireConnection {
  let isSynced = false
  const execute = () => {
    connection.stream.write(EXECUTE_AND_SYNC)
    isSynced = true
  }
  // Alone where values could not be written.
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

/**
 * A prepared statement has the same columns whenever it runs: PostgreSQL refuses it once its tables have others. So
 * they are asked for once and not with each use, which costs both sides as much as several rows.
 */
import { Query } from 'pg'
import type { Statement, WireConnection } from './statement.ts'

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
export function undescribed(connection: WireConnection): WireConnection {
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

export class PreparedQuery extends Query {
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

/** PostgreSQL: knex keeps the pool, transactions and migrations; hot statements are named and prepared. */
import type { Knex } from 'knex'

export interface Statement {
  /** Given: a named prepared statement (fixed shapes only). Absent: planned for its own values. */
  readonly name?: string
  readonly text: string
  readonly values: readonly unknown[]
}

export interface Connection {
  query<Row extends object>(statement: Statement): Promise<Row[]>
}

export interface Database extends Connection {
  readonly knex: Knex
  /** Statements sent since the process started; tests pin the difference. */
  readonly statements: number
  /** READ COMMITTED; `work` gets the one connection. */
  transaction<T>(work: (connection: Connection) => Promise<T>): Promise<T>
  /** Milliseconds of `select 1`; throws when PostgreSQL is away. */
  ping(): Promise<number>
  close(): Promise<void>
}

/** Statements and connections. */
import type { Connection as PgConnection } from 'pg'

export interface Connection {
  query<Row extends object>(statement: Statement): Promise<Row[]>
  /** Cancels statements in PostgreSQL when `signal` aborts. Errors: its reason. Absent inside a transaction. */
  until?(signal: AbortSignal): Connection
  /** Discards the plans of cached statements. */
  renewPlans?(): void
}

export interface Statement {
  /** Named prepared statement (fixed shapes only). Absent: planned for its own values. */
  readonly name?: string
  /** One plan suits all values; frequent ones are cached, see cached-statements.ts. */
  readonly isPreparable?: boolean
  /** A short read that may share a connection and be sent again: pipelined-pool.ts. */
  readonly isPipelined?: boolean
  /** Buffers are sent without a copy: do not change them before the transaction ends. */
  readonly hasBlocks?: boolean
  /** Excluded from the counts of statements and round trips: background work, or a retry. */
  readonly isMaintenance?: boolean
  /** The advisory locks that the statement takes; it has no other effect. */
  readonly locks?: readonly bigint[]
  /** Citus: reads the rows in several statements, because the tables of this one may be on several servers. */
  readonly inSteps?: (connection: Pick<Connection, 'query'>) => Promise<readonly object[]>
  /** Citus: the Projects in list `x`. The statement is sent once for each, see `projectOfList` of the dialect. */
  readonly perProject?: readonly number[]
  readonly text: string
  readonly values?: readonly unknown[] | undefined
}

/** True when the statement returns a row: for writes, when they have changed one. */
export async function hasRows(
  connection: Pick<Connection, 'query'>,
  statement: Statement,
): Promise<boolean> {
  return (await connection.query(statement)).length > 0
}

/** Adds a parameter and returns its placeholder. */
export type Bind = (value: unknown, type: string) => string

export function binder(): { readonly values: unknown[]; readonly bind: Bind } {
  const values: unknown[] = []
  const bind: Bind = (value, type) => {
    values.push(value)
    return `$${values.length}::${type}`
  }
  return { values, bind }
}

/** Formats a PostgreSQL array of values that need no quotes, such as numbers and ids; pg would quote each one. */
export function arrayLiteral(values: Iterable<unknown>): string {
  return `{${Array.from(values, toItem).join(',')}}`
}

function toItem(value: unknown): unknown {
  return value instanceof Date ? value.toISOString() : (value ?? 'null')
}

export type WireConnection = PgConnection & {
  readonly parsedStatements: Record<string, string>
  close(what: { readonly type: 'S'; readonly name: string }): void
  sync(): void
}

/** Statements and the connections that run them. */

import { AsyncLocalStorage } from 'node:async_hooks'
import type { Connection as PgConnection } from 'pg'

export interface Connection {
  query<Row extends object>(statement: Statement): Promise<Row[]>
  /**
   * A statement that still runs when `signal` aborts is cancelled in PostgreSQL. Errors: the signal's
   * reason. Absent inside a transaction.
   */
  until?(signal: AbortSignal): Connection
  /** Has the plans of kept statements made anew. */
  renewPlans?(): void
}

export interface Statement {
  /** Given: a named prepared statement (fixed shapes only). Absent: planned for its own values. */
  readonly name?: string
  /** One plan serves all values, whatever the shape; it is cached while many ask for it, see cached-statements.ts. */
  readonly isPreparable?: boolean
  /** Reads, within milliseconds whatever its values, so it may share a connection and be sent again: pipelined-pool.ts. */
  readonly isPipelined?: boolean
  /** Its Buffers are sent as they stand: they must not change before its transaction has ended. */
  readonly hasBlocks?: boolean
  /** Runs beside the requests, on a clock, or for the second time: the counts of statements and round trips leave it out. */
  readonly isMaintenance?: boolean
  /** It takes these advisory locks and does nothing else. */
  readonly locks?: readonly bigint[]
  /** Gets its rows in several steps, where its tables have rows of several Projects: distributed.ts. */
  readonly apart?: (connection: Pick<Connection, 'query'>) => Promise<readonly object[]>
  /** The Projects in its list `x`, which it compares as `project = x.project`: distributed.ts. */
  readonly projects?: readonly number[]
  readonly text: string
  readonly values: readonly unknown[]
}

/** Adds a parameter to the statement and answers its placeholder. */
export type Bind = (value: unknown, type: string) => string

/** Collects the values of a statement that is written as text. */
export function binder(): { readonly values: unknown[]; readonly bind: Bind } {
  const values: unknown[] = []
  const bind: Bind = (value, type) => {
    values.push(value)
    return `$${values.length}::${type}`
  }
  return { values, bind }
}

export type WireConnection = PgConnection & {
  /** The texts of named statements that PostgreSQL knows. */
  readonly parsedStatements: Record<string, string>
  close(what: { readonly type: 'S'; readonly name: string }): void
  sync(): void
}

// The time that a request has waited for PostgreSQL, for `Server-Timing`.

const asked = new AsyncLocalStorage<{ ms: number }>()

/** Milliseconds that the statements of `work` took; those sent for several requests count for one of them. */
export async function measureDatabaseTime<T>(
  work: () => Promise<T>,
): Promise<{ readonly result: T; readonly ms: number }> {
  const time = { ms: 0 }
  const result = await asked.run(time, work)
  return { result, ms: time.ms }
}

/** Nothing is counted when nobody asks. */
export function countDatabaseTime(startedAt: number): void {
  const time = asked.getStore()
  if (time !== undefined) time.ms += performance.now() - startedAt
}

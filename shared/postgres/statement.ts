/** Statements, connections, and the database time of requests. */

import { AsyncLocalStorage } from 'node:async_hooks'
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
  /** Reads the rows in several steps where tables are distributed by Project: distributed.ts. */
  readonly apart?: (connection: Pick<Connection, 'query'>) => Promise<readonly object[]>
  /** Projects in its list `x`, compared as `project = x.project`: distributed.ts. */
  readonly projects?: readonly number[]
  readonly text: string
  readonly values: readonly unknown[]
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

export type WireConnection = PgConnection & {
  readonly parsedStatements: Record<string, string>
  close(what: { readonly type: 'S'; readonly name: string }): void
  sync(): void
}

// Database wait time of a request, for `Server-Timing`.

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

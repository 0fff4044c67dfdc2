/** The SQL that PostgreSQL and Citus need in different forms; all other SQL suits both: docs/scale.md. */
import type { Connection, Statement } from './statement.ts'

export interface Dialect {
  /** A placeholder whose value the planner does not see, so that one cached plan fits all values. */
  value(placeholder: string): string
  /** A list of rows in FROM, from an array for each column. It is followed by an alias with column names. */
  unnest(...columns: readonly string[]): string
  /** Tests the Project of rows found through another index, and `tests` on the same row. */
  projectEquals(alias: string, project: string, tests?: string): string
  /** Tests that a row has the Project of list row `x`. The statement has `perProject` and `count` values. */
  projectOfList(column: string, count: number): string
  /** Begins an index walk at a row key. The first column is the Project. */
  walkFrom(columns: readonly string[], from: '>' | '>=', key: readonly string[]): string
  /** Condition on `pg_stat_activity`: the session's open transaction may have written. */
  readonly mayHaveWritten: string
  /** Sends a statement, or the statements that replace it, and returns all rows. */
  run<Row extends object>(statement: Statement, send: Send): Promise<Row[]>
}

type Send = Connection['query']

export const POSTGRES: Dialect = {
  value: (placeholder) => `(select ${placeholder})`,
  unnest: (...columns) => `unnest(${columns.join(', ')})`,
  // Written so that no index on the Project serves it.
  projectEquals: (alias, project, tests) =>
    `(${alias}.project = ${project}${tests === undefined ? '' : ` and ${tests}`}) is true`,
  projectOfList: (column) => `${column} = x.project`,
  walkFrom: (columns, from, key) => `(${columns.join(', ')}) ${from} (${key.join(', ')})`,
  mayHaveWritten: 'backend_xid is not null',
  run: (statement, send) => send(statement),
}

/** Whether a worker still has the run in whose name something is written; `require_run` of the schema tells. */
import type { RunTaking } from '../../access/principal.ts'
import type { Connection } from '../../platform/postgres/statement.ts'
import type { Bind } from './side-rows.ts'

/** A condition that holds, or ends the statement with RunLost; the rows are locked until it has ended. */
export function runsAreHeld(takings: readonly RunTaking[], bind: Bind): string {
  const list = <T>(value: (taking: RunTaking) => T) => `{${takings.map(value).join(',')}}`
  const owners = bind(
    list(({ owner }) => owner),
    '"char"[]',
  )
  const runs = bind(
    list(({ run }) => run),
    'uuid[]',
  )
  const counts = bind(
    list(({ taking }) => taking),
    'int[]',
  )
  return `(select bool_and(require_run(t.o, t.r, t.k))
    from (select distinct * from unnest(${owners}, ${runs}, ${counts}) as t(o, r, k)) t)`
}

/** Locks the row for as long as the transaction of `connection` goes on. Errors: RunLost. */
export async function requireRun(
  connection: Connection,
  { owner, run, taking }: RunTaking,
): Promise<void> {
  await connection.query({
    name: 'run-require',
    text: 'select require_run($1, $2, $3)',
    values: [owner, run, taking],
  })
}

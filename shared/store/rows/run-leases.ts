/** Whether a worker still has the run in whose name something is written; `require_run` of the schema tells. */
import type { RunLease } from '../../access/principal.ts'
import type { Bind, Connection } from '../../postgres/statement.ts'

/** A condition that holds, or ends the statement with RunLost; the rows are locked until it has ended. */
export function runLeasesHeldSql(leases: readonly RunLease[], bind: Bind): string {
  const list = <T>(value: (lease: RunLease) => T) => `{${leases.map(value).join(',')}}`
  const owners = bind(
    list(({ owner }) => owner),
    '"char"[]',
  )
  const runs = bind(
    list(({ run }) => run),
    'uuid[]',
  )
  const counts = bind(
    list(({ token }) => token),
    'int[]',
  )
  return `(select bool_and(require_run(t.o, t.r, t.k))
    from (select distinct * from unnest(${owners}, ${runs}, ${counts}) as t(o, r, k)) t)`
}

/** Locks the row for as long as the transaction of `connection` goes on. Errors: RunLost. */
export async function requireRunLease(
  connection: Connection,
  { owner, run, token }: RunLease,
): Promise<void> {
  await connection.query({
    name: 'run-require',
    text: 'select require_run($1, $2, $3)',
    values: [owner, run, token],
  })
}

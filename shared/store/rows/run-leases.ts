/** Fences writes of bot runs: a write needs the run's lease (`require_run` in the schema). */
import type { RunLease } from '../../access/principal.ts'
import type { Bind, Connection } from '../../postgres/statement.ts'

/** A condition that holds, or ends the statement with RunLost; locks the rows until its end. */
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

/** Locks the row until the transaction ends. Errors: RunLost. */
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

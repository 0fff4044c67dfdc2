/** Storage of a Project: counted for small Projects, estimated from PostgreSQL statistics for large ones. */
import type { Connection } from '../../postgres/statement.ts'

interface StorageFigures {
  /** The history counts, too. */
  readonly versions: number
  /** Versions only: indexes and Binary contents are extra. */
  readonly bytes: number
  readonly isEstimate: boolean
}

const COUNTED = 10_000
/** Sample size for the average size of a version. */
const MEASURED = 1000

/** One statement, two for large Projects; reads at most some ten thousand rows. */
export async function estimateStorage(
  connection: Connection,
  project: number,
): Promise<StorageFigures> {
  const [row] = await connection.query<{ versions: number; size: number }>({
    name: 'storage-figures',
    text: `select (select count(*) from (
          select from version where project = $1 limit ${COUNTED + 1}) as v)::float8 as versions,
        (select coalesce(avg(pg_column_size(content) + pg_column_size(meta_ext)), 0) from (
          select content, meta_ext from version
          where project = $1 and content is not null limit ${MEASURED}) as v)::float8 as size`,
    values: [project],
  })
  const { versions: counted = 0, size = 0 } = row ?? {}
  const isEstimate = counted > COUNTED
  const versions = isEstimate ? Math.max(counted, await planned(connection, project)) : counted
  return { versions, bytes: Math.round(versions * size), isEstimate }
}

async function planned(connection: Connection, project: number): Promise<number> {
  const [row] = await connection.query<{ 'QUERY PLAN': [{ Plan: { 'Plan Rows': number } }] }>({
    text: `explain (format json) select from version where project = ${Number(project)}`,
    values: [],
  })
  return row?.['QUERY PLAN'][0].Plan['Plan Rows'] ?? 0
}

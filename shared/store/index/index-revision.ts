/** The revision of the code that derives index rows, and whether all that is stored has been made by it. */
import type { Connection } from '../../platform/postgres/statement.ts'
import { addRevisionJob } from '../rows/upkeep-jobs.ts'

/**
 * Counted up with every change of keys or side rows: what older code has written is then made anew in
 * the background.
 */
export const INDEX_REVISION = 5

/** Adds the job when the index was made by other code. */
export async function checkIndexRevision(connection: Connection): Promise<void> {
  if ((await oldestIndexRevision(connection)) !== INDEX_REVISION) await addRevisionJob(connection)
}

/** No index row is of an older revision. */
export async function oldestIndexRevision(connection: Connection): Promise<number> {
  const [row] = await connection.query<{ rev: number }>({
    text: 'select rev from index_revision',
    values: [],
  })
  return row?.rev ?? 0
}

export async function settleIndexRevision(connection: Connection): Promise<void> {
  await connection.query({ text: 'update index_revision set rev = $1', values: [INDEX_REVISION] })
}

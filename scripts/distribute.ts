/**
 * `node scripts/distribute.ts` distributes the large tables of DATABASE_URL by Project over its Citus servers
 * (docs/scale.md). Run it once, after the release step and before the first load; existing rows are moved.
 */
import { Client } from 'pg'
import { DISTRIBUTED_TABLES } from '../shared/jobs/upkeep/removal.ts'

/** Every server has all of it. */
const EVERYWHERE = ['tenant']

/** Safe to run twice. Calls `say` for each step. */
export async function distribute(databaseUrl: string, say: (line: string) => void): Promise<void> {
  const client = new Client({ connectionString: databaseUrl })
  await client.connect()
  const isDone = async (table: string) => {
    const text = 'select from pg_dist_partition where logicalrelid = $1::regclass'
    return (await client.query(text, [table])).rowCount !== 0
  }
  try {
    for (const table of EVERYWHERE) {
      if (await isDone(table)) continue
      await client.query('select create_reference_table($1)', [table])
      say(`${table} is on every server`)
    }
    for (const [i, { name: table }] of DISTRIBUTED_TABLES.entries()) {
      if (await isDone(table)) continue
      const beside = i === 0 ? 'none' : DISTRIBUTED_TABLES[0]?.name
      const text = `select create_distributed_table($1, 'project', colocate_with => $2)`
      await client.query(text, [table, beside])
      say(`${table} is distributed by project`)
    }
  } finally {
    await client.end()
  }
}

if (import.meta.main) {
  try {
    await distribute(process.env.DATABASE_URL ?? '', console.log)
  } catch (error) {
    console.error(error instanceof Error ? error.message : error)
    process.exitCode = 1
  }
}

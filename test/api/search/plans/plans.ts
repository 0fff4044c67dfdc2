/** Buffers touched by generic plans and by custom plans. */
import type { Connection, Statement } from '../../../../shared/postgres/statement.ts'

/** PostgreSQL compares the generic plan with the first five custom plans. */
const TIMES = 8

/** Returns the pages that the statement touches with a custom plan. */
export function ownBuffers(connection: Connection, { text, values }: Statement): Promise<number> {
  return countSharedHits(connection, text, values)
}

/** Returns the pages touched with the generic plan of this name; undefined while PostgreSQL still uses custom plans. */
export async function keptBuffers(
  connection: Connection,
  name: string,
  { text, values = [] }: Statement,
): Promise<number | undefined> {
  for (let i = 0; i < TIMES; i++) await connection.query({ name, text, values })
  const [plans] = await connection.query<{ generic_plans: string }>({
    text: 'select generic_plans from pg_prepared_statements where name = $1',
    values: [name],
  })
  if (!(Number(plans?.generic_plans) > 0)) return undefined
  const literals = values
    .map((value) => (Array.isArray(value) ? `'{${value}}'` : `'${value}'`))
    .join(', ')
  return countSharedHits(connection, `execute "${name}"(${literals})`)
}

async function countSharedHits(
  connection: Connection,
  text: string,
  values?: readonly unknown[],
): Promise<number> {
  const lines = await connection.query<{ 'QUERY PLAN': string }>({
    text: `explain (analyze, buffers, timing off) ${text}`,
    values,
  })
  const plan = lines.map((line) => line['QUERY PLAN']).join('\n')
  return Number(/Buffers: shared hit=(\d+)/.exec(plan)?.[1])
}

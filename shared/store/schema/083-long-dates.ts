/** Long values of the main date by their end: a search for dates since a time finds those that begin before it. */
import type { Knex } from 'knex'

/** PostgreSQL builds an index while others write only outside of a transaction. */
export const config = { transaction: false }

export async function up(knex: Knex): Promise<void> {
  // An interrupted build leaves an index that is not used.
  const invalid = await knex.raw(
    "select from pg_index where indexrelid = to_regclass('resource_long') and not indisvalid",
  )
  if (invalid.rowCount > 0) await knex.raw('drop index concurrently resource_long')
  // Times with a time zone have no immutable sum.
  await knex.raw(`create index concurrently if not exists resource_long
    on resource ((project + 0), type, d_hi)
    where (d_hi at time zone 'UTC') > (d_lo at time zone 'UTC') + interval '25 hours'`)
}

export async function down(knex: Knex): Promise<void> {
  await knex.raw('drop index concurrently if exists resource_long')
}

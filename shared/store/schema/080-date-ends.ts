/** The end of the main date in its index: totals of date ranges are counted without reading rows. */
import type { Knex } from 'knex'

/** PostgreSQL builds an index while others write only outside of a transaction. */
export const config = { transaction: false }

export async function up(knex: Knex): Promise<void> {
  // An interrupted build leaves an index that is not used.
  const invalid = await knex.raw(
    "select from pg_index where indexrelid = to_regclass('resource_date') and not indisvalid",
  )
  if (invalid.rowCount > 0) await knex.raw('drop index concurrently resource_date')
  await knex.raw(`create index concurrently if not exists resource_date
    on resource (project, type, d_lo, id) include (d_hi) where d_lo is not null`)
  await knex.raw('drop index concurrently if exists resource_d')
}

export async function down(knex: Knex): Promise<void> {
  await knex.raw(`create index concurrently if not exists resource_d
    on resource (project, type, d_lo, id) where d_lo is not null`)
  await knex.raw('drop index concurrently if exists resource_date')
}

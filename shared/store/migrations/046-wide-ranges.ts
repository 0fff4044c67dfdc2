/** Wide ranges are read from their index alone, so that it looks cheaper than the other one whatever is looked for. */
import type { Knex } from 'knex'

const WIDE = 'hi - lo > 1 and lo < 1000000000'

export async function up(knex: Knex): Promise<void> {
  await knex.raw(`
    drop index idx_range_wide;
    create index idx_range_wide on idx_range (project, p, hi) include (lo, u, id) where ${WIDE}
  `)
}

export async function down(knex: Knex): Promise<void> {
  await knex.raw(`
    drop index idx_range_wide;
    create index idx_range_wide on idx_range (project, p, hi) where ${WIDE}
  `)
}

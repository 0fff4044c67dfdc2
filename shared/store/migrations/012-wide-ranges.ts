/** Ranges so wide that they reach far above where they begin; times, which are all wide, are left out. */
import type { Knex } from 'knex'

const INDEX = `
create index idx_range_wide on idx_range (project, p, hi) where hi - lo > 1 and lo < 1000000000
`

export async function up(knex: Knex): Promise<void> {
  await knex.raw(INDEX)
}

export async function down(knex: Knex): Promise<void> {
  await knex.raw('drop index idx_range_wide')
}

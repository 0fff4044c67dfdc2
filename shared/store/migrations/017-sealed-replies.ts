/** Kept replies are sealed from here on; those in clear are forgotten, which is a day's worth at most. */
import type { Knex } from 'knex'

export async function up(knex: Knex): Promise<void> {
  await knex.raw('delete from idempotent_request')
}

export async function down(knex: Knex): Promise<void> {
  await knex.raw('delete from idempotent_request')
}

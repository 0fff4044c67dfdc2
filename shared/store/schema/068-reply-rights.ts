/** Stores the caller's rights with idempotent responses, so that other callers do not see them. */
import type { Knex } from 'knex'

export async function up(knex: Knex): Promise<void> {
  await knex.raw(`
    alter table idempotent_request add column if not exists rights text;
    comment on column idempotent_request.rights is 'digest of what the caller could read; null: not known';
  `)
}

export async function down(knex: Knex): Promise<void> {
  await knex.raw('alter table idempotent_request drop column rights')
}

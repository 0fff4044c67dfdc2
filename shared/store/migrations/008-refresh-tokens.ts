/**
 * Refresh tokens by their digest. A replaced one stays until it would have expired: who presents it
 * again is found out. Its successor is sealed with the token itself, which is not stored.
 */
import type { Knex } from 'knex'

const TABLES = `
create table refresh_token (
  digest bytea primary key,
  login text collate "C" not null,
  began timestamptz not null default clock_timestamp(),
  expires timestamptz not null,
  replaced timestamptz,
  successor bytea
);
create index refresh_token_expires on refresh_token (expires);
`

export async function up(knex: Knex): Promise<void> {
  await knex.raw(TABLES)
}

export async function down(knex: Knex): Promise<void> {
  await knex.raw('drop table refresh_token')
}

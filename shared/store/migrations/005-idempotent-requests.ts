/** Answers to requests with an Idempotency-Key, kept for a day; `status` is null while one runs. */
import type { Knex } from 'knex'

const TABLES = `
create table idempotent_request (
  id bytea primary key,
  body bytea not null,
  added timestamptz not null default clock_timestamp(),
  status int,
  headers jsonb,
  reply bytea
);
create index idempotent_request_added on idempotent_request (added);
`

export async function up(knex: Knex): Promise<void> {
  await knex.raw(TABLES)
}

export async function down(knex: Knex): Promise<void> {
  await knex.raw('drop table idempotent_request')
}

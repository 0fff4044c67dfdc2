/** Bot runs that were accepted with a status URL and are not finished: a loss of Redis must not lose them. */
import type { Knex } from 'knex'

const TABLES = `
create table pending_run (
  id uuid primary key,
  project uuid not null,
  home text not null,
  added timestamptz not null default clock_timestamp(),
  job text
);
`

export async function up(knex: Knex): Promise<void> {
  await knex.raw(TABLES)
}

export async function down(knex: Knex): Promise<void> {
  await knex.raw('drop table pending_run')
}

/** What came of the runs of a bot, for its author; kept for a week. */
import type { Knex } from 'knex'

// The record is JSON as text: a log may hold characters that jsonb refuses.
const TABLES = `
create table bot_run (
  bot uuid not null,
  started timestamptz not null,
  id uuid not null,
  project int not null,
  record text not null,
  archived boolean not null,
  primary key (bot, started, id)
);
create index bot_run_started on bot_run (started);
`

export async function up(knex: Knex): Promise<void> {
  await knex.raw(TABLES)
}

export async function down(knex: Knex): Promise<void> {
  await knex.raw('drop table bot_run')
}

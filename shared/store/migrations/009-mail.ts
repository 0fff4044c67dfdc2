/** Mails from the transaction that wants them sent until they are; without a mail server they stay. */
import type { Knex } from 'knex'

const TABLES = `
create table mail (
  id uuid primary key,
  project text not null,
  message jsonb not null,
  state text not null default 'waiting',
  attempts int not null default 0,
  added timestamptz not null default clock_timestamp(),
  due timestamptz not null default clock_timestamp(),
  error text
);
create index mail_due on mail (due) where state = 'waiting';
create index mail_added on mail (added) where state <> 'waiting';
`

export async function up(knex: Knex): Promise<void> {
  await knex.raw(TABLES)
}

export async function down(knex: Knex): Promise<void> {
  await knex.raw('drop table mail')
}

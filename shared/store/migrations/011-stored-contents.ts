/** Content in the storage; `due` is when to look whether a resource still names it, null while one does. */
import type { Knex } from 'knex'

const TABLES = `
create table stored_content (
  key text primary key,
  place bytea not null,
  added timestamptz not null default clock_timestamp(),
  due timestamptz
);
create index stored_content_due on stored_content (due) where due is not null;
`

export async function up(knex: Knex): Promise<void> {
  await knex.raw(TABLES)
}

export async function down(knex: Knex): Promise<void> {
  await knex.raw('drop table stored_content')
}

/**
 * The words of resources, of Projects that search for them: `_text` reads the narrative, `_content` all
 * of it. Each row also holds a lexeme for its Project and type, so that the index narrows to those. A
 * Project's `full_text` is its version that switched it on.
 */
import type { Knex } from 'knex'

const TABLES = `
alter table tenant add full_text int;

create table resource_text (
  project int not null,
  type smallint not null,
  id uuid not null,
  narrative tsvector not null,
  content tsvector not null,
  primary key (project, type, id)
);
create index resource_text_narrative on resource_text using gin (narrative)
  with (fastupdate = on, gin_pending_list_limit = 512);
create index resource_text_content on resource_text using gin (content)
  with (fastupdate = on, gin_pending_list_limit = 512);
`

export async function up(knex: Knex): Promise<void> {
  await knex.raw(TABLES)
}

export async function down(knex: Knex): Promise<void> {
  await knex.raw('drop table resource_text')
  await knex.raw('alter table tenant drop full_text')
}

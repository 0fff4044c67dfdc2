/** What only order can find: strings and ranges; the dictionary of codings; the salt of all keys. */
import type { Knex } from 'knex'

// `type` fills padding before the 8-byte columns, so it is free; with it a delete by id cannot
// take the rows of another type's resource that was given the same id.
const TABLES = `
create table idx_string (
  project int not null,
  type smallint not null,
  p bigint not null,
  v text collate "C" not null,
  id uuid not null,
  primary key (project, p, v, id)
);
create index idx_string_id on idx_string (id);

create table idx_range (
  project int not null,
  type smallint not null,
  p bigint not null,
  lo float8 not null,
  hi float8 not null,
  u bigint not null,
  id uuid not null,
  primary key (project, p, lo, hi, id, u)
);
create index idx_range_id on idx_range (id);

create table code (
  project int not null,
  p bigint not null,
  k bigint not null,
  system text not null,
  code text not null,
  display text,
  primary key (project, p, k)
);

create table search_key_salt (salt bytea not null);
insert into search_key_salt (salt)
  select decode(replace(gen_random_uuid()::text || gen_random_uuid()::text, '-', ''), 'hex');
`

export async function up(knex: Knex): Promise<void> {
  await knex.raw(TABLES)
}

export async function down(knex: Knex): Promise<void> {
  await knex.raw('drop table search_key_salt, code, idx_range, idx_string')
}

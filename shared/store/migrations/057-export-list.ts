/**
 * Rows that an export has found before they are read, as sorted arrays: a row in a table of their own each,
 * which they had, took longer to write than all the rest of the plan, and was read from an index.
 */
import type { Knex } from 'knex'

const TABLE = `
create table export_list (
  job uuid not null,
  type smallint not null,
  low uuid not null,
  high uuid not null,
  ids uuid[] not null
);
alter table export_list alter ids set storage external;
create index export_list_job on export_list (job, type);
insert into export_list (job, type, low, high, ids)
  select job, type, ids[1], ids[cardinality(ids)], ids
  from (select job, type, array_agg(id order by id) as ids from export_row group by job, type) x;
drop table export_row;
`

const ROWS = `
create table export_row (
  job uuid not null,
  type smallint not null,
  id uuid not null,
  primary key (job, type, id)
);
insert into export_row (job, type, id)
  select distinct l.job, l.type, x.id from export_list l cross join lateral unnest(l.ids) x(id);
drop table export_list;
`

export async function up(knex: Knex): Promise<void> {
  await knex.raw(TABLE)
}

export async function down(knex: Knex): Promise<void> {
  await knex.raw(ROWS)
}

/**
 * Imports of NDJSON. A part is one input; `bytes` and `lines` are the ranges of it that are committed,
 * each in the transaction that wrote them, so that a part goes on exactly where it was. A `lease` belongs
 * to the worker that reads the part, until `due`; without one the part is taken from then on.
 */
import type { Knex } from 'knex'

const TABLES = `
create table import_job (
  id uuid primary key,
  project int not null,
  state text not null default 'active',
  request text not null,
  caller jsonb not null,
  mode text not null,
  in_order boolean not null,
  failure jsonb,
  added timestamptz not null default clock_timestamp(),
  ended timestamptz
);
create index import_job_project on import_job (project, added) where state = 'active';

create table import_part (
  job uuid not null references import_job on delete cascade,
  part int not null,
  type text,
  url text not null,
  state text not null default 'waiting',
  size bigint,
  bytes int8multirange not null default '{}',
  lines int8multirange not null default '{}',
  created bigint not null default 0,
  updated bigint not null default 0,
  unchanged bigint not null default 0,
  skipped bigint not null default 0,
  failed bigint not null default 0,
  attempts int not null default 0,
  lease uuid,
  due timestamptz not null default clock_timestamp(),
  primary key (job, part)
);
create index import_part_due on import_part (due) where state = 'waiting';

create table import_error (
  job uuid not null references import_job on delete cascade,
  part int not null,
  line bigint not null,
  outcome text not null,
  primary key (job, part, line)
);
`

export async function up(knex: Knex): Promise<void> {
  await knex.raw(TABLES)
}

export async function down(knex: Knex): Promise<void> {
  await knex.raw('drop table import_error, import_part, import_job')
}

/**
 * Bulk exports: a job, its parts (one type and one id range each, which workers lease), the files they
 * make, the patients whose compartments are meant, and rows that were found before they are read.
 */
import type { Knex } from 'knex'

const TABLES = `
create table export_job (
  id uuid primary key,
  project int not null,
  state text not null,
  input jsonb not null,
  requested timestamptz not null default date_trunc('milliseconds', clock_timestamp()),
  at timestamptz,
  finished timestamptz,
  expires timestamptz,
  downloaded timestamptz,
  swept boolean not null default false,
  numbers jsonb not null default '{}',
  issues jsonb not null default '[]',
  failure jsonb
);
create index export_job_project on export_job (project, state);
create index export_job_unswept on export_job (state) where not swept;

create table export_part (
  job uuid not null references export_job on delete cascade,
  n int not null,
  kind text not null,
  type smallint,
  low uuid,
  high uuid,
  after uuid,
  rows bigint not null default 0,
  state text not null default 'waiting',
  epoch int not null default 0,
  tries int not null default 0,
  failures int not null default 0,
  lease timestamptz,
  primary key (job, n)
);
create index export_part_open on export_part (state) where state <> 'done';

create table export_file (
  job uuid not null references export_job on delete cascade,
  part int not null,
  seq int not null,
  kind text not null,
  type text not null,
  number int,
  rows bigint not null,
  bytes bigint not null,
  packed bigint not null,
  crc bigint not null,
  blocks jsonb not null,
  primary key (job, part, seq),
  unique (job, kind, type, number)
);

create table export_member (
  job uuid not null references export_job on delete cascade,
  reference text not null,
  key bigint not null,
  primary key (job, reference)
);

create table export_row (
  job uuid not null references export_job on delete cascade,
  type smallint not null,
  id uuid not null,
  primary key (job, type, id)
);
`

export async function up(knex: Knex): Promise<void> {
  await knex.raw(TABLES)
}

export async function down(knex: Knex): Promise<void> {
  await knex.raw('drop table export_row, export_member, export_file, export_part, export_job')
}

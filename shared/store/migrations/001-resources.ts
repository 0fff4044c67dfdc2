/** Versions and live resources: an append-only log of texts, and one narrow row a live resource. */
import type { Knex } from 'knex'

const TABLES = `
create table tenant (
  project serial primary key,
  fhir_id uuid unique not null
);
create table version (
  project int not null,
  type smallint not null,
  id uuid not null,
  ver int not null,
  lu timestamptz not null,
  author uuid,
  content text,
  meta_at int not null,
  meta_ext text not null,
  primary key (project, type, id, ver)
) with (autovacuum_vacuum_insert_scale_factor = 0.05);
create index version_lu on version (project, type, lu, id);

create table resource (
  project int not null,
  type smallint not null,
  id uuid not null,
  ver int not null,
  lu timestamptz not null,
  d_lo timestamptz,
  d_hi timestamptz,
  nref smallint not null,
  keys bigint[] not null,
  primary key (project, type, id)
) with (autovacuum_vacuum_scale_factor = 0.02, autovacuum_analyze_scale_factor = 0.02);
alter table resource alter keys set statistics 1000;
create index resource_lu on resource (project, type, lu, id);
create index resource_d on resource (project, type, d_lo, id) where d_lo is not null;
create index resource_no_d on resource (project, type, id) where d_lo is null;
create index resource_keys on resource using gin (keys)
  with (fastupdate = on, gin_pending_list_limit = 512);

create table unique_key (
  project int not null,
  type smallint not null,
  p bigint not null,
  k bigint not null,
  id uuid not null,
  primary key (project, p, k)
);
create index unique_key_id on unique_key (id);

create table outbox (
  seq bigint generated always as identity primary key,
  project int not null,
  type smallint not null,
  id uuid not null,
  ver int not null,
  op "char" not null,
  origin jsonb
);

create table job (
  id uuid primary key,
  project int not null,
  kind text not null,
  state text not null,
  index_rev int,
  input jsonb,
  progress jsonb,
  started timestamptz,
  touched timestamptz not null default clock_timestamp()
);
create index job_state on job (kind, state, touched);
`

/** Row 1 of `tenant` is the system project (SYSTEM_PROJECT_NUMBER); serial numbers start behind it. */
const SYSTEM = `
insert into tenant (project, fhir_id) values (1, '00000000-0000-0000-0000-000000000001');
select setval(pg_get_serial_sequence('tenant', 'project'), 1);
`

export async function up(knex: Knex): Promise<void> {
  await knex.raw(TABLES)
  await knex.raw(SYSTEM)
  const lz4 = await knex.raw(
    `select 1 from pg_settings where name = 'default_toast_compression' and 'lz4' = any(enumvals)`,
  )
  if (lz4.rows.length > 0) await knex.raw('alter table version alter content set compression lz4')
}

export async function down(knex: Knex): Promise<void> {
  await knex.raw('drop table job, outbox, unique_key, resource, version, tenant')
}

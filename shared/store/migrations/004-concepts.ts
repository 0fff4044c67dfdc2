/** Concepts and mappings that were imported: too many for the content of one resource. */
import type { Knex } from 'knex'

const TABLES = `
create table concept_owner (
  n serial primary key,
  project uuid not null,
  type smallint not null,
  id text collate "C" not null,
  unique (project, type, id)
);

create table concept (
  owner int not null references concept_owner on delete cascade,
  code text collate "C" not null,
  seq bigint generated always as identity,
  display text,
  definition text,
  v text collate "C" not null,
  words tsvector not null,
  primary key (owner, code)
);
create index concept_seq on concept (owner, seq);
create index concept_words on concept using gin (words);

create table concept_property (
  owner int not null references concept_owner on delete cascade,
  code text collate "C" not null,
  property text collate "C" not null,
  value text collate "C" not null,
  primary key (owner, property, value, code)
);
create index concept_property_code on concept_property (owner, code);

create table concept_mapping (
  owner int not null references concept_owner on delete cascade,
  source_system text collate "C" not null,
  source text collate "C" not null,
  target_system text collate "C" not null,
  target text collate "C" not null,
  display text,
  equivalence text not null,
  seq bigint generated always as identity,
  primary key (owner, source_system, source, target_system, target)
);
create index concept_mapping_target on concept_mapping (owner, target);
`

export async function up(knex: Knex): Promise<void> {
  await knex.raw(TABLES)
}

export async function down(knex: Knex): Promise<void> {
  await knex.raw('drop table concept_mapping, concept_property, concept, concept_owner')
}

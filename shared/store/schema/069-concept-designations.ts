/** Designations of imported concepts by language and use; concept mappings by code in any system. */
import type { Knex } from 'knex'

export async function up(knex: Knex): Promise<void> {
  await knex.raw(`
    create table if not exists concept_designation (
      owner int not null references concept_owner on delete cascade,
      code text collate "C" not null,
      seq bigint generated always as identity,
      language text collate "C" not null,
      use_system text collate "C" not null,
      use_code text collate "C" not null,
      use_display text not null,
      value text collate "C" not null,
      primary key (owner, code, language, use_system, use_code, value)
    );
    create index if not exists concept_mapping_source on concept_mapping (owner, source);
    comment on table concept_designation is 'another name of a concept; an empty text stands for none';
  `)
}

export async function down(knex: Knex): Promise<void> {
  await knex.raw('drop table concept_designation; drop index concept_mapping_source')
}

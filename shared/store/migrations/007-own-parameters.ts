/**
 * Which SearchParameters of its own a Project is indexed by, and by which revision of the extraction
 * code everything is. The jobs that bring both up to date are one a Project, and one in all.
 */
import type { Knex } from 'knex'

const TABLES = `
create table indexed_parameter (
  project int not null,
  id uuid not null,
  ver int not null,
  primary key (project, id)
);

create table index_revision (rev int not null);
insert into index_revision (rev)
  select case when exists (select 1 from resource) then 0 else 1 end;

create unique index job_own_parameters on job (project) where kind = 'own-parameters';
create unique index job_index_revision on job (kind) where kind = 'index-revision';
`

export async function up(knex: Knex): Promise<void> {
  await knex.raw(TABLES)
}

export async function down(knex: Knex): Promise<void> {
  await knex.raw(`delete from job where kind in ('own-parameters', 'index-revision')`)
  await knex.raw('drop index job_own_parameters, job_index_revision')
  await knex.raw('drop table indexed_parameter, index_revision')
}

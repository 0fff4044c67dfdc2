/**
 * Exports that are organized by patients: what is in the compartment of each, as sorted arrays of row ids by type
 * and by the grant that governs. `place` is 0 for the Patient itself, else the number of the type. A file may go on
 * with a compartment that the one before has begun.
 */
import type { Knex } from 'knex'

const TABLE = `
create table export_compartment (
  job uuid not null,
  patient uuid not null,
  place smallint not null,
  ruling int,
  ids uuid[] not null
);
alter table export_compartment alter ids set storage external;
create index export_compartment_job on export_compartment (job, patient, place);
alter table export_member add column id uuid;
create index export_member_id on export_member (job, id) where id is not null;
alter table export_file add column goes_on boolean not null default false;
`

export async function up(knex: Knex): Promise<void> {
  await knex.raw(TABLE)
}

export async function down(knex: Knex): Promise<void> {
  await knex.raw(`drop table export_compartment;
    alter table export_member drop column id;
    alter table export_file drop column goes_on`)
}

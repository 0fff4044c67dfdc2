/** Pages of the manifest of an export that is told of while it runs: what was on one stays on it. */
import type { Knex } from 'knex'

export async function up(knex: Knex): Promise<void> {
  await knex.raw(`alter table export_file add column page int;
    alter table export_job add column pages int not null default 0`)
}

export async function down(knex: Knex): Promise<void> {
  await knex.raw(`alter table export_file drop column page;
    alter table export_job drop column pages`)
}

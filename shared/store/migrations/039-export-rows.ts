/**
 * Rows that an export has listed refer to it no more: PostgreSQL looked the job up for each of them, which took
 * longer than all the rest of the plan.
 */
import type { Knex } from 'knex'

export async function up(knex: Knex): Promise<void> {
  await knex.raw('alter table export_row drop constraint export_row_job_fkey')
}

export async function down(knex: Knex): Promise<void> {
  await knex.raw('delete from export_row where job not in (select id from export_job)')
  await knex.raw(
    'alter table export_row add foreign key (job) references export_job on delete cascade',
  )
}

/** The time whose version of a Bot all attempts of a delivery or a scheduled run have. */
import type { Knex } from 'knex'

export async function up(knex: Knex): Promise<void> {
  await knex.raw(`
    alter table delivery add column if not exists since timestamptz;
    comment on column delivery.since is 'when a replay made it due again';
    alter table occurrence add column if not exists made timestamptz;
    alter table occurrence alter column made set default clock_timestamp();
    comment on column occurrence.made is 'when its time came, or its replay';
  `)
}

export async function down(knex: Knex): Promise<void> {
  await knex.raw(`
    alter table occurrence drop column made;
    alter table delivery drop column since;
  `)
}

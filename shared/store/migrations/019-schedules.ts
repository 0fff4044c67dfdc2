/** Bots that run by themselves, when they are due, and the occurrences whose runs have not ended. */
import type { Knex } from 'knex'
import { typeNumber } from '../../fhir/definitions.ts'

const TABLES = `
create table schedule (
  project int not null,
  id uuid not null,
  since timestamptz not null default clock_timestamp(),
  due timestamptz,
  primary key (project, id)
);
create index schedule_due on schedule (due nulls first);

create table occurrence (
  project int not null,
  bot uuid not null,
  scheduled timestamptz not null,
  run uuid not null unique default gen_random_uuid(),
  attempt int not null default 1,
  due timestamptz not null,
  home text,
  primary key (project, bot, scheduled),
  foreign key (project, bot) references schedule on delete cascade
);
create index occurrence_due on occurrence (due);
`

/** Bots that were written before. */
const BOTS = `
insert into schedule (project, id)
select r.project, r.id from resource r join version v using (project, type, id, ver)
where r.type = ${typeNumber('Bot')} and v.content ~ '"cron(String|Timing)"'
`

export async function up(knex: Knex): Promise<void> {
  await knex.raw(TABLES)
  await knex.raw(BOTS)
}

export async function down(knex: Knex): Promise<void> {
  await knex.raw('drop table occurrence, schedule')
}

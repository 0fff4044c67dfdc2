/** Asynchronous and scheduled runs that have failed for good, and the mails about them. */
import type { Knex } from 'knex'

export async function up(knex: Knex): Promise<void> {
  await knex.raw(`
    create table if not exists dead_run (
      project uuid not null,
      id uuid not null,
      bot uuid not null,
      job text,
      scheduled timestamptz,
      takes int not null,
      attempts int not null,
      error text,
      added timestamptz not null,
      failed timestamptz not null default clock_timestamp(),
      due timestamptz,
      primary key (project, id)
    );
    create index if not exists dead_run_project on dead_run (project, failed, id);
    create index if not exists dead_run_due on dead_run (due) where due is not null;
    comment on table dead_run is 'an asynchronous or scheduled run that has failed for good, until it is replayed or discarded';
    comment on column dead_run.job is 'JSON of an asynchronous run';
    comment on column dead_run.scheduled is 'time of a scheduled run';
    comment on column dead_run.takes is 'how often a worker has leased it';
    comment on column dead_run.due is 'when to replay it';
    create table if not exists dead_notice (
      project uuid not null,
      bot uuid not null,
      at timestamptz not null,
      primary key (project, bot)
    );
    comment on table dead_notice is 'when a Project was last mailed about failed runs of a bot';
  `)
}

export async function down(knex: Knex): Promise<void> {
  await knex.raw('drop table dead_notice; drop table dead_run')
}

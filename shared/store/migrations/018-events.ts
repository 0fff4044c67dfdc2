/**
 * Events: `outbox` holds changes that somebody may wait for until they are matched, `delivery` what a
 * Subscription is owed until it has it, `active_subscription` says who waits for what.
 */
import type { Knex } from 'knex'

const TABLES = `
drop table outbox;
create table outbox (
  project int not null,
  seq bigint generated always as identity,
  type smallint not null,
  id uuid not null,
  ver int not null,
  op "char" not null,
  origin text not null,
  primary key (project, seq)
);
create index outbox_resource on outbox (project, type, id, ver);

create table active_subscription (
  project int not null,
  id uuid not null,
  watched smallint not null,
  ver int not null,
  since timestamptz not null,
  until timestamptz,
  primary key (project, id)
);
create index active_subscription_watched on active_subscription (project, watched);

create table delivery (
  project int not null,
  id uuid primary key,
  subscription uuid not null,
  type smallint not null,
  resource uuid not null,
  ver int not null,
  op "char" not null,
  origin text not null,
  target text not null,
  state text not null default 'waiting',
  attempts smallint not null default 0,
  faults smallint not null default 0,
  added timestamptz not null default clock_timestamp(),
  due timestamptz not null default clock_timestamp(),
  error text
);
create index delivery_due on delivery (project, due) where state <> 'failed';
create index delivery_resource on delivery (project, subscription, type, resource, ver)
  where state <> 'failed';
create index delivery_failed on delivery (project, subscription, added) where state = 'failed';
`

const BEFORE = `
drop table delivery, active_subscription, outbox;
create table outbox (
  seq bigint generated always as identity primary key,
  project int not null,
  type smallint not null,
  id uuid not null,
  ver int not null,
  op "char" not null,
  origin jsonb
);
`

export async function up(knex: Knex): Promise<void> {
  await knex.raw(TABLES)
}

export async function down(knex: Knex): Promise<void> {
  await knex.raw(BEFORE)
}

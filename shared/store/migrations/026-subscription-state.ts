/** How the deliveries of a Subscription have gone; and when a Subscription ends by itself. */
import type { Knex } from 'knex'

const TABLES = `
create table subscription_state (
  project int not null,
  subscription uuid not null,
  delivered bigint not null default 0,
  failed bigint not null default 0,
  failures int not null default 0,
  failing_since timestamptz,
  orphan_since timestamptz,
  pauses smallint not null default 0,
  paused_until timestamptz,
  error text,
  primary key (project, subscription)
);
alter table active_subscription add column ends timestamptz;
create index active_subscription_ends on active_subscription (ends) where ends is not null;
create index active_subscription_until on active_subscription (until) where until is not null;
drop index delivery_due;
create index delivery_due on delivery (project, (attempts > 0), due) where state <> 'failed';
`

const BEFORE = `
drop table subscription_state;
drop index active_subscription_until;
alter table active_subscription drop column ends;
drop index delivery_due;
create index delivery_due on delivery (project, due) where state <> 'failed';
`

export async function up(knex: Knex): Promise<void> {
  await knex.raw(TABLES)
}

export async function down(knex: Knex): Promise<void> {
  await knex.raw(BEFORE)
}

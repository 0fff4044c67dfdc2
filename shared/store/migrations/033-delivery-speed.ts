/** What each take of deliveries looks for is found without a look at the rest; successes that no AuditEvent tells of yet. */
import type { Knex } from 'knex'

const UP = `
drop index delivery_due;
create index delivery_due on delivery (project, target, subscription, (attempts > 0), due)
  where state <> 'failed';
create index delivery_active on delivery (project, target) where state = 'active';
alter table subscription_state add column untold int not null default 0,
  add column untold_since timestamptz;
create index subscription_state_untold on subscription_state (untold_since)
  where untold_since is not null;
`

const DOWN = `
drop index subscription_state_untold;
alter table subscription_state drop column untold, drop column untold_since;
drop index delivery_active;
drop index delivery_due;
create index delivery_due on delivery (project, (attempts > 0), due) where state <> 'failed';
`

export async function up(knex: Knex): Promise<void> {
  await knex.raw(UP)
}

export async function down(knex: Knex): Promise<void> {
  await knex.raw(DOWN)
}

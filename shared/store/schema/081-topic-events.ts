/** Events of Subscriptions to topics, and the notices that such Subscriptions send: handshakes and heartbeats. */
import type { Knex } from 'knex'

export async function up(knex: Knex): Promise<void> {
  await knex.raw(`
    create table if not exists topic_event (
      project int not null,
      subscription uuid not null,
      num bigint not null,
      type smallint not null,
      resource uuid not null,
      ver int not null,
      op "char" not null,
      at timestamptz not null,
      primary key (project, subscription, num)
    );
    create index if not exists topic_event_at on topic_event (at);
    alter table delivery add column if not exists event bigint;
    comment on column delivery.event is 'number of the event of a topic';
    alter table subscription_state
      add column if not exists events bigint not null default 0,
      add column if not exists notified timestamptz;
    comment on column subscription_state.events is 'number of the latest event of a topic';
    comment on column subscription_state.notified is 'when the latest event or heartbeat was added';
    alter table active_subscription
      add column if not exists beat_seconds int,
      add column if not exists beat_target text;
    comment on column active_subscription.beat_seconds is 'a heartbeat follows so much silence';
    comment on column active_subscription.beat_target is 'delivery.target of a heartbeat';
    create index if not exists active_subscription_beat on active_subscription (project, id)
      where beat_seconds is not null;
  `)
}

export async function down(knex: Knex): Promise<void> {
  await knex.raw(`
    drop index active_subscription_beat;
    alter table active_subscription drop column beat_seconds, drop column beat_target;
    alter table subscription_state drop column events, drop column notified;
    alter table delivery drop column event;
    drop table topic_event;
  `)
}

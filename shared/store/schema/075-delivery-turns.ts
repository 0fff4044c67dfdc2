/** Deliveries with a key take turns; debounced deliveries and occurrences replace each other. */
import type { Knex } from 'knex'

export async function up(knex: Knex): Promise<void> {
  await knex.raw(`
    alter table delivery
      add column if not exists turn_key text,
      add column if not exists turn_most int,
      add column if not exists turn_seq bigint,
      add column if not exists debounced boolean not null default false,
      add column if not exists replaced int not null default 0;
    comment on column delivery.turn_key is 'key of the bot''s runs';
    comment on column delivery.turn_most is 'runs of the key at a time';
    comment on column delivery.turn_seq is 'order of arrival: the number of the change in outbox';
    comment on column delivery.debounced is 'a later change may replace it until it is due';
    comment on column delivery.replaced is 'changes that it has replaced';
    alter table occurrence add column if not exists replaced int not null default 0;
    comment on column occurrence.replaced is 'earlier occurrences that it has replaced';
    create index if not exists delivery_turn on delivery (project, turn_key, turn_seq, id)
      where turn_key is not null and state <> 'failed';
  `)
}

export async function down(knex: Knex): Promise<void> {
  await knex.raw(`
    drop index delivery_turn;
    alter table occurrence drop column replaced;
    alter table delivery drop column turn_key, drop column turn_most, drop column turn_seq,
      drop column debounced, drop column replaced
  `)
}

/** Fencing leases for all work that workers take from a table. */
import type { Knex } from 'knex'

export async function up(knex: Knex): Promise<void> {
  await knex.raw(`
    alter table job
      add column if not exists takes int not null default 0,
      add column if not exists held timestamptz;
    comment on column job.takes is 'how often a worker has leased it';
    comment on column job.held is 'until when the worker that leased it last has it; null: nobody';
    alter table mail add column if not exists takes int not null default 0;
    comment on column mail.takes is 'how often a worker has leased it';
    alter table import_part add column if not exists takes int not null default 0;
    comment on column import_part.takes is 'how often a worker has leased it';
    alter table stored_content add column if not exists takes int not null default 0;
    comment on column stored_content.takes is 'how often a worker has leased it';

    create or replace function require_run(owner "char", run uuid, taking int) returns boolean
      language plpgsql volatile as $$
    begin
      case owner
        when 'r' then perform from pending_run where id = run and takes = taking for share;
        when 'o' then perform from occurrence o where o.run = require_run.run and takes = taking for share;
        when 'j' then perform from job where id = run and takes = taking for share;
        else perform from delivery where id = run and takes = taking for share;
      end case;
      if not found then
        raise exception using errcode = 'BT002', message = 'another worker has the run';
      end if;
      return true;
    end $$;
  `)
}

export async function down(knex: Knex): Promise<void> {
  await knex.raw(`
    alter table stored_content drop column takes;
    alter table import_part drop column takes;
    alter table mail drop column takes;
    alter table job drop column takes, drop column held;
  `)
}

/** Fencing leases for retryable bot runs: a run without its row cannot write. */
import type { Knex } from 'knex'

export async function up(knex: Knex): Promise<void> {
  await knex.raw(`
    alter table pending_run
      add column if not exists takes int not null default 0,
      add column if not exists returned int not null default 0,
      add column if not exists held timestamptz,
      add column if not exists effect boolean not null default false;
    comment on column pending_run.takes is 'how often a worker has taken it';
    comment on column pending_run.returned is 'how often it was given back before it began';
    comment on column pending_run.held is 'until when the worker that took it last has it; null: nobody';
    comment on column pending_run.effect is 'it may have changed something';
    alter table occurrence
      add column if not exists takes int not null default 0,
      add column if not exists held timestamptz;
    alter table delivery add column if not exists takes int not null default 0;

    create or replace function require_run(owner "char", run uuid, taking int) returns boolean
      language plpgsql volatile as $$
    begin
      case owner
        when 'r' then perform from pending_run where id = run and takes = taking for share;
        when 'o' then perform from occurrence o where o.run = require_run.run and takes = taking for share;
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
    drop function require_run;
    alter table delivery drop column takes;
    alter table occurrence drop column takes, drop column held;
    alter table pending_run drop column takes, drop column returned,
      drop column held, drop column effect;
  `)
}

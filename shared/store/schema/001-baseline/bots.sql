-- Bots: runs that no loss of Redis may lose, schedules, and records of runs.

-- An asynchronous run from its acceptance until its AsyncJob is finished.
create table pending_run (
  id uuid primary key,
  project uuid not null,
  home text not null,               -- the Redis that knows its job
  added timestamptz not null default clock_timestamp(),
  job text                          -- JSON; null for a run that must not be started a second time
);

-- A Bot that runs by itself, and when it does so next.
create table schedule (
  project int not null,
  id uuid not null,
  since timestamptz not null default clock_timestamp(),
  due timestamptz,                  -- null: to be computed; infinity: never again
  primary key (project, id)
);
create index schedule_due on schedule (due nulls first);

-- A scheduled run until it has ended; the key lets each time happen once over all workers.
create table occurrence (
  project int not null,
  bot uuid not null,
  scheduled timestamptz not null,
  run uuid not null unique default gen_random_uuid(),
  attempt int not null default 1,
  due timestamptz not null,         -- when a worker may take it, or take it over
  home text,
  primary key (project, bot, scheduled),
  foreign key (project, bot) references schedule on delete cascade
);
create index occurrence_due on occurrence (due);

-- A run as `$runs` shows it, for a week. The record is JSON as text: a log may hold characters that
-- jsonb refuses.
create table bot_run (
  bot uuid not null,
  started timestamptz not null,
  id uuid not null,
  project int not null,
  record text not null,
  archived boolean not null,        -- its input lies in the storage, for $replay
  primary key (bot, started, id)    -- the latest runs of a Bot
);
-- What is older than a week.
create index bot_run_started on bot_run (started);

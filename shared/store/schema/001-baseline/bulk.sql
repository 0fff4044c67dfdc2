-- Bulk data: exports and imports as jobs whose parts workers lease.

-- An export from its request until its record is removed.
create table export_job (
  id uuid primary key,
  project int not null,
  state text not null,              -- accepted, active, completed, error, cancelled
  input jsonb not null,
  requested timestamptz not null default date_trunc('milliseconds', clock_timestamp()),
  at timestamptz,                   -- the time whose state is exported
  finished timestamptz,
  expires timestamptz,
  downloaded timestamptz,
  swept boolean not null default false,   -- its files have left the storage
  numbers jsonb not null default '{}',    -- files by kind and type so far
  issues jsonb not null default '[]',
  failure jsonb,
  pages int not null default 0      -- of the manifest, while the export runs
);
create index export_job_project on export_job (project, state);
create index export_job_unswept on export_job (state) where not swept;

-- A piece of an export for one worker: a type and a range of row ids, several small types, or the plan
-- and the close of the job.
create table export_part (
  job uuid not null references export_job on delete cascade,
  n int not null,
  kind text not null,
  type smallint,                    -- the one that `after` belongs to
  low uuid,
  high uuid,
  after uuid,                       -- the last row that is written
  rows bigint not null default 0,
  state text not null default 'waiting',  -- waiting, active, done
  epoch int not null default 0,     -- grows with each lease, so that a late worker writes nothing
  tries int not null default 0,
  failures int not null default 0,
  lease timestamptz,
  types smallint[],                 -- those of a shared part, in their order
  primary key (job, n)
);
create index export_part_open on export_part (state) where state <> 'done';

-- A file of an export; blocks say where its compressed pieces lie, crc and packed make it one gzip.
create table export_file (
  job uuid not null references export_job on delete cascade,
  part int not null,
  seq int not null,
  kind text not null,               -- output, deleted, error
  type text not null,
  number int,                       -- in its name; null until it is whole
  rows bigint not null,
  bytes bigint not null,
  packed bigint not null,
  crc bigint not null,
  blocks jsonb not null,
  page int,                         -- of a manifest that was answered while the export ran
  goes_on boolean not null default false, -- begins inside a compartment of the file before
  primary key (job, part, seq),
  unique (job, kind, type, number)
);

-- A patient whose compartment is exported; key is its reference as resources hold it.
create table export_member (
  job uuid not null references export_job on delete cascade,
  reference text not null,
  key bigint not null,
  id uuid,
  primary key (job, reference)
);
create index export_member_id on export_member (job, id) where id is not null;

-- Row ids that the plan has found, sorted, thousands a row: a row each took longer to write than all
-- the rest of the plan. No foreign key, and no compression, for the same reason.
create table export_list (
  job uuid not null,
  type smallint not null,
  low uuid not null,                -- first and last of ids
  high uuid not null,
  ids uuid[] not null,
  versions bigint
);
alter table export_list alter ids set storage external;
create index export_list_job on export_list (job, type);

-- Exports by patients: row ids of one compartment, by type and by the grant that governs them.
create table export_compartment (
  job uuid not null,
  patient uuid not null,
  place smallint not null,          -- 0 for the Patient itself, else the number of the type
  ruling int,
  ids uuid[] not null
);
alter table export_compartment alter ids set storage external;
create index export_compartment_job on export_compartment (job, patient, place);

-- An import from its request until it is removed.
create table import_job (
  id uuid primary key,
  project int not null,
  state text not null default 'active',
  request text not null,
  caller jsonb not null,            -- as whom the lines are written; holds no token
  mode text not null,               -- upsert, ifNoneMatch
  in_order boolean not null,
  failure jsonb,
  added timestamptz not null default clock_timestamp(),
  ended timestamptz
);
create index import_job_project on import_job (project, added) where state = 'active';

-- An input of an import. bytes and lines are the ranges of it that are committed, each in the
-- transaction that wrote them, so that a worker goes on exactly there.
create table import_part (
  job uuid not null references import_job on delete cascade,
  part int not null,
  type text,                        -- null: the address is that of a manifest
  url text not null,
  state text not null default 'waiting',
  size bigint,
  bytes int8multirange not null default '{}',
  lines int8multirange not null default '{}',
  created bigint not null default 0,
  updated bigint not null default 0,
  unchanged bigint not null default 0,
  skipped bigint not null default 0,
  failed bigint not null default 0,
  attempts int not null default 0,
  lease uuid,                       -- the worker that reads it, until due
  due timestamptz not null default clock_timestamp(),
  primary key (job, part)
);
create index import_part_due on import_part (due) where state = 'waiting';

-- A line that was refused, with its OperationOutcome.
create table import_error (
  job uuid not null references import_job on delete cascade,
  part int not null,
  line bigint not null,
  outcome text not null,
  primary key (job, part, line)
);

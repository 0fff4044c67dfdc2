-- Long work of workers, and what requests leave behind: jobs, answers, content, mail, refresh tokens.

-- Work that a worker does in the background and another one goes on with if that one dies: requests
-- with `Prefer: respond-async`, reindex, expunge, downloads of attachments, index upkeep.
create table job (
  id uuid primary key,              -- that of its AsyncJob, if somebody waits for it
  project int not null,
  kind text not null,
  state text not null,              -- waiting, active
  index_rev int,                    -- not used
  input jsonb,
  progress jsonb,                   -- where to go on
  started timestamptz,
  touched timestamptz not null default clock_timestamp()  -- last sign of life of its worker
);
create index job_state on job (kind, state, touched);
-- One job a Project that indexes by its SearchParameters, and one in all for a new revision.
create unique index job_own_parameters on job (project) where kind = 'own-parameters';
create unique index job_index_revision on job (kind) where kind = 'index-revision';

-- The sealed answer to a request with an Idempotency-Key, for a day.
create table idempotent_request (
  id bytea primary key,             -- digest of caller and key
  body bytea not null,              -- digest of the request
  added timestamptz not null default clock_timestamp(),
  status int,                       -- null while the request runs
  headers jsonb,
  reply bytea
);
create index idempotent_request_added on idempotent_request (added);

-- Content in the storage, so that a crash between content and resource leaves nothing for ever.
create table stored_content (
  key text primary key,
  place bytea not null,             -- digest of the storage it lies in
  added timestamptz not null default clock_timestamp(),
  due timestamptz                   -- when to look for a resource that names it; null once one does
);
create index stored_content_due on stored_content (due) where due is not null;

-- A mail from the transaction that wants it sent until it is; without a mail server it waits.
create table mail (
  id uuid primary key,
  project text not null,
  message jsonb not null,
  state text not null default 'waiting',
  attempts int not null default 0,
  added timestamptz not null default clock_timestamp(),
  due timestamptz not null default clock_timestamp(),
  error text
);
create index mail_due on mail (due) where state = 'waiting';
-- What is old enough to be removed.
create index mail_added on mail (added) where state <> 'waiting';

-- A refresh token by its digest. A replaced one stays until it expires, so that its second use is
-- noticed; its successor is sealed with the token itself, which is not stored.
create table refresh_token (
  digest bytea primary key,
  login text collate "C" not null,
  began timestamptz not null default clock_timestamp(),
  expires timestamptz not null,
  replaced timestamptz,
  successor bytea
);
create index refresh_token_expires on refresh_token (expires);

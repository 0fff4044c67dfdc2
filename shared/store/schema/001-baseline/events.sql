-- Events: changes that somebody may wait for, who waits, and deliveries until they are made.

-- A change that an active Subscription may match, written with the change, until it is matched.
create table outbox (
  project int not null,
  seq bigint generated always as identity,
  type smallint not null,
  id uuid not null,
  ver int not null,
  op "char" not null,               -- c, u or d
  origin text not null,             -- JSON: what caused the change, such as a bot
  primary key (project, seq)
);
-- Earlier changes of the same resource, which are matched first.
create index outbox_resource on outbox (project, type, id, ver);

-- A Subscription that is active; a write looks here, in its own statement, whether to leave an event.
create table active_subscription (
  project int not null,
  id uuid not null,
  watched smallint not null,        -- number of the type that its criteria name
  ver int not null,
  since timestamptz not null,
  until timestamptz,                -- web sockets: when it ends unless it is bound again
  ends timestamptz,                 -- Subscription.end
  primary key (project, id)
);
create index active_subscription_watched on active_subscription (project, watched);
-- Subscriptions that end by themselves.
create index active_subscription_ends on active_subscription (ends) where ends is not null;
create index active_subscription_until on active_subscription (until) where until is not null;

-- One change for one Subscription until its receiver has it, or it has failed for good.
create table delivery (
  project int not null,
  id uuid primary key,
  subscription uuid not null,
  type smallint not null,
  resource uuid not null,
  ver int not null,
  op "char" not null,
  origin text not null,
  target text not null,             -- host of a web hook, or Bot/<id>
  state text not null default 'waiting',  -- waiting, active, failed
  attempts smallint not null default 0,   -- refusals of the receiver
  faults smallint not null default 0,     -- losses on our side, such as a worker that died
  added timestamptz not null default clock_timestamp(),
  due timestamptz not null default clock_timestamp(),
  error text
);
-- What a worker takes next: first attempts before repeated ones, Subscription by Subscription.
create index delivery_due on delivery (project, target, subscription, (attempts > 0), due)
  where state <> 'failed';
-- How many deliveries of a Project are under way.
create index delivery_active on delivery (project, target) where state = 'active';
-- Earlier versions of the same resource, which are delivered first.
create index delivery_resource on delivery (project, subscription, type, resource, ver)
  where state <> 'failed';
-- `$status` and `$redeliver`.
create index delivery_failed on delivery (project, subscription, added) where state = 'failed';

-- How the deliveries of a Subscription went, and whether it rests.
create table subscription_state (
  project int not null,
  subscription uuid not null,
  delivered bigint not null default 0,
  failed bigint not null default 0,
  failures int not null default 0,  -- in a row
  failing_since timestamptz,
  orphan_since timestamptz,         -- nobody is reached since then
  pauses smallint not null default 0,
  paused_until timestamptz,
  error text,
  untold int not null default 0,    -- successes that no AuditEvent reports yet
  untold_since timestamptz,
  primary key (project, subscription)
);
-- Successes that wait for their common AuditEvent.
create index subscription_state_untold on subscription_state (untold_since)
  where untold_since is not null;

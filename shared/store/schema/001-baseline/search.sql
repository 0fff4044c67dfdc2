-- Search: what only order can find, the dictionary of codings, full text, and the salt of all keys.
-- In the side tables `type` fills padding, so it is free; with it a deletion by id cannot take the rows
-- of another type's resource that has the same id.

-- A normalised string (no marks, lower case) of a resource, by Project and parameter.
create table idx_string (
  project int not null,
  type smallint not null,
  p bigint not null,
  v text collate "C" not null,
  id uuid not null,
  primary key (project, p, v, id)   -- prefixes, sorts by a string
);
-- The rows that a write replaces.
create index idx_string_id on idx_string (id);

-- A number, quantity or date beside the main one as a range from lo to hi; u is the unit's hash.
create table idx_range (
  project int not null,
  type smallint not null,
  p bigint not null,
  lo float8 not null,
  hi float8 not null,
  u bigint not null,
  id uuid not null,
  primary key (project, p, lo, hi, id, u)
);
create index idx_range_id on idx_range (id);
-- Ranges that reach far above where they begin; times, which are all wide, are left out. It is read
-- alone, so a plan for all values finds it cheaper than the primary key.
create index idx_range_wide on idx_range (project, p, hi) include (lo, u, id)
  where hi - lo > 1 and lo < 1000000000;

-- A distinct coding of a parameter: for `system|`, `:text`, units, and sorts by codes.
create table code (
  project int not null,
  p bigint not null,
  k bigint not null,                -- the key that resources hold
  system text not null,
  code text not null,
  display text,                     -- the first one seen
  primary key (project, p, k)
);

-- The words of a resource, in Projects with full text search: _text reads the narrative, _content all.
-- Each vector also holds a lexeme for its Project and type, so that the index narrows to those.
create table resource_text (
  project int not null,
  type smallint not null,
  id uuid not null,
  narrative tsvector not null,
  content tsvector not null,
  primary key (project, type, id)
);
create index resource_text_narrative on resource_text using gin (narrative)
  with (fastupdate = on, gin_pending_list_limit = 512);
create index resource_text_content on resource_text using gin (content)
  with (fastupdate = on, gin_pending_list_limit = 512);

-- The version of a Project's SearchParameter that all of its resources are indexed by.
create table indexed_parameter (
  project int not null,
  id uuid not null,
  ver int not null,
  primary key (project, id)
);

-- One row: the oldest revision of the extraction code that index rows were made by.
create table index_revision (rev int not null);
insert into index_revision (rev) values (1);

-- One row: the salt of keys and row ids. Without it everything has to be indexed anew.
create table search_key_salt (salt bytea not null);
insert into search_key_salt (salt)
  select decode(replace(gen_random_uuid()::text || gen_random_uuid()::text, '-', ''), 'hex');

-- Ends a chain that leads to too many resources: what one step hands to the next is an array.
create function search_cap(keys bigint[], most int) returns bigint[]
language plpgsql immutable parallel safe as $$
begin
  if cardinality(keys) > most then
    raise exception 'more than % keys', most using errcode = 'BT001';
  end if;
  return keys;
end $$;

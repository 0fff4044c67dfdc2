-- Resources: an append-only log of versions, and one narrow row for each live resource.
-- Projects and resource types are small numbers, since they stand in every row and every index.

-- A Project and its number. Project 1 is the system project, which holds the registry
-- (Project, User, ProjectMembership, Login, ...) of all of them.
create table tenant (
  project serial primary key,
  fhir_id uuid unique not null,
  full_text int                     -- version of the Project that switched full text search on
);
insert into tenant (project, fhir_id) values (1, '00000000-0000-0000-0000-000000000001');
select setval(pg_get_serial_sequence('tenant', 'project'), 1);

-- A version of a resource; a read copies the newest one to the socket as it lies here. The key begins
-- with the id and not the type: ids grow with time, so new entries fill the right edge of the tree
-- (50 bytes a row, 88 with the type in front).
create table version (
  project int not null,
  type smallint not null,           -- number of the resource type, never given to another
  id uuid not null,
  ver int not null,
  lu timestamptz not null,          -- meta.lastUpdated, set by PostgreSQL in the statement that writes
  author uuid,
  content text,                     -- JSON as it is answered; null for a deletion
  meta_at int not null,             -- where in content the platform's own meta is put in
  meta_ext text not null,           -- that meta (author, project, compartment), shown in extended mode
  primary key (project, id, type, ver)
) with (autovacuum_vacuum_insert_scale_factor = 0.05);
-- Histories of a type, exports since a time.
create index version_lu on version (project, type, lu);
-- Patients (type 112) with accounts, which new resources of their compartments inherit: few, so few
-- pages. A statement has to ask in the same words.
create index account_holder on version (project, id)
  where type = 112 and meta_ext like '%"accounts":%';

do $$
begin
  if exists (select from pg_settings
      where name = 'default_toast_compression' and 'lz4' = any (enumvals)) then
    alter table version alter content set compression lz4;
  end if;
end $$;

-- A live resource with all that it is found by. keys holds salted 64-bit hashes: its own key first,
-- then references and compartments (nref of them together), then tokens and uris.
create table resource (
  project int not null,
  type smallint not null,
  id uuid not null,
  ver int not null,
  lu timestamptz not null,
  d_lo timestamptz,                 -- begin and end of the type's main date
  d_hi timestamptz,
  nref smallint not null,
  keys bigint[] not null,
  primary key (project, type, id)
) with (autovacuum_vacuum_scale_factor = 0.02, autovacuum_analyze_scale_factor = 0.02);
-- 10,000 most common keys: from their frequencies a search chooses its plan.
alter table resource alter keys set statistics 1000;
-- Newest first, the order of most searches.
create index resource_lu on resource (project, type, lu, id);
-- By the main date, and what has none, which sorts last.
create index resource_d on resource (project, type, d_lo, id) where d_lo is not null;
create index resource_no_d on resource (project, type, id) where d_lo is null;
-- Every token, reference, uri and compartment of a search. The short pending list bounds what a
-- search reads besides the tree.
create index resource_keys on resource using gin (keys)
  with (fastupdate = on, gin_pending_list_limit = 512);
-- The far end of a policy's chain: one probe of a B-tree. For the types that others refer to: Patient,
-- Encounter, RelatedPerson, Practitioner, PractitionerRole, Organization, Location, CareTeam, Group,
-- EpisodeOfCare, Coverage, Device. A statement has to ask in the same words.
create index resource_self on resource ((keys[1]))
  where (type in (112, 51, 125, 117, 118, 109, 79, 20, 65, 55, 37, 41)) is true;

-- A value that only one resource of a Project may have, such as an address of a User.
create table unique_key (
  project int not null,
  type smallint not null,
  p bigint not null,                -- hash of type and parameter
  k bigint not null,                -- hash of the value
  id uuid not null,
  primary key (project, p, k)
);
-- What a resource gives up when it changes or goes.
create index unique_key_id on unique_key (id);

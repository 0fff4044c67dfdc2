-- Terminology: concepts and mappings that were imported, too many for the content of one resource.

-- A CodeSystem or ConceptMap that owns imported rows.
create table concept_owner (
  n serial primary key,
  project uuid not null,
  type smallint not null,
  id text collate "C" not null,
  unique (project, type, id)
);

-- A concept; v is its normalised display, words what a text filter looks for.
create table concept (
  owner int not null references concept_owner on delete cascade,
  code text collate "C" not null,
  seq bigint generated always as identity,
  display text,
  definition text,
  v text collate "C" not null,
  words tsvector not null,
  primary key (owner, code)
);
-- The order in which concepts came, which is the order of an expansion.
create index concept_seq on concept (owner, seq);
-- $expand with a filter.
create index concept_words on concept using gin (words);

-- A property of a concept; the key serves filters by its value, parents included.
create table concept_property (
  owner int not null references concept_owner on delete cascade,
  code text collate "C" not null,
  property text collate "C" not null,
  value text collate "C" not null,
  primary key (owner, property, value, code)
);
-- All properties of one concept, for $lookup.
create index concept_property_code on concept_property (owner, code);

-- A mapping from one code to another; the key serves $translate.
create table concept_mapping (
  owner int not null references concept_owner on delete cascade,
  source_system text collate "C" not null,
  source text collate "C" not null,
  target_system text collate "C" not null,
  target text collate "C" not null,
  display text,
  equivalence text not null,
  seq bigint generated always as identity,
  primary key (owner, source_system, source, target_system, target)
);
-- $translate in reverse.
create index concept_mapping_target on concept_mapping (owner, target);

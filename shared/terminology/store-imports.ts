/** Imported concepts of CodeSystems and mappings of ConceptMaps. The access to the owner was checked before. */

import { tooCostly } from '../core/errors.ts'
import { typeNumber } from '../fhir/definitions.ts'
import { normaliseString } from '../fhir/values.ts'
import { dialect } from '../postgres/chosen-dialect.ts'
import type { Connection } from '../postgres/statement.ts'
import { comparableWords } from './concepts.ts'
import { conceptOwner, type ImportedProperty } from './store-concepts.ts'

export interface ImportedConcept {
  readonly code: string
  readonly display: string | undefined
}

export interface ImportedDesignation {
  readonly code: string
  readonly language: string | undefined
  readonly use: Readonly<Record<'system' | 'code' | 'display', string | undefined>>
  readonly value: string
}

interface Imported {
  readonly concepts: readonly ImportedConcept[]
  readonly properties: readonly ImportedProperty[]
  readonly designations: readonly ImportedDesignation[]
}

/** Adds rows within one transaction; a repeated code gets the new display, `status` and `inactive`. */
export async function importConcepts(
  connection: Connection,
  owner: number,
  { concepts, properties, designations }: Imported,
): Promise<void> {
  await addConcepts(connection, owner, concepts)
  await addProperties(connection, owner, properties)
  await addDesignations(connection, owner, designations)
}

async function addConcepts(
  connection: Connection,
  owner: number,
  concepts: readonly ImportedConcept[],
): Promise<void> {
  const distinct = [...new Map(concepts.map((item) => [item.code, item])).values()]
  if (distinct.length === 0) return
  await connection.query({
    text: `insert into concept (owner, code, display, v, words)
      select $1, x.code, nullif(x.display, ''), x.v, array_to_tsvector(string_to_array(x.words, ' '))
      from ${dialect.unnest('$2::text[]', '$3::text[]', '$4::text[]', '$5::text[]')} as x(code, display, v, words)
      on conflict (owner, code) do update set display = coalesce(excluded.display, concept.display),
        v = case when excluded.display is null then concept.v else excluded.v end,
        words = case when excluded.display is null then concept.words else excluded.words end`,
    values: [
      owner,
      distinct.map(({ code }) => code),
      distinct.map(({ display }) => display ?? ''),
      distinct.map(({ display }) => normaliseString(display ?? '')),
      distinct.map(({ code, display }) =>
        [...new Set([...comparableWords(code), ...comparableWords(display ?? '')])].join(' '),
      ),
    ],
  })
}

async function addProperties(
  connection: Connection,
  owner: number,
  properties: readonly ImportedProperty[],
): Promise<void> {
  if (properties.length === 0) return
  // Other properties may have several values, which may come in several requests.
  await connection.query({
    text: `with sent as (select * from ${dialect.unnest('$2::text[]', '$3::text[]', '$4::text[]')} as x(code, property, value)),
      replaced as (delete from concept_property p using sent
        where p.owner = $1 and p.code = sent.code and p.property = sent.property
          and p.property in ('status', 'inactive')
          and (p.code, p.property, p.value) not in (select code, property, value from sent))
      insert into concept_property (owner, code, property, value)
      select $1, code, property, value from sent on conflict do nothing`,
    values: [
      owner,
      properties.map(({ code }) => code),
      properties.map(({ property }) => property),
      properties.map(({ value }) => value),
    ],
  })
}

async function addDesignations(
  connection: Connection,
  owner: number,
  designations: readonly ImportedDesignation[],
): Promise<void> {
  if (designations.length === 0) return
  await connection.query({
    text: `insert into concept_designation
        (owner, code, language, use_system, use_code, use_display, value)
      select $1, * from unnest($2::text[], $3::text[], $4::text[], $5::text[], $6::text[], $7::text[])
      on conflict do nothing`,
    values: [
      owner,
      designations.map(({ code }) => code),
      designations.map(({ language }) => language ?? ''),
      designations.map(({ use }) => use.system ?? ''),
      designations.map(({ use }) => use.code ?? ''),
      designations.map(({ use }) => use.display ?? ''),
      designations.map(({ value }) => value),
    ],
  })
}

/** Returns the owner's number, created at the first import. */
export async function ensureConceptOwner(
  connection: Connection,
  projectId: string,
  type: 'CodeSystem' | 'ConceptMap',
  id: string,
): Promise<number> {
  await connection.query({
    text: 'insert into concept_owner (project, type, id) values ($1, $2, $3) on conflict do nothing',
    values: [projectId, typeNumber(type), id],
  })
  const owner = await conceptOwner(connection, projectId, type, id)
  if (owner === undefined) throw new Error(`${type}/${id} has no row in concept_owner`)
  return owner
}

export interface ImportedMapping {
  readonly sourceSystem: string
  readonly source: string
  readonly targetSystem: string
  readonly target: string
  readonly display: string | undefined
  readonly equivalence: string
}

/** A repeated mapping gets the new equivalence and display. */
export async function importMappings(
  connection: Connection,
  owner: number,
  mappings: readonly ImportedMapping[],
): Promise<void> {
  const key = (item: ImportedMapping) =>
    JSON.stringify([item.sourceSystem, item.source, item.targetSystem, item.target])
  const distinct = [...new Map(mappings.map((item) => [key(item), item])).values()]
  if (distinct.length === 0) return
  await connection.query({
    text: `insert into concept_mapping
        (owner, source_system, source, target_system, target, display, equivalence)
      select $1, a, b, c, d, nullif(e, ''), f
      from ${dialect.unnest('$2::text[]', '$3::text[]', '$4::text[]', '$5::text[]', '$6::text[]', '$7::text[]')}
        as x(a, b, c, d, e, f)
      on conflict (owner, source_system, source, target_system, target)
        do update set display = excluded.display, equivalence = excluded.equivalence`,
    values: [
      owner,
      distinct.map(({ sourceSystem }) => sourceSystem),
      distinct.map(({ source }) => source),
      distinct.map(({ targetSystem }) => targetSystem),
      distinct.map(({ target }) => target),
      distinct.map(({ display }) => display ?? ''),
      distinct.map(({ equivalence }) => equivalence),
    ],
  })
}

const MOST_MATCHES = 1000

export interface CodeOfSystem {
  readonly system: string | undefined
  readonly code: string
}

interface Mapped {
  readonly codes: readonly CodeOfSystem[]
  readonly reverse: boolean
}

/** Maps source codes, or target codes with `reverse`, in import order. Errors: 400 for too many. */
export async function importedMappings(
  connection: Connection,
  owner: number,
  { codes, reverse }: Mapped,
): Promise<readonly ImportedMapping[]> {
  const rows = await connection.query<ImportedMapping>({
    text: `select m.source_system as "sourceSystem", m.source, m.target_system as "targetSystem", m.target,
        m.display, m.equivalence
      from concept_mapping m where m.owner = $1 and ${mappingPredicate(reverse, '$2', '$3')} order by m.seq limit $4`,
    values: [owner, ...systemsAndCodes(codes), MOST_MATCHES + 1],
  })
  if (rows.length <= MOST_MATCHES) return rows
  throw tooCostly(`There are more than ${MOST_MATCHES} mappings; give fewer codes`)
}

/** Tests a mapping `m` by its indexed code, then by the system. */
function mappingPredicate(reverse: boolean, systems: string, codes: string): string {
  const side = reverse ? 'target' : 'source'
  return `m.${side} = any(${codes}::text[])
        and exists (select 1 from ${dialect.unnest(`${systems}::text[]`, `${codes}::text[]`)} as x(system, code)
          where x.code = m.${side} and (x.system is null or x.system = m.${side}_system))`
}

function systemsAndCodes(codes: readonly CodeOfSystem[]) {
  return [codes.map(({ system }) => system ?? null), codes.map(({ code }) => code)]
}

/** Returns ids of ConceptMaps with an imported mapping of one of the codes: one index probe per map and code. */
export async function mapsWithImported(
  connection: Connection,
  projectId: string,
  { codes, reverse, limit }: Mapped & { readonly limit: number },
): Promise<readonly string[]> {
  const rows = await connection.query<{ id: string }>({
    text: `select o.id from concept_owner o where o.project = $1 and o.type = $2
      and exists (select 1 from concept_mapping m
        where m.owner = o.n and ${mappingPredicate(reverse, '$3', '$4')})
      limit $5`,
    values: [projectId, typeNumber('ConceptMap'), ...systemsAndCodes(codes), limit],
  })
  return rows.map(({ id }) => id)
}

/** Stores imported concepts under their owning CodeSystem. */
import { typeNumber } from '../fhir/definitions.ts'
import { normaliseString } from '../fhir/values.ts'
import type { Connection } from '../postgres/statement.ts'
import { comparableWords } from './concepts.ts'
import { conceptOwner } from './store-concepts.ts'

export interface ImportedConcept {
  readonly code: string
  readonly display: string | undefined
}

export interface ImportedProperty {
  readonly code: string
  readonly property: string
  readonly value: string
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

/** Adds rows within one transaction; a repeated code gets the new display. */
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
      from unnest($2::text[], $3::text[], $4::text[], $5::text[]) as x(code, display, v, words)
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
  await connection.query({
    text: `insert into concept_property (owner, code, property, value)
      select $1, * from unnest($2::text[], $3::text[], $4::text[]) on conflict do nothing`,
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

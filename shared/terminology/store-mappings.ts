/** Imported mappings of ConceptMaps. The caller's access to the owner was checked before. */
import { tooCostly } from '../core/errors.ts'
import { typeNumber } from '../fhir/definitions.ts'
import type { Connection } from '../postgres/statement.ts'

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
      from unnest($2::text[], $3::text[], $4::text[], $5::text[], $6::text[], $7::text[])
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

interface CodeOfSystem {
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
        and exists (select 1 from unnest(${systems}::text[], ${codes}::text[]) as x(system, code)
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

/** Imported mappings of ConceptMaps. As of imported concepts, whether the caller may read the owner was decided before. */
import { typeNumber } from '../fhir/definitions.ts'
import type { Connection } from '../platform/postgres/statement.ts'

export interface ImportedMapping {
  readonly sourceSystem: string
  readonly source: string
  readonly targetSystem: string
  readonly target: string
  readonly display: string | undefined
  readonly equivalence: string
}

/** A mapping sent again gets the new equivalence and display. */
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

interface MappedCode {
  readonly system: string | undefined
  readonly code: string
  readonly reverse: boolean
}

/** From a source code, or with `reverse` from a target code, in the order of import. */
export async function importedMappings(
  connection: Connection,
  owner: number,
  { system, code, reverse }: MappedCode,
): Promise<readonly ImportedMapping[]> {
  const side = reverse ? 'target' : 'source'
  return connection.query<ImportedMapping>({
    text: `select source_system as "sourceSystem", source, target_system as "targetSystem", target,
        display, equivalence
      from concept_mapping where owner = $1 and ${side} = $2
        and ($3::text is null or ${side}_system = $3) order by seq limit $4`,
    values: [owner, code, system ?? null, MOST_MATCHES],
  })
}

type CodeOfSystem = Pick<MappedCode, 'system' | 'code'>

/** Returns ids of ConceptMaps with an imported mapping of one of the codes: one index probe per map and code. */
export async function mapsWithImported(
  connection: Connection,
  projectId: string,
  {
    codes,
    side,
    limit,
  }: { codes: readonly CodeOfSystem[]; side: 'source' | 'target'; limit: number },
): Promise<readonly string[]> {
  const rows = await connection.query<{ id: string }>({
    text: `select o.id from concept_owner o where o.project = $1 and o.type = $2
      and exists (select 1 from unnest($3::text[], $4::text[]) as x(system, code)
        join concept_mapping m on m.owner = o.n and m.${side} = x.code
          and (x.system is null or m.${side}_system = x.system))
      limit $5`,
    values: [
      projectId,
      typeNumber('ConceptMap'),
      codes.map(({ system }) => system ?? null),
      codes.map(({ code }) => code),
      limit,
    ],
  })
  return rows.map(({ id }) => id)
}

/** Profiles, capability statements and guides of a Project: the CapabilityStatement declares them. */
import type { Principal } from '../access/principal.ts'
import { linkedProjects } from '../access/project-context.ts'
import { Cache } from '../core/cache.ts'
import { isResourceType, typeNumber } from '../fhir/definitions.ts'
import type { Connection } from '../postgres/statement.ts'
import { WELL_FORMED_CONTENT, withVersions } from '../store/rows/rows.ts'

export interface Declared {
  /** Equal for equal versions. */
  readonly stamp: string
  /** Urls of profiles by type. */
  readonly profiles: ReadonlyMap<string, readonly string[]>
  /** Canonicals of the server statements that the Project claims to fulfil. */
  readonly statements: readonly string[]
  readonly guides: readonly string[]
}

/** Most definitions read per Project, the oldest ones first. */
const MOST = 2000
const STRUCTURE = 'StructureDefinition'
const STATEMENT = 'CapabilityStatement'
const GUIDE = 'ImplementationGuide'
const TYPES = [STRUCTURE, STATEMENT, GUIDE]

interface DefinitionRow {
  readonly kind: number
  readonly url: string
  readonly version: string | null
  readonly type: string | null
}

const ROWS = `select * from resource where project = $1 and type = any($2::smallint[]) order by id limit ${MOST}`

const known = new Cache<string, Declared>({ name: 'declared-definitions', max: 200 })

/** Includes linked Projects that share the type. Undefined without definitions. */
export async function readDeclared(
  connection: Connection,
  principal: Principal,
): Promise<Declared | undefined> {
  const { number } = principal.project
  const shared = TYPES.flatMap((type) =>
    linkedProjects(principal, type).map((linked) => ({ project: linked.number, type })),
  )
  const linked = Map.groupBy(shared, ({ project }) => project)
  const found = await Promise.all([
    readOne(connection, number, TYPES),
    ...[...linked].map(([project, items]) =>
      readOne(
        connection,
        project,
        items.map(({ type }) => type),
      ),
    ),
  ])
  const declared = found.filter((item) => item !== undefined)
  return declared.length < 2 ? declared[0] : merge(declared)
}

function merge(all: readonly Declared[]): Declared {
  const profiles = new Map<string, readonly string[]>()
  for (const [type, urls] of all.flatMap((item) => [...item.profiles])) {
    profiles.set(type, union(profiles.get(type) ?? [], urls))
  }
  return {
    stamp: all.map(({ stamp }) => stamp).join(),
    profiles,
    statements: union(...all.map(({ statements }) => statements)),
    guides: union(...all.map(({ guides }) => guides)),
  }
}

function union(...lists: readonly (readonly string[])[]): readonly string[] {
  return [...new Set(lists.flat())]
}

/** One statement, and another after a change. */
async function readOne(
  connection: Connection,
  project: number,
  types: readonly string[],
): Promise<Declared | undefined> {
  const numbers = types.map(typeNumber)
  const [row] = await connection.query<{ stamp: string | null }>({
    name: 'declared-stamp',
    text: `select md5(string_agg(r.type || '/' || r.id || '/' || r.ver, ' ' order by r.id)) as stamp from (${ROWS}) r`,
    values: [project, numbers],
  })
  if (row === undefined || row.stamp === null) return undefined
  const stamp = `${project} ${row.stamp}`
  const cached = known.get(stamp)
  if (cached !== undefined) return cached
  const declared = { stamp, ...arrange(await readDefinitions(connection, project, numbers)) }
  known.set(stamp, declared)
  return declared
}

/** Only elements of the definitions leave PostgreSQL: a guide has dozens of megabytes. */
async function readDefinitions(
  connection: Connection,
  project: number,
  types: readonly number[],
): Promise<readonly DefinitionRow[]> {
  return await connection.query<DefinitionRow>({
    name: 'declared-definitions',
    text: `select r.type as kind, x.json->>'url' as url, x.json->>'version' as version, x.json->>'type' as type
      from (${ROWS}) r ${withVersions('$1')}
      cross join lateral (select ${WELL_FORMED_CONTENT}::json as json offset 0) x
      where x.json->>'url' is not null and x.json->>'status' in ('active', 'draft')
        and case r.type
          when ${typeNumber(STRUCTURE)} then x.json->>'kind' = 'resource' and x.json->>'derivation' = 'constraint'
          when ${typeNumber(STATEMENT)} then x.json->>'kind' = 'requirements' and x.json->'rest'->0->>'mode' = 'server'
          else true end
      order by url, version`,
    values: [project, types],
  })
}

function arrange(rows: readonly DefinitionRow[]): Omit<Declared, 'stamp'> {
  const profiles = new Map<string, readonly string[]>()
  for (const { kind, url, type } of rows) {
    if (kind !== typeNumber(STRUCTURE) || type === null || !isResourceType(type)) continue
    profiles.set(type, union(profiles.get(type) ?? [], [url]))
  }
  const canonicals = (name: string) =>
    rows
      .filter(({ kind }) => kind === typeNumber(name))
      .map(({ url, version }) => (version === null ? url : `${url}|${version}`))
  return { profiles, statements: canonicals(STATEMENT), guides: canonicals(GUIDE) }
}

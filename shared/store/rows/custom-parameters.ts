/** Custom search parameters of Projects. Sessions list versions; each is read once. */
import { unsearchablePaths } from '../../access/fields/fields.ts'
import { overlaps } from '../../access/paths.ts'
import { REGISTRY_TYPES } from '../../access/policy.ts'
import type { Principal } from '../../access/principal.ts'
import { Cache, FreshCache, getOrInsert } from '../../core/cache.ts'
import { timings } from '../../core/config/waits.ts'
import { badRequest, HttpError } from '../../core/errors.ts'
import { typeNumber } from '../../fhir/definitions.ts'
import type { OwnParameter, OwnParameters } from '../../fhir/definitions-data.ts'
import { parseJson } from '../../fhir/json.ts'
import type { Resource } from '../../fhir/resource.ts'
import type { Database } from '../../postgres/database.ts'
import type { Connection } from '../../postgres/statement.ts'
import type { ChangeListener } from '../../redis/changes.ts'
import { type Definition, parameterDefinitions } from '../../search/language/custom-parameters.ts'
import { pathsRead } from '../../search/language/parameter-paths.ts'
import { getIndexPlan } from '../index/index-plan.ts'
import { FULL_TEXT_ID } from './side-rows.ts'

/** The live SearchParameters of a Project, and those it is indexed by. */
export interface OwnVersions {
  /** `<row id>/<version>`, by id and so by creation time. */
  readonly parameters: readonly string[]
  readonly indexed: readonly string[]
  readonly full_text: string | null
}

export interface OwnParametersReader {
  /** One statement for versions new to this process. */
  compiled(
    connection: Connection,
    project: number,
    versions: OwnVersions,
  ): Promise<OwnParameters | undefined>
  /** Not older than 4 s; undefined without any. One statement at times. */
  of(connection: Connection, project: number): Promise<OwnParameters | undefined>
  /** Drops entries that changes have made stale. */
  follow: ChangeListener
  /** Readings of the Project from before this time are stale. */
  forgottenAt(project: number): number
  now(connection: Connection, project: number): Promise<OwnParameters | undefined>
}

export const SEARCH_PARAMETER = 'SearchParameter'
/** Most SearchParameters read per Project. */
const MOST = 1000
/** Lifetime of the versions in a session. */
const TRUSTED_MS = timings.sessionMs + 1000
const TIMES = { freshMs: timings.sessionMs / 2, usableMs: timings.sessionMs, max: 1_000 }

/** `project` is the SQL of its number. */
export const ownVersionsSql = (project: string): string => `
  array(select r.id || '/' || r.ver from resource r
    where r.project = ${project} and r.type = ${typeNumber(SEARCH_PARAMETER)}
    order by r.id limit ${MOST}) as parameters,
  array(select x.id || '/' || x.ver from indexed_parameter x
    where x.project = ${project}) as indexed,
  (select '${FULL_TEXT_ID}/' || x.full_text from tenant x where x.project = ${project}) as full_text`

export async function readOwnVersions(
  connection: Connection,
  project: number,
): Promise<OwnVersions | undefined> {
  const [row] = await connection.query<OwnVersions>({
    name: 'own-parameters',
    text: `select ${ownVersionsSql('$1::int')}`,
    values: [project],
  })
  return row
}

export function openOwnParameters(database: Database): OwnParametersReader {
  const known = new Cache<string, OwnParameters>({ name: 'compiled-parameters', max: 2_000 })

  const compiled: OwnParametersReader['compiled'] = async (connection, project, versions) => {
    const { parameters, indexed, full_text } = versions
    if (parameters.length === 0 && full_text === null) return undefined
    const name = `${project} ${parameters.join()} ${[...indexed].sort().join()} ${full_text}`
    const found = known.get(name)
    if (found !== undefined) return found
    const resources = await readVersions(connection, project, parameters)
    const made = ownParametersFrom(resources, new Set(indexed), full_text)
    known.set(name, made)
    return made
  }

  const now: OwnParametersReader['now'] = async (connection, project) => {
    const row = await readOwnVersions(connection, project)
    return row && compiled(connection, project, row)
  }

  const cache = new FreshCache<OwnParameters>(
    {
      ...TIMES,
      name: 'own-parameters',
      staleKey: ({ type, number }) => (type === SEARCH_PARAMETER ? String(number) : undefined),
    },
    (key) => now(database, Number(key)),
  )
  const forgotten = new Cache<number, number>({ name: 'changed-parameters', max: TIMES.max })
  let allForgottenAt = 0
  return {
    compiled,
    now,
    follow(changes) {
      if (changes === 'everything') {
        allForgottenAt = Date.now()
        return
      }
      for (const { type, number } of changes) {
        if (type === SEARCH_PARAMETER) forgotten.set(number, Date.now())
      }
    },
    forgottenAt: (project) => Math.max(allForgottenAt, forgotten.get(project) ?? 0),
    of: (connection, project) => cache.get(String(project), () => now(connection, project)),
  }
}

export async function readOwnParameters(
  reader: OwnParametersReader,
  connection: Connection,
  { project: home }: Principal,
  project: number,
): Promise<OwnParameters | undefined> {
  const { number, parameters, readAt } = home
  const isTrusted =
    readAt === undefined ||
    (Date.now() - readAt < TRUSTED_MS && readAt > reader.forgottenAt(number))
  return project === number && isTrusted ? parameters : reader.of(connection, project)
}

/** Reads versions by stamp, in that order; missing ones are left out. */
export async function readVersions(
  connection: Connection,
  project: number,
  stamps: readonly string[],
): Promise<ReadonlyMap<string, Resource>> {
  const rows = await connection.query<{ stamp: string; content: string }>({
    text: `select x.stamp, v.content
      from unnest($2::text[]) with ordinality as x(stamp, place)
      join version v on v.project = $1 and v.type = $3
        and v.id = split_part(x.stamp, '/', 1)::uuid and v.ver = split_part(x.stamp, '/', 2)::int
      where v.content is not null order by x.place`,
    values: [project, stamps, typeNumber(SEARCH_PARAMETER)],
  })
  return new Map(rows.map(({ stamp, content }) => [stamp, parseJson(content) as Resource]))
}

/** The first of several parameters with one code and type counts. Unusable ones define nothing. */
export function ownParametersFrom(
  resources: ReadonlyMap<string, Resource>,
  indexed: ReadonlySet<string>,
  fullText: string | null,
): OwnParameters {
  const types = new Map<string, Map<string, OwnParameter>>()
  const stamps: string[] = fullText === null ? [] : [fullText]
  for (const [stamp, resource] of resources) {
    const found = usable(resource)
    const isTaken = found.some(({ base, code }) => types.get(base)?.has(code))
    if (found.length === 0 || isTaken) continue
    stamps.push(stamp)
    for (const definition of found) {
      const codes = getOrInsert(types, definition.base, () => new Map<string, OwnParameter>())
      codes.set(definition.code, { ...definition, stamp, isReady: indexed.has(stamp) })
    }
  }
  const stamp = stamps.join()
  if (fullText === null) return { stamp, types }
  return { stamp, types, fullText: indexed.has(fullText) ? 'ready' : 'indexing' }
}

function usable(resource: Resource): readonly Definition[] {
  try {
    return checkedDefinitions(resource)
  } catch (error) {
    if (error instanceof HttpError) return []
    throw error
  }
}

/** Errors: 400 for a parameter that may read a hidden or secret element. */
function requireSearchable({ base, code, expression }: OwnParameter, own: OwnParameters): void {
  const hidden = unsearchablePaths(base)
  if (hidden.length === 0) return
  const read = pathsRead(base, code, own) ?? []
  const isOpen = read.every((path) => hidden.every((one) => !overlaps(base, path, one)))
  if (read.length > 0 && isOpen && expression?.includes('extension') === false) return
  const text = `Search parameters of ${base} take a plain path to an element that holds no secret`
  throw badRequest(text, 'SearchParameter.expression')
}

/** Errors: 400 with the element at fault. */
export function checkedDefinitions(resource: Resource): readonly Definition[] {
  const definitions = parameterDefinitions(resource)
  for (const definition of definitions) {
    const { base, code } = definition
    if (REGISTRY_TYPES.has(base)) {
      throw badRequest(`${base} has no search parameters of a Project`, 'SearchParameter.base')
    }
    const parameter = { ...definition, stamp: '', isReady: true }
    const own = { stamp: code, types: new Map([[base, new Map([[code, parameter]])]]) }
    requireSearchable(parameter, own)
    try {
      getIndexPlan(base, own)
    } catch (error) {
      // The path compiler throws plain errors.
      const text = error instanceof Error ? error.message : String(error)
      throw badRequest(text, 'SearchParameter.component.expression')
    }
  }
  return definitions
}

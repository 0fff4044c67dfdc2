/** Tags, security labels and profiles in use: https://hl7.org/fhir/R4/resource-operation-meta.html */
import { may, REGISTRY_TYPES } from '../access/policy.ts'
import type { Principal } from '../access/principal.ts'
import { forbidden } from '../errors.ts'
import { resourceTypes, typeNumber } from '../fhir/definitions.ts'
import type { Store } from './context.ts'
import { keysLiteral } from './keys.ts'

export interface MetaSummary {
  readonly tag: readonly object[]
  readonly security: readonly object[]
  /** Of the newest resources of each type. */
  readonly profile: readonly string[]
}

const MOST_CODINGS = 1000
/** Resources whose profiles are looked at: no index tells them apart. */
const LOOKED_AT = 1000

/** Of one type, or of all that the Principal may search in its Project. Errors: 403. Two statements. */
export async function metaSummary(
  store: Store,
  principal: Principal,
  type: string | undefined,
): Promise<MetaSummary> {
  const types = (type === undefined ? resourceTypes : [type]).filter(
    (name) => !REGISTRY_TYPES.has(name) && may(principal, name, 'search'),
  )
  if (types.length === 0) throw forbidden()
  const { connection } = store
  const project = principal.project.number
  const [tag, security, profiles] = await Promise.all([
    codingsOf(store, project, types, '_tag'),
    codingsOf(store, project, types, '_security'),
    connection.query<{ url: string }>({
      text: `select distinct url from unnest($2::smallint[]) as x(t)
        cross join lateral (
          select r.project, r.type, r.id, r.ver from resource r
          where r.project = $1 and r.type = x.t order by r.lu desc limit $3) r
        join version v using (project, type, id, ver)
        cross join lateral json_array_elements_text(v.content::json #> '{meta,profile}') as p(url)
        where v.content like '%"profile":[%' order by url limit $4`,
      values: [
        project,
        types.map(typeNumber),
        Math.ceil(LOOKED_AT / Math.min(types.length, 20)),
        MOST_CODINGS,
      ],
    }),
  ])
  return { tag, security, profile: profiles.map(({ url }) => url) }
}

interface CodingRow {
  readonly system: string
  readonly code: string
  readonly display: string | null
}

/** The dictionary forgets nothing, so each of its codings must still be held by a resource. */
async function codingsOf(
  { connection, keys }: Store,
  project: number,
  types: readonly string[],
  parameter: string,
): Promise<readonly object[]> {
  const ps = types.map((type) => keys.param(project, type, parameter))
  const rows = await connection.query<CodingRow>({
    text: `select distinct on (c.system, c.code) c.system, c.code, c.display from code c
      where c.project = $1 and c.p = any($2::bigint[]) and exists (
        select 1 from resource r where r.project = $1 and r.keys @> array[c.k])
      order by c.system, c.code limit $3`,
    values: [project, keysLiteral(ps), MOST_CODINGS],
  })
  return rows.map(({ system, code, display }) => ({
    ...(system === '' ? {} : { system }),
    code,
    ...(display === null ? {} : { display }),
  }))
}

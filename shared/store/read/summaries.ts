/** Summaries of a Project. Tags, security labels and profiles in use: https://hl7.org/fhir/R4/resource-operation-meta.html */

import {
  allSql,
  createTypeScope,
  visibilityPredicates,
} from '../../access/decisions/grant-predicates.ts'
import { grantsFor, may, REGISTRY_TYPES } from '../../access/policy.ts'
import type { Principal } from '../../access/principal.ts'
import { forbidden } from '../../core/errors.ts'
import { resourceTypes, typeNumber } from '../../fhir/definitions.ts'
import { arrayLiteral, type Bind, binder, type Connection } from '../../postgres/statement.ts'
import type { StoreContext } from '../rows/context.ts'
import { WELL_FORMED_CONTENT } from '../rows/rows.ts'

export interface MetaSummary {
  readonly tag: readonly object[]
  readonly security: readonly object[]
  readonly profile: readonly string[]
}

const MOST_CODINGS = 1000
/** Resources read for profiles, which no index lists. */
const LOOKED_AT = 1000

/** Summarizes one type, or all searchable types of the Project. Errors: 403. Two statements. */
export async function metaSummary(
  store: StoreContext,
  principal: Principal,
  type: string | undefined,
): Promise<MetaSummary> {
  const types = (type === undefined ? resourceTypes : [type]).filter(
    (name) => !REGISTRY_TYPES.has(name) && may(principal, name, 'search'),
  )
  if (types.length === 0) throw forbidden()
  const [tag, security, profile] = await Promise.all([
    readCodings(store, principal, types, '_tag'),
    readCodings(store, principal, types, '_security'),
    readProfiles(store, principal, types),
  ])
  return { tag, security, profile }
}

async function readProfiles(
  { connection, keys }: StoreContext,
  principal: Principal,
  types: readonly string[],
): Promise<readonly string[]> {
  const project = principal.project.number
  const { values, bind } = binder()
  const seen = seenSql(keys, principal, { types, code: '_profile', bind })
  const own = bind(project, 'int')
  const rows = await connection.query<{ url: string }>({
    text: `select distinct url from unnest(${bind(types.map(typeNumber), 'smallint[]')}) as x(t)
      cross join lateral (
        select r.type, r.id, r.ver from resource r
        where r.project = ${own} and r.type = x.t and ${seen} order by r.lu desc
        limit ${bind(Math.ceil(LOOKED_AT / Math.min(types.length, 20)), 'int')}) r
      join version v on v.project = ${own} and v.type = r.type and v.id = r.id and v.ver = r.ver
      cross join lateral json_array_elements_text(${WELL_FORMED_CONTENT}::json #> '{meta,profile}') as p(url)
      where v.content like '%"profile":[%' order by url limit ${bind(MOST_CODINGS, 'int')}`,
    values,
  })
  return rows.map(({ url }) => url)
}

interface SeenCode {
  readonly types: readonly string[]
  readonly code: string
  readonly bind: Bind
}

function seenSql(
  keys: StoreContext['keys'],
  principal: Principal,
  { types, code, bind }: SeenCode,
): string {
  const limited = types.flatMap((type) => {
    const grants = grantsFor(principal, type, 'search')
    if (grants === undefined) return []
    const place = createTypeScope(keys, principal, type, principal.project.number)
    const predicates = visibilityPredicates(place, grants, [code])
    return predicates?.length === 0 ? [] : [{ number: typeNumber(type), tests: predicates }]
  })
  if (limited.length === 0) return 'true'
  const others = `r.type <> all(${bind(
    limited.map(({ number }) => number),
    'smallint[]',
  )})`
  const some = limited.flatMap(({ number, tests: predicates }) =>
    predicates === undefined ? [] : [`(r.type = ${number} and ${allSql(predicates, bind)})`],
  )
  return `(${[others, ...some].join(' or ')})`
}

interface CodingRow {
  readonly system: string
  readonly code: string
  readonly display: string | null
}

/** The dictionary never shrinks, so each coding must still be held by a resource. */
async function readCodings(
  { connection, keys }: StoreContext,
  principal: Principal,
  types: readonly string[],
  parameter: string,
): Promise<readonly object[]> {
  const { number } = principal.project
  const { values, bind } = binder()
  const project = bind(number, 'int')
  const ps = types.map((type) => keys.param(number, type, parameter))
  const rows = await connection.query<CodingRow>({
    text: `select distinct on (c.system, c.code) c.system, c.code, c.display from code c
      where c.project = ${project} and c.p = any(${bind(arrayLiteral(ps), 'bigint[]')}) and exists (
        select 1 from resource r where r.project = ${project} and r.keys @> array[c.k]
          and ${seenSql(keys, principal, { types, code: parameter, bind })})
      order by c.system, c.code limit ${bind(MOST_CODINGS, 'int')}`,
    values,
  })
  return rows.map(({ system, code, display }) => ({
    ...(system === '' ? {} : { system }),
    code,
    ...(display === null ? {} : { display }),
  }))
}

interface StorageFigures {
  /** The history counts, too. */
  readonly versions: number
  /** Versions only: indexes and Binary contents are extra. */
  readonly bytes: number
  readonly isEstimate: boolean
}

const COUNTED = 10_000
/** Sample size for the average size of a version. */
const MEASURED = 1000

/** One statement, two for large Projects; reads at most some ten thousand rows. */
export async function estimateStorage(
  connection: Connection,
  project: number,
): Promise<StorageFigures> {
  const [row] = await connection.query<{ versions: number; size: number }>({
    name: 'storage-figures',
    text: `select (select count(*) from (
          select 1 from version where project = $1 limit ${COUNTED + 1}) as v)::float8 as versions,
        (select coalesce(avg(pg_column_size(content) + pg_column_size(meta_ext)), 0) from (
          select content, meta_ext from version
          where project = $1 and content is not null limit ${MEASURED}) as v)::float8 as size`,
    values: [project],
  })
  const { versions: counted = 0, size = 0 } = row ?? {}
  const isEstimate = counted > COUNTED
  const versions = isEstimate ? Math.max(counted, await planned(connection, project)) : counted
  return { versions, bytes: Math.round(versions * size), isEstimate }
}

async function planned(connection: Connection, project: number): Promise<number> {
  const [row] = await connection.query<{ 'QUERY PLAN': [{ Plan: { 'Plan Rows': number } }] }>({
    text: `explain (format json) select 1 from version where project = ${Number(project)}`,
  })
  return row?.['QUERY PLAN'][0].Plan['Plan Rows'] ?? 0
}

/** Read, vread and reads of many: one statement each, on primary keys. */
import { may } from '../access/policy.ts'
import type { Principal } from '../access/principal.ts'
import { badStructure, forbidden, gone, notFound } from '../errors.ts'
import { isResourceType, typeNumber } from '../fhir/definitions.ts'
import { isLegalId, type Store, scopeOf } from './context.ts'
import type { RowKey } from './fetch.ts'
import type { Repository, Version } from './repository.ts'
import { toVersion, type VersionRow, versionColumns } from './rows.ts'

const V = versionColumns('v')

/** The newest version in sight, a deletion included; undefined for unknown or invisible ids. */
export async function readRow(
  store: Store,
  principal: Principal,
  type: string,
  id: string,
): Promise<VersionRow | undefined> {
  if (!isLegalId(id)) return undefined
  return store.fetch(rowKey(store, principal, type, id))
}

/** Where the newest version of a resource is looked for. */
export function rowKey(store: Store, principal: Principal, type: string, id: string): RowKey {
  const { project, metaPrefix, everywhere } = scopeOf(principal, type)
  const row = store.keys.rowId(type, id)
  return { project, type: typeNumber(type), id: row, metaPrefix, everywhere }
}

export async function read(
  store: Store,
  principal: Principal,
  type: string,
  id: string,
): Promise<Version> {
  allow(principal, type, 'read')
  const row = await readRow(store, principal, type, id)
  if (row === undefined) throw notFound()
  if (row.content === null) throw gone()
  return toVersion(row)
}

export async function readVersion(
  store: Store,
  principal: Principal,
  type: string,
  id: string,
  ver: string,
): Promise<Version> {
  allow(principal, type, 'read')
  allow(principal, type, 'vread')
  // Larger numbers are no versions, and no int of PostgreSQL either.
  if (!isLegalId(id) || !/^[1-9]\d{0,8}$/.test(ver)) throw notFound()
  const { project, metaPrefix, everywhere } = scopeOf(principal, type)
  const [row] = await store.connection.query<VersionRow>({
    name: everywhere ? 'vread-everywhere' : 'vread',
    text: `select ${V} from version v where ${projectTest(everywhere)} and v.type = $2
      and v.id = $3 and v.ver = $5 and starts_with(v.meta_ext, $4)
      order by v.project = $1 desc limit 1`,
    values: [project, typeNumber(type), store.keys.rowId(type, id), metaPrefix, Number(ver)],
  })
  if (row === undefined) throw notFound()
  if (row.content === null) throw gone()
  return toVersion(row)
}

/** Of `v.project`; `$1` is the Principal's own. */
export const projectTest = (everywhere: boolean) =>
  everywhere ? 'v.project = any(array(select project from tenant))' : 'v.project = $1'

export async function readMany(
  store: Store,
  principal: Principal,
  references: Parameters<Repository['readMany']>[1],
): Promise<readonly (Version | undefined)[]> {
  const asked = references.map(({ type, id }, place) => ({ type, id, place }))
  const sought = asked.filter(
    ({ type, id }) => isLegalId(id) && isResourceType(type) && may(principal, type, 'read'),
  )
  if (sought.length === 0) return references.map(() => undefined)
  const scopes = sought.map(({ type }) => scopeOf(principal, type))
  const everywhere = scopes.some((scope) => scope.everywhere)
  const rows = await store.connection.query<VersionRow & { place: number }>({
    name: everywhere ? 'read-many-everywhere' : 'read-many',
    text: `select distinct on (x.place) x.place, ${V}
      from unnest($1::int[], $2::int[], $3::smallint[], $4::uuid[], $5::text[], $6::boolean[])
        as x(place, project, type, id, prefix, everywhere)
      ${everywhere ? 'join tenant t on x.everywhere or t.project = x.project' : ''}
      cross join lateral (
        select * from version where project = ${everywhere ? 't' : 'x'}.project
          and type = x.type and id = x.id order by ver desc limit 1) v
      where starts_with(v.meta_ext, x.prefix)
      order by x.place, v.project = x.project desc`,
    values: [
      `{${sought.map(({ place }) => place).join(',')}}`,
      `{${scopes.map((scope) => scope.project).join(',')}}`,
      `{${sought.map(({ type }) => typeNumber(type)).join(',')}}`,
      `{${sought.map(({ type, id }) => store.keys.rowId(type, id)).join(',')}}`,
      scopes.map((scope) => scope.metaPrefix),
      `{${scopes.map((scope) => scope.everywhere).join(',')}}`,
    ],
  })
  const found = new Map(rows.map((row) => [row.place, row]))
  return references.map((_, place) => {
    const row = found.get(place)
    return row === undefined || row.content === null ? undefined : toVersion(row)
  })
}

/** Throws 403, or 400 for an unknown type. */
export function allow(
  principal: Principal,
  type: string,
  interaction: Parameters<typeof may>[2],
): void {
  if (!isResourceType(type)) throw badStructure('Unknown resource type')
  if (!may(principal, type, interaction)) throw forbidden()
}

/** Read, vread and reads of many: one statement each, on primary keys. */
import { may } from '../access/policy.ts'
import type { Principal } from '../access/principal.ts'
import type { Connection } from '../database.ts'
import { badStructure, forbidden, gone, notFound } from '../errors.ts'
import { isResourceType, typeNumber } from '../fhir/definitions.ts'
import { isLegalId, type Scope, type Store, scopeOf } from './context.ts'
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
  return store.readRow(placeOf(store, principal, type, id))
}

/** Where a row is looked for, and what its platform meta must begin with. */
export interface RowPlace extends Scope {
  readonly type: number
  readonly id: string
}

/** The newest version, a deletion included; undefined when it is not there or not in sight. */
export type ReadRow = (place: RowPlace) => Promise<VersionRow | undefined>

function placeOf(store: Store, principal: Principal, type: string, id: string): RowPlace {
  const scope = scopeOf(principal, type)
  return { ...scope, type: typeNumber(type), id: store.keys.rowId(type, id) }
}

/** A statement a row. */
export function readAlone(connection: Connection): ReadRow {
  return async ({ project, type, id, metaPrefix, everywhere }) => {
    const [row] = await connection.query<VersionRow>(
      everywhere
        ? { name: 'read-everywhere', text: READ_EVERYWHERE, values: [project, type, id] }
        : { name: 'read', text: READ, values: [project, type, id, metaPrefix] },
    )
    return row
  }
}

/** What is asked for in one turn of the event loop is one statement. */
export function readTogether(connection: Connection): ReadRow {
  let asked: { place: RowPlace; answer: PromiseWithResolvers<VersionRow | undefined> }[] = []
  const send = async () => {
    const sent = asked
    asked = []
    try {
      const rows = await readRows(
        connection,
        sent.map(({ place }) => place),
      )
      sent.forEach(({ answer }, i) => {
        answer.resolve(rows[i])
      })
    } catch (error) {
      for (const { answer } of sent) answer.reject(error)
    }
  }
  return (place) => {
    // Failures reach the callers; `send` itself does not throw.
    if (asked.length === 0) setImmediate(() => void send())
    const answer = Promise.withResolvers<VersionRow | undefined>()
    asked.push({ place, answer })
    return answer.promise
  }
}

// The newest version decides, so it is taken before the prefix is looked at.
const READ = `select ${V} from (
    select * from version where project = $1 and type = $2 and id = $3 order by ver desc limit 1
  ) v where starts_with(v.meta_ext, $4)`

// PostgreSQL runs the second half only when the first has no row: other projects cost a probe each.
const READ_EVERYWHERE = `
  (select ${V} from version v
    where v.project = $1 and v.type = $2 and v.id = $3 order by v.ver desc limit 1)
  union all
  (select ${V} from tenant t cross join lateral (
      select * from version where project = t.project and type = $2 and id = $3
      order by ver desc limit 1
    ) v where t.project <> $1 limit 1)
  limit 1`

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
  const rows = await readRows(
    store.connection,
    sought.map(({ type, id }) => placeOf(store, principal, type, id)),
  )
  const found = new Map(sought.map(({ place }, i) => [place, rows[i]]))
  return references.map((_, place) => {
    const row = found.get(place)
    return row === undefined || row.content === null ? undefined : toVersion(row)
  })
}

/** As ReadRow for many: in the order asked, one statement. */
export async function readRows(
  connection: Connection,
  places: readonly RowPlace[],
): Promise<readonly (VersionRow | undefined)[]> {
  const everywhere = places.some((place) => place.everywhere)
  const rows = await connection.query<VersionRow & { place: number }>({
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
      `{${places.map((_, i) => i).join(',')}}`,
      `{${places.map((place) => place.project).join(',')}}`,
      `{${places.map((place) => place.type).join(',')}}`,
      `{${places.map((place) => place.id).join(',')}}`,
      places.map((place) => place.metaPrefix),
      `{${places.map((place) => place.everywhere).join(',')}}`,
    ],
  })
  const found = new Map(rows.map((row) => [row.place, row]))
  return places.map((_, i) => found.get(i))
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

/** Removes resources with their history, as if they had never been. */
import type { Principal } from '../../access/principal.ts'
import { BOT, removeSchedule } from '../../bots/schedules.ts'
import { notFound } from '../../errors.ts'
import { typeNumber } from '../../fhir/definitions.ts'
import type { Connection } from '../../platform/postgres/statement.ts'
import { SEARCH_PARAMETER } from '../../store/index/custom-parameters.ts'
import { readRow, type Store } from '../../store/rows/context.ts'
import { toVersion } from '../../store/rows/rows.ts'
import { REGISTRY_PROJECT } from '../../store/rows/tenants.ts'
import { addOwnParametersJob } from '../../store/rows/upkeep-jobs.ts'
import type { Version } from '../../store/rows/version.ts'
import { CONDEMN } from '../../store/write/stored-contents.ts'

/** Live or deleted; who may do it was asked before. Errors: 404. Two statements. */
export async function expunge(
  store: Store,
  principal: Principal,
  type: string,
  id: string,
): Promise<Version> {
  const row = await readRow(store, principal, type, id)
  if (row === undefined) throw notFound()
  const isBinary = type === 'Binary'
  await store.connection.query({
    name: isBinary ? 'expunge-binary' : 'expunge',
    text: `with v as (delete from version where project = $1 and type = $2 and id = $3 returning content),
      ${isBinary ? `${CONDEMN},` : ''}
      r as (delete from resource where project = $1 and type = $2 and id = $3),
      s as (delete from idx_string where id = $3 and project + 0 = $1 and type + 0 = $2),
      g as (delete from idx_range where id = $3 and project + 0 = $1 and type + 0 = $2),
      x as (delete from resource_text where project = $1 and type = $2 and id = $3),
      u as (delete from unique_key where id = $3 and project = $1 and type = $2),
      o as (delete from outbox where project = $1 and type = $2 and id = $3),
      a as (delete from active_subscription where project = $1 and id = $3),
      ss as (delete from subscription_state where project = $1 and subscription = $3),
      c as (delete from concept_owner where type = $2 and id = $4
        and project = (select fhir_id from tenant where project = $1))
      select 1`,
    values: [row.project, row.type, row.id, id],
  })
  if (type === BOT) await removeSchedule(store.connection, row.project, row.id)
  if (type === SEARCH_PARAMETER) await addOwnParametersJob(store.connection, row.project)
  return toVersion(row, id)
}

const CHUNK = 5000
const TABLES = [
  'resource',
  'idx_string',
  'idx_range',
  'resource_text',
  'code',
  'unique_key',
  'outbox',
  'active_subscription',
  'delivery',
  'subscription_state',
  'indexed_parameter',
  'schedule',
  'version',
]

/** The oldest rows of a type in a Project, among those last changed before a time; answers how many. */
export async function purgePart(
  connection: Connection,
  project: number,
  type: string,
  before: Date,
): Promise<number> {
  const [row] = await connection.query<{ count: number }>({
    name: 'purge',
    text: `with gone as materialized (select id from resource
        where project = $1 and type = $2 and lu < $3 order by lu limit $4),
      v as (delete from version v using gone where v.project = $1 and v.type = $2 and v.id = gone.id),
      r as (delete from resource r using gone where r.project = $1 and r.type = $2 and r.id = gone.id),
      s as (delete from idx_string s using gone
        where s.id = gone.id and s.project = $1 and s.type = $2),
      g as (delete from idx_range g using gone
        where g.id = gone.id and g.project = $1 and g.type = $2),
      x as (delete from resource_text x using gone
        where x.project = $1 and x.type = $2 and x.id = gone.id)
      select count(*)::int as count from gone`,
    values: [project, typeNumber(type), before, CHUNK],
  })
  return row?.count ?? 0
}

/**
 * The next rows of a Project, from whatever table still has some; false when there are none left.
 * Rows of the registry go with it: memberships, logins, its own users.
 */
export async function expungeProjectPart(
  connection: Connection,
  project: number,
  projectId: string,
): Promise<boolean> {
  const contents = await connection.query({
    text: `with v as (delete from version where ctid = any(array(
        select ctid from version where project = $1 and type = $2 limit $3)) returning content),
      ${CONDEMN}
      select 1 from v`,
    values: [project, typeNumber('Binary'), CHUNK],
  })
  if (contents.length > 0) return true
  for (const table of TABLES) {
    // The names come from the fixed list above.
    const rows = await connection.query({
      text: `delete from ${table} where ctid = any(array(
        select ctid from ${table} where project = $1 limit $2)) returning 1`,
      values: [project, CHUNK],
    })
    if (rows.length > 0) return true
  }
  await connection.query({
    text: 'delete from concept_owner where project = $1',
    values: [projectId],
  })
  const members = await connection.query({
    text: `with gone as (select distinct type, id from version
        where project = $1 and starts_with(meta_ext, $2) and type <> $3 limit $4),
      v as (delete from version v using gone where v.project = $1 and v.type = gone.type and v.id = gone.id),
      r as (delete from resource r using gone where r.project = $1 and r.type = gone.type and r.id = gone.id),
      s as (delete from idx_string s using gone where s.id = gone.id and s.project = $1 and s.type = gone.type),
      g as (delete from idx_range g using gone where g.id = gone.id and g.project = $1 and g.type = gone.type),
      u as (delete from unique_key u using gone where u.id = gone.id and u.project = $1 and u.type = gone.type)
      select 1 from gone`,
    values: [
      REGISTRY_PROJECT,
      `"project":${JSON.stringify(projectId)}`,
      typeNumber('Project'),
      CHUNK,
    ],
  })
  return members.length > 0
}

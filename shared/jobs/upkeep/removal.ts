/** The deletions of $expunge and of the purge, by table. */

import { SYSTEM_PROJECT_NUMBER } from '../../access/principal.ts'
import { typeNumber } from '../../fhir/definitions.ts'
import type { Connection } from '../../postgres/statement.ts'
import type { VersionRow } from '../../store/rows/rows.ts'
import { CONDEMN_CONTENT_SQL } from '../../store/write/stored-contents.ts'

/* The tables with a column `project`: how the rows of a resource and of a Project are found, to remove or to distribute them. */

interface ProjectTable {
  readonly name: string
  /** The column with the row id of the resource that a row is about. */
  readonly id?: string
  /** The type is part of the row's key. */
  readonly isTyped?: boolean
  /** An index begins with the id; for few ids it beats the primary key, which PostgreSQL would choose. */
  readonly isFoundById?: boolean
  /** The server that has the Project has the rows; queues stay on the coordinator. */
  readonly isDistributed?: boolean
  /** Why the rows stay when their Project is expunged. */
  readonly staysFor?: string
}

const OWN = { id: 'id', isTyped: true, isDistributed: true }
const AGE = { staysFor: 'Rows are removed by their age' }

export const PROJECT_TABLES: readonly ProjectTable[] = [
  { name: 'version', ...OWN },
  { name: 'resource', ...OWN },
  { name: 'unique_key', ...OWN },
  { name: 'idx_string', ...OWN, isFoundById: true },
  { name: 'idx_range', ...OWN, isFoundById: true },
  { name: 'code', isDistributed: true },
  { name: 'resource_text', ...OWN },
  // The job that indexes the parameters of the Project removes those that are gone.
  { name: 'indexed_parameter', isDistributed: true },
  { name: 'outbox', id: 'id', isTyped: true },
  { name: 'active_subscription', id: 'id' },
  { name: 'subscription_state', id: 'subscription' },
  { name: 'schedule', id: 'id' },
  { name: 'delivery' },
  { name: 'topic_event', id: 'subscription' },
  { name: 'tenant', staysFor: 'A number is never given twice' },
  { name: 'job', staysFor: 'A job may be the one that expunges the Project' },
  { name: 'occurrence', staysFor: 'The schedule takes its occurrences along' },
  ...['pending_run', 'dead_run', 'dead_notice', 'bot_run', 'export_job', 'import_job', 'mail'].map(
    (name) => ({
      name,
      ...AGE,
    }),
  ),
  { name: 'concept_owner', staysFor: 'Rows are removed by FHIR ids' },
]

export const DISTRIBUTED_TABLES = PROJECT_TABLES.filter(({ isDistributed }) => isDistributed)

const BINARY = typeNumber('Binary')
const CHUNK = 5000

/** Removes a resource with its history; `id` is its FHIR id. One statement. */
export async function removeResource(
  connection: Connection,
  { project, type, id: rowId }: Pick<VersionRow, 'project' | 'type' | 'id'>,
  id: string,
): Promise<void> {
  const isBinary = type === BINARY
  await connection.query({
    name: isBinary ? 'expunge-binary' : 'expunge',
    text: `with v as (delete from version where project = $1 and type = $2 and id = $3 returning content),
      ${isBinary ? `${CONDEMN_CONTENT_SQL},` : ''}
      ${DELETE_ROWS},
      concepts as (delete from concept_owner where type = $2 and id = $4
        and project = (select fhir_id from tenant where project = $1))
      select 1`,
    values: [project, type, rowId, id],
  })
}

const DELETE_ROWS = PROJECT_TABLES.filter(({ name, id }) => id !== undefined && name !== 'version')
  .map(deleteRows)
  .join(',\n')

function deleteRows({ name, id, isTyped, isFoundById }: ProjectTable, place: number): string {
  const hidden = isFoundById ? ' + 0' : ''
  const typed = isTyped ? ` and type${hidden} = $2` : ''
  return `d${place} as (delete from ${name} where ${id} = $3 and project${hidden} = $1${typed})`
}

/** `gone` has the types and row ids of resources; $1 is their Project. */
const DELETE_GONE = DISTRIBUTED_TABLES.filter(({ isTyped }) => isTyped)
  .map(
    ({ name, id }, place) =>
      `d${place} as (delete from ${name} x using gone where x.${id} = gone.id and x.project = $1 and x.type = gone.type)`,
  )
  .join(',\n')

/** The oldest rows of a type in a Project, among those last changed before a time; returns how many. */
export async function removeTypePart(
  connection: Connection,
  project: number,
  type: string,
  before: Date,
): Promise<number> {
  const [row] = await connection.query<{ count: number }>({
    name: 'purge',
    text: `with gone as materialized (select type, id from resource
        where project = $1 and type = $2 and lu < $3 order by lu limit $4),
      ${DELETE_GONE}
      select count(*)::int as count from gone`,
    values: [project, typeNumber(type), before, CHUNK],
  })
  return row?.count ?? 0
}

/**
 * Removes the next rows of a Project from any table; false when none are left. Rows of the registry are removed with
 * it: memberships, logins, its own users.
 */
export async function removeProjectPart(
  connection: Connection,
  project: number,
  projectId: string,
): Promise<boolean> {
  const contents = await connection.query({
    text: `with v as (delete from version where project = $1 and ctid = any(array(
        select ctid from version where project = $1 and type = $2 limit $3)) returning content),
      ${CONDEMN_CONTENT_SQL}
      select 1 from v`,
    values: [project, BINARY, CHUNK],
  })
  if (contents.length > 0) return true
  // The versions go last.
  for (const { name, staysFor } of PROJECT_TABLES.toReversed()) {
    if (staysFor !== undefined) continue
    const rows = await connection.query({
      text: `delete from ${name} where project = $1 and ctid = any(array(
        select ctid from ${name} where project = $1 limit $2)) returning 1`,
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
      ${DELETE_GONE}
      select 1 from gone`,
    values: [
      SYSTEM_PROJECT_NUMBER,
      `"project":${JSON.stringify(projectId)}`,
      typeNumber('Project'),
      CHUNK,
    ],
  })
  return members.length > 0
}

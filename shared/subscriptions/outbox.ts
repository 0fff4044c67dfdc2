/**
 * The outbox: relevant changes from the writing statement until matched. Workers take from it concurrently, but a
 * change only when no earlier one of its resource is taken, which keeps deliveries in version order. Projects take
 * turns, so that one backlog does not block others.
 */

import { REGISTRY_TYPES } from '../access/policy.ts'
import { SYSTEM_PROJECT_NUMBER } from '../access/principal.ts'
import { CHANGE_LETTERS, CHANGES_BY_LETTER, type ChangeKind } from '../access/subscription.ts'
import { typeName } from '../fhir/definitions.ts'
import { dialect } from '../postgres/chosen-dialect.ts'
import { arrayLiteral, type Connection } from '../postgres/statement.ts'
import type { ChangeEvent, StoredCause } from '../store/rows/event-rows.ts'
import { contentId, type VersionRow } from '../store/rows/rows.ts'

interface OutboxBatch {
  readonly events: readonly ChangeEvent[]
  /** All taken rows, including those of expunged resources. */
  readonly taken: readonly OutboxKey[]
  /** More may be waiting. */
  readonly hasMore: boolean
}

interface OutboxKey {
  readonly project: number
  readonly seq: string
}

type OutboxRow = OutboxKey & Pick<VersionRow, 'type' | 'id' | 'ver'>

const PER_PROJECT = 50

/** Takes up to `count` changes, locked until the transaction of `connection` ends. Two statements. */
export async function lockOutboxEvents(
  connection: Connection,
  count: number,
): Promise<OutboxBatch> {
  const rows = await connection.query<OutboxRow>({
    name: 'outbox-take',
    text: `with recursive waiting as (
        (select project from outbox order by project limit 1)
        union all
        select (select o.project from outbox o where o.project > w.project order by o.project limit 1)
        from waiting w where w.project is not null)
      select o.project, o.seq::text, o.type, o.id::text, o.ver from waiting w
      cross join lateral (
        select * from outbox where project = w.project order by seq limit $1
        for update skip locked) o
      order by row_number() over (partition by o.project order by o.seq) limit $2`,
    values: [PER_PROJECT, count],
  })
  if (rows.length === 0) return { events: [], taken: [], hasMore: false }
  const found = await readChanges(connection, rows)
  return {
    taken: found.map(({ n }) => rows[n - 1]).filter((row) => row !== undefined),
    events: found.flatMap((row) => toEvent(row) ?? []),
    hasMore: rows.length >= Math.min(count, PER_PROJECT),
  }
}

export async function deleteOutboxEvents(
  connection: Connection,
  taken: readonly OutboxKey[],
): Promise<void> {
  if (taken.length === 0) return
  await connection.query({
    name: 'outbox-forget',
    text: `delete from outbox o using ${dialect.unnest('$1::int[]', '$2::bigint[]')} as x(project, seq)
      where o.project = x.project and o.seq = x.seq`,
    values: [
      arrayLiteral(taken.map(({ project }) => project)),
      arrayLiteral(taken.map(({ seq }) => seq)),
    ],
  })
}

interface Resend {
  readonly home: number
  readonly change: ChangeKind
  readonly cause: StoredCause
}

/** Adds a change for the latest version of a resource; false if it has changed meanwhile. */
export async function addResend(
  connection: Connection,
  { project, type, id, ver }: VersionRow,
  { home, change, cause }: Resend,
): Promise<boolean> {
  const rows = await connection.query({
    name: 'outbox-again',
    text: `insert into outbox (project, type, id, ver, op, origin)
      select $1, type, id, ver, $6::"char", $7 from version v
      where project = $2 and type = $3 and id = $4 and ver = $5 and not exists (select 1 from version x
        where x.project = v.project and x.type = v.type and x.id = v.id and x.ver > v.ver)
      returning 1`,
    values: [home, project, type, id, ver, CHANGE_LETTERS[change], JSON.stringify(cause)],
  })
  return rows.length > 0
}

interface ChangeRow extends Omit<VersionRow, 'lu'> {
  readonly n: number
  readonly home: number
  readonly seq: string
  readonly op: 'c' | 'u' | 'd'
  readonly origin: string
  readonly lu: Date | null
  readonly before_lu: Date | null
  readonly before_content: string | null
  readonly before_meta_at: number
  readonly before_meta_ext: string
}

/** Returns changes in order, without those preceded by an untaken change of their resource. */
async function readChanges(
  connection: Connection,
  rows: readonly OutboxRow[],
): Promise<readonly ChangeRow[]> {
  return connection.query<ChangeRow>({
    name: 'outbox-changes',
    text: `select e.n::int, e.home, e.seq::text, o.op, o.origin, e.project, e.type, e.id::text, e.ver,
        v.lu, v.content, v.meta_at, v.meta_ext, b.lu as before_lu, b.content as before_content,
        b.meta_at as before_meta_at, b.meta_ext as before_meta_ext
      from unnest($1::int[], $2::bigint[], $3::int[], $4::smallint[], $5::uuid[], $6::int[])
        with ordinality as e(home, seq, project, type, id, ver, n)
      join outbox o on o.project = e.home and o.seq = e.seq
      left join version v on v.project = e.project and v.type = e.type and v.id = e.id
        and v.ver = e.ver
      left join version b on b.project = e.project and b.type = e.type and b.id = e.id
        and b.ver = e.ver - 1
      where not exists (select 1 from outbox x
        where x.project = e.home and x.type = e.type and x.id = e.id and x.ver < e.ver
          and x.seq <> all($2::bigint[]))
      order by e.seq`,
    values: [
      arrayLiteral(rows.map(({ project }) => project)),
      arrayLiteral(rows.map(({ seq }) => seq)),
      arrayLiteral(rows.map(filedIn)),
      arrayLiteral(rows.map(({ type }) => type)),
      arrayLiteral(rows.map(({ id }) => id)),
      arrayLiteral(rows.map(({ ver }) => ver)),
    ],
  })
}

/** Returns the project number under which a resource's versions are stored. */
export function filedIn({ project, type }: Pick<OutboxRow, 'project' | 'type'>): number {
  return REGISTRY_TYPES.has(typeName(type)) ? SYSTEM_PROJECT_NUMBER : project
}

function toEvent(row: ChangeRow): ChangeEvent | undefined {
  const { home, seq, op, origin, project, type, id, ver, lu, content } = row
  if (lu === null) return undefined
  const now: VersionRow = {
    project,
    type,
    id,
    ver,
    lu,
    content,
    meta_at: row.meta_at,
    meta_ext: row.meta_ext,
  }
  const before: VersionRow | undefined =
    row.before_lu === null || row.before_content === null
      ? undefined
      : {
          ...now,
          ver: ver - 1,
          lu: row.before_lu,
          content: row.before_content,
          meta_at: row.before_meta_at,
          meta_ext: row.before_meta_ext,
        }
  const subject = op === 'd' ? before : now
  if (subject === undefined) return undefined
  const cause = JSON.parse(origin) as StoredCause
  return {
    project: home,
    seq,
    change: CHANGES_BY_LETTER[op],
    type: typeName(type),
    id: contentId(subject.content ?? ''),
    ver,
    // A resend goes to current Subscriptions.
    at: cause.resend === undefined ? lu : new Date(),
    subject,
    previous: op === 'c' ? undefined : before,
    cause,
    origin,
  }
}

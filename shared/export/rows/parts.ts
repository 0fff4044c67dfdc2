/** Export parts under renewed leases; after a crash another worker continues behind the last recorded block. */

import { typeName, typeNumber } from '../../fhir/definitions.ts'
import { dialect } from '../../postgres/chosen-dialect.ts'
import {
  isFree,
  isLeased,
  type Lease,
  type LeaseTable,
  leaseEnd,
  leaseRow,
  leaseValues,
  releaseLeased,
} from '../../postgres/leases.ts'
import { type Connection, hasRows } from '../../postgres/statement.ts'
import type { ExportJob, ExportPart } from './jobs.ts'

export type NewPart = Pick<ExportPart, 'n' | 'kind' | 'type' | 'types' | 'low' | 'high'>

export interface LeasedExportPart {
  readonly job: ExportJob
  readonly part: ExportPart
}

export const PARTS: LeaseTable = {
  name: 'export_part',
  key: { job: 'uuid', n: 'int' },
  token: 'epoch',
  expiresAt: 'lease',
  leaseMs: 30_000,
}

export function partLease(job: string, { n, token }: Pick<ExportPart, 'n' | 'token'>): Lease {
  return { key: [job, n], token }
}

export const MOST_RUNNING = 2

interface PartRow extends Pick<ExportPart, 'n' | 'kind' | 'token' | 'tries' | 'failures'> {
  readonly type: number | null
  readonly types: readonly number[] | null
  readonly low: string | null
  readonly high: string | null
  readonly after: string | null
}

/** Leases a free part of the Project with the fewest running parts. */
export async function leaseExportPart(
  connection: Connection,
): Promise<LeasedExportPart | undefined> {
  const [row] = await connection.query<PartRow & { export: ExportJob }>({
    name: 'export-take',
    text: `with c as (
        select p.job, p.n from export_part p join export_job j on j.id = p.job
        where p.state <> 'done' and ${isFree(PARTS, 'p')}
          and j.state in ('accepted', 'active')
          and (p.kind <> 'plan' or (select count(*) from export_job a
            where a.project = j.project and a.state = 'active' and a.id <> j.id) < ${MOST_RUNNING})
          and (p.kind <> 'close' or not exists (select 1 from export_part o
            where o.job = p.job and o.n <> p.n and o.state <> 'done'))
        order by (select count(*) from export_part a join export_job b on b.id = a.job
            where b.project = j.project and a.state = 'active' and a.lease > clock_timestamp()),
          j.requested, p.n
        limit 1 for update of p skip locked),
      t as (update export_part p set state = 'active', tries = p.tries + 1, ${leaseRow(PARTS, 'p')}
        from c where p.job = c.job and p.n = c.n
        returning p.*)
      select t.n, t.kind, t.epoch as token, t.tries, t.failures, t.type, t.types, t.low, t.high, t.after,
        jsonb_build_object('id', j.id, 'project', j.project, 'state', j.state, 'input', j.input,
          'requested', j.requested, 'at', to_char(j.at at time zone 'utc', '${ISO}'),
          'issues', j.issues) as export
      from t join export_job j on j.id = t.job`,
    values: [],
  })
  if (row === undefined) return undefined
  const { export: job, ...part } = row
  return {
    job: { ...job, at: job.at === null ? null : new Date(job.at) },
    part: toExportPart(part),
  }
}

function toExportPart(row: PartRow): ExportPart {
  return {
    ...row,
    type: row.type === null ? undefined : typeName(row.type),
    types: (row.types ?? []).map(typeName),
    low: row.low ?? undefined,
    high: row.high ?? undefined,
    after: row.after ?? undefined,
  }
}

const ISO = 'YYYY-MM-DD"T"HH24:MI:SS.MS"Z"'

/** False when the lease is lost or the job has ended. Extends it anyway, so that no files are removed during an upload. */
export async function renewLease(
  connection: Connection,
  job: string,
  part: ExportPart,
): Promise<boolean> {
  const [row] = await connection.query<{ isWanted: boolean }>({
    name: 'export-renew',
    isMaintenance: true,
    text: `update export_part p set lease = ${leaseEnd(PARTS)}
      from export_job j where j.id = p.job and ${isLeased(PARTS, 'p')} and p.state = 'active'
      returning j.state in ('accepted', 'active') as "isWanted"`,
    values: leaseValues(partLease(job, part)),
  })
  return row?.isWanted === true
}

/** Releases the part to another worker; `failed`: it threw an error. */
export async function releasePart(
  connection: Connection,
  job: string,
  part: ExportPart,
  failed: boolean,
): Promise<void> {
  await releaseLeased(connection, PARTS, partLease(job, part), {
    name: 'export-release',
    set: `state = 'waiting', lease = null, tries = tries - case when $4 then 0 else 1 end,
      failures = failures + case when $4 then 1 else 0 end`,
    values: [failed],
  })
}

/** Defers the part during an outage without counting an attempt. */
export async function postponePart(
  connection: Connection,
  job: string,
  part: ExportPart,
  pauseMs: number,
): Promise<void> {
  await releaseLeased(connection, PARTS, partLease(job, part), {
    name: 'export-postpone',
    set: `lease = clock_timestamp() + $4::float8 * interval '1 ms', tries = tries - 1`,
    values: [pauseMs],
  })
}

export async function finishPart(
  connection: Connection,
  job: string,
  part: ExportPart,
): Promise<boolean> {
  return await hasRows(connection, {
    name: 'export-part-done',
    text: `update export_part set state = 'done', lease = null
      where ${isLeased(PARTS)} and state = 'active' returning n`,
    values: leaseValues(partLease(job, part)),
  })
}

/** Removes the list of an interrupted plan. False when the lease is lost: parts may be reading the list. */
export async function clearMembers(
  connection: Connection,
  job: string,
  part: ExportPart,
): Promise<boolean> {
  if (part.token === 1) return true
  return await hasRows(connection, {
    name: 'export-clear',
    text: `with p as (select job from export_part
          where ${isLeased(PARTS)} and state = 'active' for update),
        m as (delete from export_member m using p where m.job = p.job),
        c as (delete from export_compartment c using p where c.job = p.job)
      select 1 from p`,
    values: leaseValues(partLease(job, part)),
  })
}

/** Ends the plan and adds its parts in one transaction. False when the lease is lost. */
export async function finishPlan(
  connection: Connection,
  job: string,
  plan: ExportPart,
  parts: readonly NewPart[],
): Promise<boolean> {
  const column = (of: (part: NewPart) => unknown) => parts.map((part) => of(part) ?? null)
  return await hasRows(connection, {
    name: 'export-planned',
    text: `with p as (update export_part set state = 'done', lease = null
        where ${isLeased(PARTS)} and state = 'active' returning job)
      insert into export_part (job, n, kind, type, types, low, high)
      select p.job, x.n, x.kind, x.type, x.types::smallint[], x.low, x.high
      from p cross join ${dialect.unnest('$4::int[]', '$5::text[]', '$6::smallint[]', '$7::text[]', '$8::uuid[]', '$9::uuid[]')} x(n, kind, type, types, low, high) returning n`,
    values: [
      ...leaseValues(partLease(job, plan)),
      column((part) => part.n),
      column(({ kind }) => kind),
      column(({ type }) => type && typeNumber(type)),
      column(({ types }) => (types.length === 0 ? null : `{${types.map(typeNumber)}}`)),
      column(({ low }) => low),
      column(({ high }) => high),
    ],
  })
}

/** Completes the export of its last part; files stay for `keepHours`. False when the lease was lost. */
export async function completeExport(
  connection: Connection,
  id: string,
  part: ExportPart,
  keepHours: number,
): Promise<boolean> {
  return await hasRows(connection, {
    name: 'export-complete',
    text: `with p as (update export_part set state = 'done', lease = null
        where ${isLeased(PARTS)} and state = 'active' returning job)
      update export_job j set state = 'completed',
        finished = date_trunc('milliseconds', clock_timestamp()),
        expires = clock_timestamp() + $4::float8 * interval '1 hour'
      from p where j.id = p.job and j.state = 'active' returning j.id`,
    values: [...leaseValues(partLease(id, part)), keepHours],
  })
}

interface WaitingParts {
  readonly waiting: number
  readonly active: number
  readonly oldestSeconds: number
}

export const NO_PARTS: WaitingParts = { waiting: 0, active: 0, oldestSeconds: 0 }

export async function waitingParts(connection: Connection): Promise<WaitingParts> {
  const [row] = await connection.query<WaitingParts>({
    name: 'export-waiting',
    text: `select count(*) filter (where p.state = 'waiting')::int as waiting,
        count(*) filter (where p.state = 'active')::int as active,
        coalesce(extract(epoch from clock_timestamp() - min(j.requested)), 0)::float8
          as "oldestSeconds"
      from export_part p join export_job j on j.id = p.job
      where p.state <> 'done' and j.state in ('accepted', 'active')`,
    values: [],
  })
  return row ?? NO_PARTS
}

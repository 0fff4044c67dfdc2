/** Export parts under renewed leases; after a crash another worker continues after the last recorded block. */

import { typeName, typeNumber } from '../../fhir/definitions.ts'
import { endPartSql, isHeld, leasePart, type PartTable } from '../../jobs/part-queue.ts'
import { type Lease, leaseValues } from '../../postgres/leases.ts'
import { type Connection, hasRows } from '../../postgres/statement.ts'
import type { ExportJob, ExportPart } from './jobs.ts'

export type NewPart = Pick<ExportPart, 'kind'> &
  Partial<Pick<ExportPart, 'type' | 'types' | 'low' | 'high'>>

export interface LeasedExportPart {
  readonly job: ExportJob
  readonly part: ExportPart
}

export const PARTS: PartTable = {
  name: 'export_part',
  key: { job: 'uuid', n: 'int' },
  token: 'epoch',
  expiresAt: 'lease',
  leaseMs: 30_000,
  jobs: 'export_job',
  isOpen: "j.state in ('accepted', 'active')",
  isRunning: "a.state = 'active' and a.lease > clock_timestamp()",
  failed: "state = 'waiting', failures = p.failures + 1",
  uncounted: "state = 'waiting', tries = greatest(p.tries - 1, 0)",
}

export function partLease({ job, part }: LeasedExportPart): Lease {
  return { key: [job.id, part.n], token: part.token }
}

export const MOST_RUNNING = 2

interface PartRow extends Pick<ExportPart, 'n' | 'kind' | 'token' | 'tries' | 'failures'> {
  readonly type: number | null
  readonly types: readonly number[] | null
  readonly low: string | null
  readonly high: string | null
  readonly after: string | null
}

export async function leaseExportPart(
  connection: Connection,
): Promise<LeasedExportPart | undefined> {
  type Job = Omit<ExportJob, 'requested' | 'at'> & {
    readonly requested: string
    readonly at: string | null
  }
  const row = await leasePart<PartRow & { readonly export: Job }>(connection, PARTS, {
    name: 'export-take',
    where: `x.state <> 'done'
      and (x.kind <> 'plan' or (select count(*) from export_job a
        where a.project = j.project and a.state = 'active' and a.id <> j.id) < ${MOST_RUNNING})
      and (x.kind <> 'close' or not exists (select 1 from export_part o
        where o.job = x.job and o.n <> x.n and o.state <> 'done'))`,
    orderBy: 'j.requested, x.n',
    set: "state = 'active', tries = x.tries + 1",
    returning: `x.n, x.kind, x.tries, x.failures, x.type, x.types, x.low, x.high, x.after,
      (select to_jsonb(j) from export_job j where j.id = x.job) as export`,
  })
  if (row === undefined) return undefined
  const { export: job, ...part } = row
  const at = job.at === null ? null : new Date(job.at)
  return { job: { ...job, requested: new Date(job.requested), at }, part: toExportPart(part) }
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

/** Removes the list of an interrupted plan. False when the lease is lost: parts may be reading the list. */
export async function clearMembers(connection: Connection, lease: Lease): Promise<boolean> {
  if (lease.token === 1) return true
  return await hasRows(connection, {
    name: 'export-clear',
    text: `with p as (select job from export_part x where ${isHeld(PARTS, 'x')} for update),
        m as (delete from export_member m using p where m.job = p.job),
        c as (delete from export_compartment c using p where c.job = p.job)
      select 1 from p`,
    values: leaseValues(lease),
  })
}

/** Ends the plan and adds its parts in one transaction. False when the lease is lost. */
export async function finishPlan(
  connection: Connection,
  plan: Lease,
  parts: readonly NewPart[],
): Promise<boolean> {
  const rows = parts.map(({ type, types, ...part }, i) => ({
    ...part,
    n: i + 1,
    type: type && typeNumber(type),
    types: types?.map(typeNumber),
  }))
  return await hasRows(connection, {
    name: 'export-planned',
    text: `with p as (${endPartSql(PARTS)})
      insert into export_part (job, n, kind, type, types, low, high)
      select p.job, x.* from p cross join jsonb_to_recordset($4::jsonb)
        as x(n int, kind text, type smallint, types smallint[], low uuid, high uuid) returning n`,
    values: [...leaseValues(plan), JSON.stringify(rows)],
  })
}

/** Completes the export of its last part; files stay for `keepHours`. False when the lease was lost. */
export async function completeExport(
  connection: Connection,
  lease: Lease,
  keepHours: number,
): Promise<boolean> {
  return await hasRows(connection, {
    name: 'export-complete',
    text: `with p as (${endPartSql(PARTS)})
      update export_job j set state = 'completed',
        finished = date_trunc('milliseconds', clock_timestamp()),
        expires = clock_timestamp() + $4::float8 * interval '1 hour'
      from p where j.id = p.job and j.state = 'active' returning j.id`,
    values: [...leaseValues(lease), keepHours],
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
  })
  return row ?? NO_PARTS
}

/** Counts work that waits in PostgreSQL, by queue and by Project; runs of bots wait in Redis. */
import type { Connection } from '../../platform/postgres/statement.ts'

export interface QueueDepth {
  readonly queue: string
  /** Id of the Project. */
  readonly project: string
  readonly waiting: number
  readonly active: number
  readonly failed: number
  /** Milliseconds the longest waiting one has waited; null: none waits, or nobody knows. */
  readonly oldestMs: number | null
}

/** One statement. */
export async function queueDepths(connection: Connection): Promise<readonly QueueDepth[]> {
  return await connection.query<QueueDepth>({
    name: 'queue-depths',
    text: `with work(queue, project, state, since) as (
        select 'change', project, 'waiting', null::timestamptz from outbox
        union all select 'change', project, state, added from delivery
        union all select 'schedules', project,
          case when home is null then 'waiting' else 'active' end, scheduled
          from occurrence where due <= clock_timestamp()
        union all select 'export', project,
          case state when 'accepted' then 'waiting' when 'error' then 'failed' else state end,
          requested from export_job where state in ('accepted', 'active', 'error')
        union all select 'import', project, state, added from import_job where state = 'active'
        union all select case kind when 'request' then 'requests' else 'upkeep' end, project, state,
          touched from job),
      named as (
        select queue, t.fhir_id::text as project, state, since from work join tenant t using (project)
        union all select 'mail', project, state, added from mail where state <> 'kept')
      select queue, project, count(*) filter (where state = 'waiting')::int as waiting,
        count(*) filter (where state = 'active')::int as active,
        count(*) filter (where state = 'failed')::int as failed,
        (extract(epoch from clock_timestamp() - min(since) filter (where state = 'waiting'))
          * 1000)::float8 as "oldestMs"
      from named group by queue, project order by queue, project`,
    values: [],
  })
}

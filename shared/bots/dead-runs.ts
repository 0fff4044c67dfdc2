/**
 * Asynchronous and scheduled runs that have failed for good: a row from the end of the last attempt until the run is
 * replayed or discarded, for 14 days at most. A replayed run keeps its id.
 */
import { toStorable } from '../fhir/json.ts'
import { asArray, isObject } from '../fhir/resource.ts'
import { type Connection, hasRows } from '../postgres/statement.ts'

export const DEAD_KEPT = '14 days'
const FORGOTTEN_AT_ONCE = 5000
const MAX_ERROR = 1000

/** Returns the text of an outcome, which the bot may have made. */
export function outcomeText(outcome: unknown): string | undefined {
  const [issue]: readonly unknown[] = isObject(outcome) ? asArray(outcome.issue) : []
  const details = isObject(issue) && isObject(issue.details) ? issue.details : {}
  return typeof details.text === 'string' ? toStorable(details.text.slice(0, MAX_ERROR)) : undefined
}

/** A cast to json fails for a NUL in the input. Inside texts quotes are escaped, so that only the element matches. */
const BOT_OF_JOB = `substring(p.job from '"botId":"([^"]+)"')::uuid`

/** A part of the statement that ends an AsyncJob; `dead` are the `n` and the error of each failed run. */
export function buryPendingSql(removed: string, numbers: string, errors: string): string {
  return `insert into dead_run (id, project, bot, job, takes, attempts, error, added)
    select p.id, p.project, ${BOT_OF_JOB}, p.job, p.takes, p.takes - p.returned, x.error, p.added
    from ${removed} p join unnest(${numbers}, ${errors}) as x(n, error) on x.n = p.n
    where p.job is not null
    on conflict (project, id) do update set due = null, failed = clock_timestamp(),
      takes = excluded.takes, attempts = excluded.attempts, error = excluded.error`
}

export interface DueRun {
  readonly id: string
  readonly projectId: string
  readonly botId: string
  /** Undefined for a scheduled run. */
  readonly job: string | undefined
}

/** Claims a due run in the transaction of `connection`, which revives it; undefined when there is none. */
export async function claimDeadRun(connection: Connection): Promise<DueRun | undefined> {
  const [row] = await connection.query<Omit<DueRun, 'job'> & { job: string | null }>({
    name: 'dead-run-claim',
    text: `select id, project as "projectId", bot as "botId", job from dead_run
      where due <= clock_timestamp() order by due limit 1 for update skip locked`,
  })
  return row && { ...row, job: row.job ?? undefined }
}

/** Makes a scheduled run due. False when the Bot has no schedule. */
export async function reviveOccurrence(
  connection: Connection,
  { id, projectId }: Pick<DueRun, 'id' | 'projectId'>,
): Promise<boolean> {
  return await hasRows(connection, {
    name: 'dead-run-occurrence',
    text: `with d as (delete from dead_run d using tenant t, schedule s
        where d.project = $2 and d.id = $1 and t.fhir_id = d.project and s.project = t.project and s.id = d.bot
        returning t.project, d.bot, d.scheduled, d.id, d.takes)
      insert into occurrence (project, bot, scheduled, run, due, takes)
      select project, bot, scheduled, id, clock_timestamp(), takes from d
      on conflict do nothing returning 1`,
    values: [id, projectId],
  })
}

/** Makes an asynchronous run pending with this job. */
export async function revivePendingRun(
  connection: Connection,
  run: Pick<DueRun, 'id' | 'projectId'> & { readonly home: string; readonly job: string },
): Promise<void> {
  await connection.query({
    name: 'dead-run-pending',
    text: `with d as (delete from dead_run where project = $4 and id = $1 returning *)
      insert into pending_run (id, project, home, job, takes, returned)
      select id, project, $2, $3, takes, takes from d`,
    values: [run.id, run.home, run.job, run.projectId],
  })
}

/** Ends a replay that cannot be made. */
export async function refuseRevival(
  connection: Connection,
  { id, projectId }: Pick<DueRun, 'id' | 'projectId'>,
  error: string,
): Promise<void> {
  await connection.query({
    name: 'dead-run-refuse',
    text: 'update dead_run set due = null, error = $2 where project = $3 and id = $1',
    values: [id, error, projectId],
  })
}

export async function removeOldDeadRuns(connection: Connection): Promise<void> {
  await connection.query({
    name: 'dead-run-old',
    text: `delete from dead_run where (project, id) in (select project, id from dead_run
      where failed < clock_timestamp() - interval '${DEAD_KEPT}' limit ${FORGOTTEN_AT_ONCE})`,
  })
}

interface DeadNotice {
  readonly projectId: string
  readonly botId: string
  readonly count: number
}

/** Claims the bots of these Projects about which no mail was sent for a day, in the transaction of the mails. */
export async function claimDeadNotices(connection: Connection): Promise<readonly DeadNotice[]> {
  return await connection.query<DeadNotice>({
    name: 'dead-notices',
    text: `with d as (select r.project, r.bot, count(*)::int as n
        from dead_run r left join dead_notice n using (project, bot)
        where r.due is null and r.failed > coalesce(n.at, '-infinity')
          and (n.at is null or n.at < clock_timestamp() - interval '1 day')
        group by r.project, r.bot),
      n as (insert into dead_notice as o (project, bot, at)
        select project, bot, clock_timestamp() from d order by project, bot
        on conflict (project, bot) do update set at = excluded.at
          where o.at < clock_timestamp() - interval '1 day'
        returning project, bot)
      select d.project as "projectId", d.bot as "botId", d.n as count from d join n using (project, bot)`,
  })
}

/**
 * Schedules of Bots: a `schedule` row each, with the next time. A due occurrence has an `occurrence` row until its run
 * ends, so that no crash loses it and no worker runs it twice.
 */

import { attempt } from '../core/errors.ts'
import { typeNumber } from '../fhir/definitions.ts'
import { parseJson } from '../fhir/json.ts'
import type { Resource } from '../fhir/resource.ts'
import { isSameSchedule, parseSchedule, type Schedule } from '../fhir/schedule.ts'
import { dialect } from '../postgres/chosen-dialect.ts'
import {
  deleteLeased,
  isFree,
  isLeased,
  type Lease,
  type LeaseTable,
  leaseRow,
  leaseValues,
  releaseLeased,
} from '../postgres/leases.ts'
import { type Connection, hasRows, type Statement } from '../postgres/statement.ts'
import type { LeasedRow } from './async-jobs.ts'

export const BOT = 'Bot'

export interface DueSchedule {
  readonly project: number
  readonly id: string
  readonly projectId: string
  readonly since: Date
  readonly bot: Resource
  /** An occurrence has not ended. */
  readonly isRunning: boolean
  /** One has begun, and does not wait for its first attempt. */
  readonly hasBegun: boolean
}

export interface Plan {
  readonly project: number
  readonly id: string
  readonly since: Date
  /** Undefined when no further run is planned. */
  readonly due: Date | undefined
  readonly fired: Date | undefined
  /** A later occurrence within this time replaces it. */
  readonly debounceMs: number
}

export interface Occurrence {
  readonly run: string
  readonly scheduled: Date
  /** 1-based. */
  readonly attempt: number
  readonly bot: Resource
  readonly botVersion: number
  /** When that version was written. */
  readonly updated: Date
  /** When the time came, or its replay: all attempts since then run the same version. */
  readonly since: Date
  readonly projectId: string
  /** Earlier occurrences that it has replaced. */
  readonly replaced: number
}

/** Time until a lost job is queued again. */
const LOOK_AGAIN_MS = 10_000

export const OCCURRENCES: LeaseTable = {
  name: 'occurrence',
  key: { run: 'uuid' },
  token: 'takes',
  expiresAt: 'held',
  leaseMs: LOOK_AGAIN_MS,
}

/** For a job in another Redis, as a migration may be under way. */
const FOREIGN_MS = 30 * 60_000

/**
 * Returns undefined when the write leaves the schedule unchanged. Invalid schedules stored before validation count as
 * none.
 */
export function scheduleChange(before: Resource | undefined, after: Resource): boolean | undefined {
  const planned = readSchedule(after)
  if (isSameSchedule(before && readSchedule(before), planned)) return undefined
  return planned !== undefined
}

/** Returns undefined without a valid schedule. */
export function readSchedule(bot: Resource): Schedule | undefined {
  return attempt(() => parseSchedule(bot))
}

/** Removes the schedule of a Bot in any Project; the resource is unchanged. */
export async function deleteScheduleRow(connection: Connection, id: string): Promise<void> {
  await connection.query({ text: 'delete from schedule where id = $1', values: [id] })
}

/** Adds missing schedules and plans all again from now. */
export async function rebuildSchedules(connection: Connection): Promise<void> {
  await connection.query({
    text: `insert into schedule (project, id)
      select r.project, r.id from resource r join version v using (project, type, id, ver)
      where r.type = $1 and v.content ~ '"cron(String|Timing)"'
      on conflict (project, id) do update set due = null`,
    values: [typeNumber(BOT)],
  })
}

const botsSql = (of: string, id: string, isOfProject = `r.project = ${of}.project`) => `
      join resource r on ${isOfProject} and r.type = ${typeNumber(BOT)} and r.id = ${of}.${id}
      join version v on v.project = r.project and v.type = r.type and v.id = r.id and v.ver = r.ver`

/** In two steps, for Bots stored on other servers than their schedules. */
const withBots =
  (columns: string, text: string, values: readonly unknown[]): NonNullable<Statement['inSteps']> =>
  async ({ query }) => {
    const rows = await query<{ project: number; id: string }>({ text, values })
    if (rows.length === 0) return []
    const bots = await query<{ n: number }>({
      text: `select x.n::int${columns}
        from unnest($1::int[], $2::uuid[]) with ordinality as x(project, id, n) ${botsSql('x', 'id', dialect.projectOfList('r.project', 2))}
        join tenant t on t.project = r.project`,
      values: [rows.map(({ project }) => project), rows.map(({ id }) => id)],
      perProject: rows.map(({ project }) => project),
    })
    return rows.flatMap((row, i) => {
      const bot = bots.find(({ n }) => n === i + 1)
      return bot === undefined ? [] : [{ ...row, ...bot }]
    })
  }

export async function dueSchedules(
  connection: Connection,
  now: Date,
  count: number,
): Promise<readonly DueSchedule[]> {
  const rows = await connection.query<Omit<DueSchedule, 'bot'> & { content: string }>({
    name: 'schedule-due',
    text: dueSql(', v.content', botsSql('s', 'id')),
    values: [now, count],
    inSteps: withBots(', v.content', dueSql('', ''), [now, count]),
  })
  return rows.map(({ content, ...row }) => ({ ...row, bot: parseJson(content) as Resource }))
}

/** SQL: true for an occurrence \`o\` that was never queued. */
const WAITS = '(o.home is null and o.attempt = 1)'

const dueSql = (
  content: string,
  bots: string,
) => `select s.project, s.id, s.since, t.fhir_id as "projectId",
        exists (select 1 from occurrence o where o.project = s.project and o.bot = s.id) as "isRunning",
        exists (select 1 from occurrence o where o.project = s.project and o.bot = s.id and not ${WAITS}) as "hasBegun"${content}
      from schedule s join tenant t using (project) ${bots}
      where s.due is null or s.due <= $1
      order by s.due nulls first limit $2 for update of s skip locked`

interface ScheduledBot {
  readonly bot: Resource
  readonly next: Date | null
  readonly last: Date | null
  readonly lastStatus: string | null
  readonly isRunning: boolean
}

const MOST_PLANNED = 1000

export async function listScheduledBots(
  connection: Connection,
  project: number,
): Promise<readonly ScheduledBot[]> {
  const rows = await connection.query<
    Omit<ScheduledBot, 'bot' | 'lastStatus'> & { content: string; record: string | null }
  >({
    name: 'schedule-list',
    text: plannedSql(', v.content', botsSql('s', 'id')),
    values: [project],
    inSteps: withBots(', v.content', plannedSql(', s.project, s.id', ''), [project]),
  })
  return rows.map(({ content, record, ...row }) => ({
    ...row,
    bot: parseJson(content) as Resource,
    lastStatus: record === null ? null : String((JSON.parse(record) as { status: unknown }).status),
  }))
}

const plannedSql = (
  content: string,
  bots: string,
) => `select nullif(s.due, 'infinity') as next, x.started as last, x.record,
        exists (select 1 from occurrence o where o.project = s.project and o.bot = s.id) as "isRunning"${content}
      from schedule s ${bots}
      left join lateral (select started, record from bot_run b
        where b.bot = s.id and b.project = s.project and b.record like '%"mode":"schedule"%'
        order by started desc limit 1) x on true
      where s.project = $1 order by next nulls last limit ${MOST_PLANNED}`

export async function savePlans(
  connection: Connection,
  plans: readonly Plan[],
  now: Date,
): Promise<void> {
  const column = <T>(value: (plan: Plan) => T) => plans.map(value)
  const time = (date: Date | undefined) => date?.toISOString() ?? null
  await connection.query({
    name: 'schedule-plan',
    text: `with x as (
        select * from unnest($1::int[], $2::uuid[], $3::timestamptz[], $4::timestamptz[], $5::timestamptz[], $7::float8[])
          as x(project, id, since, due, fired, debounce_ms)),
      s as (update schedule s set since = x.since, due = coalesce(x.due, 'infinity') from x
        where s.project = x.project and s.id = x.id),
      old as (delete from occurrence o using x
        where x.fired is not null and x.debounce_ms > 0 and o.project = x.project and o.bot = x.id
          and ${WAITS} and o.due > $6 and o.scheduled < x.fired
        returning o.project, o.bot, o.due, o.replaced)
      insert into occurrence (project, bot, scheduled, due, replaced)
      select x.project, x.id, x.fired,
        coalesce((select min(due) from old o where o.project = x.project and o.bot = x.id),
          $6::timestamptz + x.debounce_ms * interval '1 ms'),
        coalesce((select sum(replaced + 1) from old o where o.project = x.project and o.bot = x.id), 0)
      from x where x.fired is not null
      on conflict do nothing`,
    values: [
      column(({ project }) => project),
      column(({ id }) => id),
      column(({ since }) => time(since)),
      column(({ due }) => time(due)),
      column(({ fired }) => time(fired)),
      now,
      column(({ debounceMs }) => debounceMs),
    ],
  })
}

/** Leases occurrences for the queue of this Redis; they return if not queued. */
export async function claimOccurrences(
  connection: Connection,
  home: string,
  now: Date,
  count: number,
): Promise<readonly Occurrence[]> {
  const values = [now, home, FOREIGN_MS, count, LOOK_AGAIN_MS]
  const rows = await connection.query<Omit<Occurrence, 'bot'> & { content: string }>({
    name: 'occurrence-take',
    text: takenSql(OF_OCCURRENCE, `join tenant t using (project) ${botsSql('o', 'bot')}`),
    values,
    inSteps: withBots(OF_OCCURRENCE, takenSql(', o.project, o.bot as id', ''), values),
  })
  return rows.map(({ content, ...row }) => ({ ...row, bot: parseJson(content) as Resource }))
}

const OF_OCCURRENCE =
  ', r.ver as "botVersion", v.lu as updated, t.fhir_id as "projectId", v.content'

const takenSql = (content: string, bots: string) => `with x as (
        select run from occurrence x
        where due <= $1 and ${isFree(OCCURRENCES, 'x')} and (home is null or home = $2
          or due <= $1::timestamptz - $3::float8 * interval '1 ms')
        order by due limit $4 for update skip locked),
      o as (update occurrence o
        set home = $2, due = $1::timestamptz + $5::float8 * interval '1 ms'
        from x where o.run = x.run returning o.*)
      select o.run, o.scheduled, o.attempt, o.replaced, coalesce(o.made, o.scheduled) as since${content} from o ${bots}`

/** Leases an attempt; undefined when it has ended, or while another worker that is not `isGone` has it. */
export async function leaseOccurrence(
  connection: Connection,
  run: string,
  attempt: number,
  isGone: boolean,
): Promise<LeasedRow | undefined> {
  const [leased] = await connection.query<LeasedRow>({
    name: 'occurrence-lease',
    text: `update occurrence x set ${leaseRow(OCCURRENCES, 'x')}
      where run = $1 and attempt = $2 and ($3 or ${isFree(OCCURRENCES, 'x')})
      returning takes as token`,
    values: [run, attempt, isGone],
  })
  return leased
}

export async function releaseOccurrence(
  connection: Connection,
  run: string,
  token: number,
): Promise<boolean> {
  return await releaseLeased(
    connection,
    OCCURRENCES,
    { key: [run], token },
    {
      name: 'occurrence-release',
      set: 'held = null',
    },
  )
}

/** Schedules the next attempt after `delayMs`. False when the lease was lost. */
export async function retryOccurrence(
  connection: Connection,
  run: string,
  token: number,
  delayMs: number,
): Promise<boolean> {
  return await releaseLeased(
    connection,
    OCCURRENCES,
    { key: [run], token },
    {
      name: 'occurrence-repeat',
      set: `attempt = attempt + 1, home = null, held = null,
      due = clock_timestamp() + $3::float8 * interval '1 ms'`,
      values: [delayMs],
    },
  )
}

/** Ends the occurrence. False when the lease was lost. */
export async function endOccurrence(
  connection: Connection,
  run: string,
  token: number,
): Promise<boolean> {
  return await deleteLeased(connection, OCCURRENCES, { key: [run], token })
}

export async function removeOccurrence(connection: Connection, run: string): Promise<void> {
  await connection.query({
    name: 'occurrence-remove',
    text: 'delete from occurrence where run = $1',
    values: [run],
  })
}

/** Ends an occurrence as failed for good. False when the lease was lost. */
export async function buryOccurrence(
  connection: Connection,
  lease: Lease,
  projectId: string,
  error: string | undefined,
): Promise<boolean> {
  return await hasRows(connection, {
    name: 'occurrence-bury',
    text: `with o as (delete from occurrence where ${isLeased(OCCURRENCES)} returning *)
      insert into dead_run (id, project, bot, scheduled, takes, attempts, error, added)
      select run, $3, bot, scheduled, takes, attempt, $4, scheduled from o
      on conflict (project, id) do update set due = null, failed = clock_timestamp(),
        takes = excluded.takes, attempts = excluded.attempts, error = excluded.error
      returning 1`,
    values: [...leaseValues(lease), projectId, error ?? null],
  })
}

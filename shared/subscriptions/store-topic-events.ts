/** Versions of topics, their events, kept for `$events`, and heartbeats. */
import { CHANGES_BY_LETTER, type ChangeKind, SUBSCRIPTION } from '../access/subscription.ts'
import { typeNumber } from '../fhir/definitions.ts'
import type { Connection } from '../postgres/statement.ts'
import { type VersionRow, versionColumns } from '../store/rows/rows.ts'

/** Time for which `$events` returns an event. */
const EVENTS_KEPT = '7 days'
const REMOVED_AT_ONCE = 50_000
const BEATS_AT_ONCE = 1000

/** Topics of a Project, the oldest ones: a new topic displaces none. */
export const MOST_TOPICS = 200

/** Returns an equal text for equal versions of the topics; null without topics. `key`: of their code. */
export async function readTopicStamp(
  connection: Connection,
  project: number,
  key: bigint,
): Promise<string | null> {
  const [row] = await connection.query<{ stamp: string | null }>({
    name: 'topics-stamp',
    text: `select md5(string_agg(r.id || '/' || r.ver, ' ' order by r.id)) as stamp
      from (select id, ver from resource where project = $1 and type = ${typeNumber('Basic')}
        and keys @> array[$2::bigint] order by id limit ${MOST_TOPICS}) r`,
    values: [project, key],
  })
  return row?.stamp ?? null
}

export interface TopicEvent {
  readonly number: number
  readonly at: Date
  readonly change: ChangeKind
  /** The version that it is about, the last one for a deletion; undefined when expunged. */
  readonly row: VersionRow | undefined
}

interface EventRow extends VersionRow {
  readonly num: string
  readonly at: Date
  readonly op: keyof typeof CHANGES_BY_LETTER
}

interface Range {
  readonly since: number
  readonly until: number
  readonly count: number
}

/** In order of their numbers. `id`: row id of the Subscription. */
export async function listTopicEvents(
  connection: Connection,
  project: number,
  id: string,
  { since, until, count }: Range,
): Promise<readonly TopicEvent[]> {
  const rows = await connection.query<EventRow>({
    name: 'topic-events',
    text: `select e.num, e.at, e.op, ${versionColumns('v')} from topic_event e
      left join version v on v.project = e.project and v.type = e.type and v.id = e.resource
        and v.ver = e.ver - (e.op = 'd')::int
      where e.project = $1 and e.subscription = $2 and e.num between $3 and $4
        and e.at > clock_timestamp() - interval '${EVENTS_KEPT}'
      order by e.num limit $5`,
    values: [project, id, since, until, count],
  })
  return rows.map(({ num, at, op, ...row }) => ({
    number: Number(num),
    at,
    change: CHANGES_BY_LETTER[op],
    row: row.lu === null ? undefined : row,
  }))
}

/** Time of an event; undefined when it is older than a week. */
export async function readEventTime(
  connection: Connection,
  project: number,
  id: string,
  number: number,
): Promise<Date | undefined> {
  const [row] = await connection.query<{ at: Date }>({
    name: 'topic-event-time',
    text: 'select at from topic_event where project = $1 and subscription = $2 and num = $3',
    values: [project, id, number],
  })
  return row?.at
}

export async function removeOldTopicEvents(connection: Connection): Promise<void> {
  await connection.query({
    name: 'topic-events-old',
    text: `delete from topic_event e using (select project, subscription, num from topic_event
        where at < clock_timestamp() - interval '${EVENTS_KEPT}' limit ${REMOVED_AT_ONCE}) x
      where e.project = x.project and e.subscription = x.subscription and e.num = x.num`,
  })
}

/**
 * Adds deliveries of heartbeats where nothing was sent and nothing waits; returns their count. A worker that has not
 * yet seen the heartbeat of another one finds its time when it writes, and adds none.
 */
export async function addHeartbeats(connection: Connection): Promise<number> {
  const rows = await connection.query({
    name: 'heartbeats',
    text: `with due as (
        select a.project, a.id, a.ver, a.beat_target, s.notified from active_subscription a
        left join subscription_state s on s.project = a.project and s.subscription = a.id
        where a.beat_seconds is not null
          and greatest(a.since, s.notified) < clock_timestamp() - a.beat_seconds * interval '1 s'
          and not exists (select 1 from delivery d
            where d.project = a.project and d.subscription = a.id and d.state <> 'failed')
        order by a.project, a.id limit ${BEATS_AT_ONCE} for update of a skip locked),
      claimed as (insert into subscription_state as s (project, subscription, notified)
        select project, id, clock_timestamp() from due order by project, id
        on conflict (project, subscription) do update set notified = excluded.notified
          where s.notified is not distinct from
            (select notified from due where due.project = s.project and due.id = s.subscription)
        returning project, subscription)
      insert into delivery (project, id, subscription, type, resource, ver, op, origin, target)
      select project, gen_random_uuid(), id, ${typeNumber(SUBSCRIPTION)}, id, ver, 'b', '{}', beat_target
      from due join claimed c using (project) where c.subscription = due.id
      returning 1`,
  })
  return rows.length
}

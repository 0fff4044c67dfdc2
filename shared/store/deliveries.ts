/**
 * What Subscriptions are owed: a row from the match of a change until its receiver has it. Workers take
 * rows by turns of Projects and hold them by a lease, so that those of a worker that is lost are taken up
 * by another. The first attempt for a version waits for that of every earlier version of its resource.
 */
import { randomUUIDv7 } from 'node:crypto'
import type { Cause } from '../access/principal.ts'
import type { Connection } from '../database.ts'
import { typeNumber } from '../fhir/definitions.ts'
import type { Change } from '../fhir/subscription.ts'
import type { ChangeEvent } from './outbox.ts'

export interface NewDelivery {
  readonly event: ChangeEvent
  /** Row id. */
  readonly subscription: string
  /** Host of the address, or `Bot/<id>`. */
  readonly target: string
}

/** Taken for an attempt. */
export interface Delivery {
  /** The same for all attempts. */
  readonly id: string
  readonly project: number
  /** Row id; undefined when the Subscription waits for nothing any more. */
  readonly subscription: string | undefined
  /** Row id of its Subscription, whatever has become of it. */
  readonly owner: string
  readonly type: number
  readonly resource: string
  readonly ver: number
  readonly change: Change
  readonly cause: Partial<Cause>
  readonly target: string
  /** This one included, from 1. */
  readonly attempt: number
  /** How often it failed by a fault of our own. */
  readonly faults: number
  readonly added: Date
}

/** How many more a worker can take. */
export interface Room {
  readonly hooks: number
  readonly bots: number
}

/** A worker that is lost holds its deliveries so long. */
export const LEASE_MS = 30_000
const PER_PROJECT = 20
const PER_TARGET = 10
/** Takes of all workers come one after the other: what is under way is counted before more is taken. */
const LOCK = 6_221_483_007_210_018n

const OPS = { create: 'c', update: 'u', delete: 'd' } as const
const CHANGES = { c: 'create', u: 'update', d: 'delete' } as const

export async function addDeliveries(
  connection: Connection,
  deliveries: readonly NewDelivery[],
): Promise<void> {
  if (deliveries.length === 0) return
  const column = (value: (delivery: NewDelivery) => unknown) => deliveries.map(value)
  await connection.query({
    name: 'delivery-add',
    text: `insert into delivery
        (project, id, subscription, type, resource, ver, op, origin, target)
      select * from unnest($1::int[], $2::uuid[], $3::uuid[], $4::smallint[], $5::uuid[], $6::int[],
        $7::"char"[], $8::text[], $9::text[])`,
    values: [
      column(({ event }) => event.project),
      column(() => randomUUIDv7()),
      column(({ subscription }) => subscription),
      column(({ event }) => typeNumber(event.type)),
      column(({ event }) => event.subject.id),
      column(({ event }) => event.ver),
      column(({ event }) => OPS[event.change]),
      column(({ event }) => event.origin),
      column(({ target }) => target),
    ],
  })
}

interface DeliveryRow extends Omit<Delivery, 'change' | 'cause' | 'subscription'> {
  readonly op: keyof typeof CHANGES
  readonly origin: string
  readonly subscription: string | null
}

export const TAKE_LOCKS = [LOCK]

/** Those that are due, in a transaction that holds `TAKE_LOCKS`. One statement. */
export async function takeDeliveries(
  connection: Connection,
  room: Room,
): Promise<readonly Delivery[]> {
  const rows = await connection.query<DeliveryRow>({
    name: 'delivery-take',
    text: `with recursive
      projects as (
        (select project from delivery where state <> 'failed' order by project limit 1)
        union all
        select (select d.project from delivery d
          where d.project > p.project and d.state <> 'failed' order by d.project limit 1)
        from projects p where p.project is not null),
      busy as materialized (
        select project, target, count(*) as n from delivery
        where state = 'active' and due > clock_timestamp() group by project, target),
      ready as (
        select d.*, row_number() over (partition by d.project order by d.attempts > 0, d.due) as turn,
          row_number() over (partition by d.target order by d.attempts > 0, d.due)
            + coalesce((select sum(b.n) from busy b where b.target = d.target), 0) as place
        from projects p cross join lateral (
          select x.id, x.project, x.target, x.attempts, x.due from delivery x
          where x.project = p.project and x.state <> 'failed' and x.due <= clock_timestamp()
            and (case when x.target like 'Bot/%' then $1::int else $2::int end) > 0
            and x.target not in (select target from busy group by target having sum(n) >= ${PER_TARGET})
            and not exists (select from subscription_state s where s.project = x.project
              and s.subscription = x.subscription and s.paused_until > clock_timestamp())
            and (x.attempts > 0 or not exists (select from delivery y
              where y.project = x.project and y.subscription = x.subscription and y.type = x.type
                and y.resource = x.resource and y.ver < x.ver and y.state <> 'failed'
                and (y.attempts = 0 or y.state = 'active')))
          order by x.attempts > 0, x.due
          limit greatest(0, ${PER_PROJECT} - coalesce(
            (select sum(n) from busy where busy.project = p.project), 0))
          for update skip locked) d),
      chosen as (
        select id, row_number() over (partition by target like 'Bot/%' order by turn, due) as rank,
          case when target like 'Bot/%' then $1::int else $2::int end as room
        from ready where place <= ${PER_TARGET})
      update delivery d set state = 'active',
        attempts = d.attempts + (d.state = 'waiting')::int, faults = d.faults + (d.state = 'active')::int,
        due = clock_timestamp() + interval '${LEASE_MS} ms'
      from chosen c where d.id = c.id and c.rank <= c.room
      returning d.id::text, d.project, d.type, d.resource::text, d.ver, d.op, d.origin, d.target,
        d.attempts as attempt, d.faults, d.added, d.subscription::text as owner,
        (select a.id::text from active_subscription a
          where a.project = d.project and a.id = d.subscription) as subscription`,
    values: [room.bots, room.hooks],
  })
  return rows.map(({ op, origin, subscription, ...row }) => ({
    ...row,
    subscription: subscription ?? undefined,
    change: CHANGES[op],
    // Written by the store.
    cause: JSON.parse(origin) as Partial<Cause>,
  }))
}

/** Says that a worker still has them. */
export async function holdDeliveries(
  connection: Connection,
  ids: readonly string[],
): Promise<void> {
  if (ids.length === 0) return
  await connection.query({
    name: 'delivery-hold',
    text: `update delivery set due = clock_timestamp() + interval '${LEASE_MS} ms'
      where id = any($1::uuid[]) and state = 'active'`,
    values: [ids],
  })
}

/** They are received, or nobody waits for them any more. */
export async function endDeliveries(connection: Connection, ids: readonly string[]): Promise<void> {
  if (ids.length === 0) return
  await connection.query({
    name: 'delivery-end',
    text: 'delete from delivery where id = any($1::uuid[])',
    values: [ids],
  })
}

/** Another attempt after `delayMs`. `fault`: this one is not counted against the Subscription. */
export async function repeatDelivery(
  connection: Connection,
  id: string,
  delayMs: number,
  error: string,
  fault: boolean,
): Promise<void> {
  await connection.query({
    name: 'delivery-repeat',
    text: `update delivery set state = 'waiting', error = $3,
        due = clock_timestamp() + $2::float8 * interval '1 ms',
        attempts = attempts - $4::int, faults = faults + $4::int
      where id = $1`,
    values: [id, delayMs, error, fault ? 1 : 0],
  })
}

/** It was not begun: it waits as before. */
export async function giveBackDelivery(
  connection: Connection,
  id: string,
  delayMs: number,
): Promise<void> {
  await connection.query({
    name: 'delivery-back',
    text: `update delivery set state = 'waiting', attempts = attempts - 1,
        due = clock_timestamp() + $2::float8 * interval '1 ms'
      where id = $1`,
    values: [id, delayMs],
  })
}

/** What Subscriptions are owed and have not got. */
export interface Backlog {
  readonly waiting: number
  /** Age of the oldest that nobody has tried to deliver yet; 0 without one. */
  readonly oldestSeconds: number
  /** Subscriptions whose deliveries pause. */
  readonly paused: number
}

export const NO_BACKLOG: Backlog = { waiting: 0, oldestSeconds: 0, paused: 0 }

export async function backlogOf(connection: Connection): Promise<Backlog> {
  const [row] = await connection.query<Backlog>({
    name: 'delivery-backlog',
    text: `select count(*)::int as waiting,
        coalesce(extract(epoch from clock_timestamp() - min(added) filter (where attempts = 0)), 0)::float8
          as "oldestSeconds",
        (select count(*)::int from subscription_state where paused_until > clock_timestamp()) as paused
      from delivery where state <> 'failed'`,
    values: [],
  })
  return row ?? NO_BACKLOG
}

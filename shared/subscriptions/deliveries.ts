/**
 * Pending deliveries: a row from the match of a change until its receiver has it. Workers take rows
 * (delivery-take.ts) under a lease, so that another worker takes up those of one that is lost.
 */
import { randomUUIDv7 } from 'node:crypto'
import type { Cause } from '../access/principal.ts'
import type { Change } from '../access/subscription.ts'
import { typeNumber } from '../fhir/definitions.ts'
import type { Connection } from '../platform/postgres/statement.ts'
import type { ChangeEvent } from '../store/events/rows.ts'
import type { VersionRow } from '../store/rows/rows.ts'

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
  /** Row id. */
  readonly subscription: string
  /** The version of the Subscription that is in force; undefined when it waits for nothing any more. */
  readonly terms: number | undefined
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
  /** The version to send, for a deletion the last one; undefined when it is gone. */
  readonly version: VersionRow | undefined
}

/** How many more a worker can take. */
export interface Room {
  readonly hooks: number
  readonly bots: number
}

/** A worker that is lost holds its deliveries so long. */
export const LEASE_MS = 30_000
const OPS = { create: 'c', update: 'u', delete: 'd' } as const

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

/** Counts of pending deliveries. */
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

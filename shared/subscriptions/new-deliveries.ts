/** Adds deliveries for matched changes. */
import { randomUUIDv7 } from 'node:crypto'
import { CHANGE_LETTERS } from '../access/subscription.ts'
import { typeNumber } from '../fhir/definitions.ts'
import type { Connection } from '../postgres/statement.ts'
import type { Pace } from '../queue/jobs.ts'
import type { ChangeEvent } from '../store/rows/event-rows.ts'

export interface DeliveryPace extends Pick<Pace, 'turn'> {
  /** The last change of the key, or of the resource without a key, within this time is the one delivered. */
  readonly debounceMs?: number
}

export interface NewDelivery extends DeliveryPace {
  readonly event: ChangeEvent
  /** Row id. */
  readonly subscription: string
  /** Host of the address, or `Bot/<id>`. */
  readonly target: string
  /** The event of a topic: it gets a number, and stays for `$events`. */
  readonly isTopic: boolean
}

const COLUMNS = `$1::int[], $2::uuid[], $3::uuid[], $4::smallint[], $5::uuid[], $6::int[], $7::"char"[], $8::text[],
  $9::text[]`
const NAMES = 'project, id, subscription, type, resource, ver, op, origin, target'

export async function addDeliveries(
  connection: Connection,
  deliveries: readonly NewDelivery[],
): Promise<void> {
  const paced = deliveries.filter(isPaced)
  const others = deliveries.filter((delivery) => !isPaced(delivery))
  const topics = others.filter(({ isTopic }) => isTopic)
  const plain = others.filter(({ isTopic }) => !isTopic)
  await Promise.all([
    addPlain(connection, plain),
    addPaced(connection, paced),
    addNumbered(connection, topics),
  ])
}

function isPaced({ turn, debounceMs }: NewDelivery): boolean {
  return turn !== undefined || debounceMs !== undefined
}

async function addPlain(connection: Connection, deliveries: readonly NewDelivery[]): Promise<void> {
  if (deliveries.length === 0) return
  await connection.query({
    name: 'delivery-add',
    text: `insert into delivery (${NAMES}) select * from unnest(${COLUMNS})`,
    values: columns(deliveries),
  })
}

/**
 * Events of one Subscription are added by one worker at a time, so numbers have no gaps and follow the order of commits.
 * Earlier events of an expunged Subscription with the same id are replaced.
 */
async function addNumbered(
  connection: Connection,
  deliveries: readonly NewDelivery[],
): Promise<void> {
  if (deliveries.length === 0) return
  await connection.query({
    name: 'delivery-add-numbered',
    text: `with x as materialized (
        select *, row_number() over (partition by project, subscription order by n) as place,
          count(*) over (partition by project, subscription) as added
        from unnest(${COLUMNS}, $10::timestamptz[]) with ordinality as x(${NAMES}, at, n)),
      s as (insert into subscription_state as s (project, subscription, events, notified)
        select project, subscription, count(*), clock_timestamp() from x
        group by project, subscription order by project, subscription
        on conflict (project, subscription) do update set events = s.events + excluded.events,
          notified = excluded.notified
        returning project, subscription, events),
      e as (select x.*, s.events - x.added + x.place as num from x join s using (project, subscription)),
      k as (insert into topic_event (project, subscription, num, type, resource, ver, op, at)
        select project, subscription, num, type, resource, ver, op, at from e
        on conflict (project, subscription, num) do update set type = excluded.type,
          resource = excluded.resource, ver = excluded.ver, op = excluded.op, at = excluded.at)
      insert into delivery (${NAMES}, event) select ${NAMES}, num from e`,
    values: [...columns(deliveries), deliveries.map(({ event }) => event.at)],
  })
}

/** Changes of a resource are matched in the order of its versions, so only those of a key may come late. */
const WAITS_DEBOUNCED = `x.debounce_ms is not null and d.project = x.project and d.subscription = x.subscription
            and d.debounced and d.state = 'waiting' and d.attempts = 0 and d.due > clock_timestamp()
            and d.turn_key is not distinct from x.turn_key
            and (d.turn_key is not null or (d.type = x.type and d.resource = x.resource))`

/**
 * The last of the debounced changes of a key stays, and is delivered at the time of the first. Workers may match a later
 * change of the project first. Changes of one Subscription are added by one worker at a time, so that each sees the one
 * before it.
 */
async function addPaced(connection: Connection, deliveries: readonly NewDelivery[]): Promise<void> {
  if (deliveries.length === 0) return
  const last = lastOfEach(deliveries)
  const debounced = last.filter(({ delivery }) => delivery.debounceMs !== undefined)
  await lockSubscriptions(
    connection,
    debounced.map(({ delivery }) => delivery.subscription),
  )
  const rows = last.map(({ delivery }) => delivery)
  await connection.query({
    name: 'delivery-add-paced',
    text: `with x as (select * from unnest(${COLUMNS}, $10::text[], $11::int[], $12::bigint[], $13::float8[], $14::int[])
          as x(${NAMES}, turn_key, turn_most, turn_seq, debounce_ms, replaced)),
        later as (update delivery d set replaced = d.replaced + x.replaced + 1 from x
          where ${WAITS_DEBOUNCED} and d.turn_seq > x.turn_seq returning x.id),
        old as (delete from delivery d using x
          where ${WAITS_DEBOUNCED} and (x.turn_seq is null or d.turn_seq <= x.turn_seq)
          returning x.id as by, d.due, d.replaced)
      insert into delivery (${NAMES}, turn_key, turn_most, turn_seq, debounced, replaced, due)
      select ${NAMES}, turn_key, turn_most, turn_seq, debounce_ms is not null,
        x.replaced + coalesce((select sum(o.replaced + 1) from old o where o.by = x.id), 0),
        coalesce((select min(o.due) from old o where o.by = x.id),
          clock_timestamp() + coalesce(debounce_ms, 0) * interval '1 ms')
      from x where id not in (select id from later)`,
    values: [
      ...columns(rows),
      rows.map(({ turn }) => turn?.key ?? null),
      rows.map(({ turn }) => turn?.most ?? null),
      rows.map(({ turn, event }) => (turn === undefined ? null : event.seq)),
      rows.map(({ debounceMs }) => debounceMs ?? null),
      last.map(({ replaced }) => replaced),
    ],
  })
}

interface LastDelivery {
  readonly delivery: NewDelivery
  /** Earlier changes of the batch that it replaces. */
  readonly replaced: number
}

/** Keeps the last change of each debounced key or resource. */
function lastOfEach(deliveries: readonly NewDelivery[]): readonly LastDelivery[] {
  const groups = Map.groupBy(deliveries, (delivery) => {
    const { debounceMs, subscription, turn, event } = delivery
    if (debounceMs === undefined) return delivery
    // Another Project may have the same ids.
    return `${event.project} ${subscription} ${turn?.key ?? `${event.type}/${event.subject.id}`}`
  })
  return [...groups.values()].flatMap((group) => {
    const delivery = group.at(-1)
    return delivery === undefined ? [] : [{ delivery, replaced: group.length - 1 }]
  })
}

const DEBOUNCE_LOCK = 0x4442

/** Until the transaction ends; in one order, against deadlocks. */
async function lockSubscriptions(connection: Connection, ids: readonly string[]): Promise<void> {
  if (ids.length === 0) return
  await connection.query({
    name: 'delivery-debounce-lock',
    text: `select pg_advisory_xact_lock(${DEBOUNCE_LOCK}, n)
      from (select distinct hashtext(id) as n from unnest($1::text[]) as x(id) order by n) y`,
    values: [ids],
  })
}

function columns(deliveries: readonly NewDelivery[]): readonly unknown[] {
  const column = (value: (delivery: NewDelivery) => unknown) => deliveries.map(value)
  return [
    column(({ event }) => event.project),
    column(() => randomUUIDv7()),
    column(({ subscription }) => subscription),
    column(({ event }) => typeNumber(event.type)),
    column(({ event }) => event.subject.id),
    column(({ event }) => event.ver),
    column(({ event }) => CHANGE_LETTERS[event.change]),
    column(({ event }) => event.origin),
    column(({ target }) => target),
  ]
}

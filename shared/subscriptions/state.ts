/**
 * Delivery state of Subscriptions. Consecutive failures open a circuit: deliveries wait, and after the pause the next
 * event closes it or doubles the pause.
 */

import { SUBSCRIPTION } from '../access/subscription.ts'
import { DEAD_KEPT } from '../bots/dead-runs.ts'
import { typeNumber } from '../fhir/definitions.ts'
import { dialect } from '../postgres/chosen-dialect.ts'
import { endLease, isLeased, leaseValues } from '../postgres/leases.ts'
import type { Connection } from '../postgres/statement.ts'
import { type VersionRow, versionColumns } from '../store/rows/rows.ts'
import { DELIVERIES, type DELIVERY_KINDS, type Delivery, deliveryLease } from './deliveries.ts'

const MOST_FAILURES = 20
const FIRST_PAUSE_S = 60
const LONGEST_PAUSE_S = 900
const FAILING_HOURS = 72
const ORPHAN_HOURS = 24
const AT_ONCE = 100

type LeasedDelivery = Pick<Delivery, 'id' | 'token'>

export interface Receipt extends LeasedDelivery {
  /** A summary AuditEvent will report it. */
  readonly unreported: boolean
}

/** Ends received deliveries, except those with a lost lease. One statement. */
export async function deliveriesReceived(
  connection: Connection,
  receipts: readonly Receipt[],
): Promise<void> {
  if (receipts.length === 0) return
  await connection.query({
    name: 'delivery-received',
    // Ordered to avoid deadlocks.
    text: `with d as (
        delete from delivery using ${dialect.unnest('$1::uuid[]', '$2::int[]', '$3::bool[]')} as x(id, token, untold)
        where delivery.id = x.id and delivery.takes = x.token returning delivery.project, delivery.subscription, x.untold)
      insert into subscription_state as s (project, subscription, delivered, untold, untold_since)
      select project, subscription, count(*), count(*) filter (where untold),
        case when bool_or(untold) then clock_timestamp() end
      from d group by project, subscription order by project, subscription
      on conflict (project, subscription) do update set delivered = s.delivered + excluded.delivered,
        untold = s.untold + excluded.untold,
        untold_since = coalesce(s.untold_since, excluded.untold_since),
        failures = 0, failing_since = null, orphan_since = null, pauses = 0, paused_until = null`,
    values: [
      receipts.map(({ id }) => id),
      receipts.map(({ token }) => token),
      receipts.map(({ unreported }) => unreported),
    ],
  })
}

/** Ends the attempts; the delivery is a dead letter from now on. True when all deliveries have failed for three days. */
export async function deliveryFailed(
  connection: Connection,
  delivery: LeasedDelivery,
  error: string,
): Promise<boolean> {
  const [row] = await connection.query<{ isDead: boolean }>({
    name: 'delivery-failed',
    text: `with d as (update delivery set state = 'failed', error = $3, due = clock_timestamp(),
          ${endLease(DELIVERIES, 'delivery')}
        where ${isLeased(DELIVERIES)} returning project, subscription)
      insert into subscription_state as s
        (project, subscription, failed, failures, failing_since, error)
      select project, subscription, 1, 1, clock_timestamp(), $3 from d
      on conflict (project, subscription) do update set failed = s.failed + 1,
        failures = s.failures + 1, error = excluded.error, orphan_since = null,
        failing_since = coalesce(s.failing_since, excluded.failing_since),
        pauses = s.pauses + (${OPENS})::int,
        paused_until = case when ${OPENS} then clock_timestamp() + interval '1 s'
          * least(${LONGEST_PAUSE_S}, ${FIRST_PAUSE_S} * 2 ^ least(s.pauses, 10))
          else s.paused_until end
      returning failing_since < clock_timestamp() - interval '${FAILING_HOURS} hours' as "isDead"`,
    values: [...leaseValues(deliveryLease(delivery)), error],
  })
  return row?.isDead ?? false
}

/** Deliveries already under way do not extend the pause. */
const OPENS = `s.failures + 1 >= ${MOST_FAILURES}
  and (s.paused_until is null or s.paused_until < clock_timestamp())`

/** Records that the author has no active membership. True after a day. */
export async function deliveryOrphaned(
  connection: Connection,
  delivery: LeasedDelivery,
): Promise<boolean> {
  const [row] = await connection.query<{ isDead: boolean }>({
    name: 'delivery-orphaned',
    text: `with d as (delete from delivery where ${isLeased(DELIVERIES)} returning project, subscription)
      insert into subscription_state as s (project, subscription, orphan_since)
      select project, subscription, clock_timestamp() from d
      on conflict (project, subscription) do update
        set orphan_since = coalesce(s.orphan_since, excluded.orphan_since)
      returning orphan_since < clock_timestamp() - interval '${ORPHAN_HOURS} hours' as "isDead"`,
    values: leaseValues(deliveryLease(delivery)),
  })
  return row?.isDead ?? false
}

interface SubscriptionState {
  readonly delivered: number
  readonly failed: number
  readonly error: string | null
  readonly paused: Date | null
  readonly waiting: number
  /** Number of the latest event of a topic. */
  readonly events: number
  /** Waiting deliveries whose last attempt has failed. */
  readonly retrying: number
}

/**
 * Counts of waiting deliveries, and the last error of these and of the last failed one, of the Subscription `x.id`. Each
 * part names the states of an index.
 */
const PENDING = `lateral (select count(*) filter (where not failed)::int as waiting,
    count(*) filter (where not failed and error is not null)::int as retrying,
    (array_agg(error order by added desc) filter (where error is not null))[1] as error
  from (select false as failed, error, added from delivery
      where project = $1 and subscription = x.id and state <> 'failed'
    union all (select true, error, added from delivery
      where project = $1 and subscription = x.id and state = 'failed' order by added desc limit 1)) d) p`

const STATE_COLUMNS = `coalesce(s.delivered, 0)::float8 as delivered,
    coalesce(s.failed, 0)::float8 as failed, coalesce(s.events, 0)::float8 as events, coalesce(p.error, s.error) as error,
    case when s.paused_until > clock_timestamp() then s.paused_until end as paused,
    p.waiting, p.retrying`

/** Reads the state by row id. */
export async function readSubscriptionState(
  connection: Connection,
  project: number,
  id: string,
): Promise<SubscriptionState | undefined> {
  return (await readSubscriptionStates(connection, project, [id])).get(id)
}

/** Returns the states by row id. One statement. */
export async function readSubscriptionStates(
  connection: Connection,
  project: number,
  ids: readonly string[],
): Promise<ReadonlyMap<string, SubscriptionState>> {
  const rows = await connection.query<SubscriptionState & { readonly id: string }>({
    name: 'subscription-state',
    text: `select x.id::text, ${STATE_COLUMNS} from unnest($2::uuid[]) as x(id)
      left join subscription_state s on s.project = $1 and s.subscription = x.id
      cross join ${PENDING}`,
    values: [project, ids],
  })
  return new Map(rows.map((row) => [row.id, row]))
}

interface SubscriptionSummary extends SubscriptionState {
  readonly id: string
  readonly failures: number
  readonly failingSince: Date | null
}

/** Lists live Subscriptions of a Project with any delivery, failing ones first. */
export async function listSubscriptionStates(
  connection: Connection,
  project: number,
): Promise<readonly SubscriptionSummary[]> {
  return await connection.query<SubscriptionSummary>({
    name: 'subscription-states',
    // Materialized, because Subscriptions may be stored on other servers than their deliveries.
    text: `with p as materialized (
        select x.id as row, ${STATE_COLUMNS}, coalesce(s.failures, 0) as failures,
          s.failing_since as "failingSince"
        from (select subscription as id from subscription_state where project = $1
          union select subscription from delivery where project = $1) x
        left join subscription_state s on s.project = $1 and s.subscription = x.id
        cross join ${PENDING})
      select ${FHIR_ID} as id, p.delivered, p.failed, p.events, p.error, p.failures, p."failingSince",
        p.paused, p.waiting, p.retrying
      from p join resource r on r.project = $1 and r.type = $2 and r.id = p.row
      join version v on v.project = r.project and v.type = r.type and v.id = r.id and v.ver = r.ver
      where v.content is not null
      order by p.failures desc, p.retrying desc, p.failed desc limit ${MOST_SHOWN}`,
    values: [project, typeNumber(SUBSCRIPTION)],
  })
}

const MOST_SHOWN = 1000
/** Every stored version begins like this; a deletion row has no content. */
const FHIR_ID = `substring(v.content from '^\\{"resourceType":"\\w+","id":"([A-Za-z0-9.-]{1,64})"')`

export interface PendingDelivery {
  readonly id: string
  readonly type: number
  readonly resource: string
  readonly version: number
  readonly op: keyof typeof DELIVERY_KINDS
  readonly target: string
  readonly state: 'waiting' | 'active' | 'failed'
  readonly attempts: number
  readonly added: Date
  readonly due: Date
  readonly error: string | null
}

/** Lists waiting and failed deliveries by row id, newest first. */
export async function listPendingDeliveries(
  connection: Connection,
  project: number,
  id: string,
): Promise<readonly PendingDelivery[]> {
  return await connection.query<PendingDelivery>({
    name: 'delivery-list',
    text: `select d.id, d.type, coalesce(${FHIR_ID}, d.resource::text) as resource, d.ver as version,
        d.op, d.target, d.state, d.attempts, d.added, d.due, d.error
      from delivery d
      left join version v on v.project = d.project and v.type = d.type and v.id = d.resource
        and v.ver = d.ver
      where d.project = $1 and d.subscription = $2 order by d.added desc limit ${MOST_LISTED}`,
    values: [project, id],
  })
}

const MOST_LISTED = 200

interface Redelivery {
  readonly project: number
  readonly id: string
  readonly since: Date
  readonly until: Date
}

/** Makes failed deliveries due again with all attempts; returns their count. */
export async function redeliver(
  connection: Connection,
  { project, id, since, until }: Redelivery,
): Promise<number> {
  const rows = await connection.query({
    name: 'delivery-again',
    text: `update delivery set state = 'waiting', attempts = 0, faults = 0, due = clock_timestamp(),
        since = clock_timestamp()
      where project = $1 and subscription = $2 and state = 'failed' and added between $3 and $4
        and added > clock_timestamp() - interval '${DEAD_KEPT}'
      returning 1`,
    values: [project, id, since, until],
  })
  return rows.length
}

export async function endedSubscriptions(connection: Connection): Promise<readonly VersionRow[]> {
  return connection.query<VersionRow>({
    name: 'subscriptions-ended',
    text: `select ${versionColumns('v')} from active_subscription a
      join version v on v.project = a.project and v.type = ${typeNumber(SUBSCRIPTION)}
        and v.id = a.id and v.ver = a.ver
      where a.ends < clock_timestamp() and a.until is null limit ${AT_ONCE}`,
  })
}

export async function removeOldDeliveries(connection: Connection): Promise<void> {
  await connection.query({
    name: 'delivery-old',
    text: `delete from delivery where state = 'failed'
      and due < clock_timestamp() - interval '${DEAD_KEPT}'`,
  })
}

/** Project and row id. */
interface UnreportedPlace {
  readonly project: number
  readonly subscription: string
}

export interface Unreported {
  readonly count: number
  readonly since: Date
  /** Latest content, deleted or not; undefined when expunged. */
  readonly version: VersionRow | undefined
}

const REPORTED_AT_ONCE = 100
const SUMMED_UP = '1 minute'

/** Lists Subscriptions whose first unreported success is a minute old. */
export async function unreportedSubscriptions(
  connection: Connection,
): Promise<readonly UnreportedPlace[]> {
  return connection.query<UnreportedPlace>({
    name: 'subscriptions-unreported',
    text: `select project, subscription::text from subscription_state
      where untold_since < clock_timestamp() - interval '${SUMMED_UP}' limit ${REPORTED_AT_ONCE}`,
  })
}

/**
 * Claims them in the transaction of `connection`, which reports them; undefined when another worker did. Two
 * statements.
 */
export async function claimUnreported(
  connection: Connection,
  { project, subscription }: UnreportedPlace,
): Promise<Unreported | undefined> {
  const [taken] = await connection.query<Omit<Unreported, 'version'>>({
    name: 'subscription-report',
    text: `update subscription_state s set untold = 0, untold_since = null
      from (select * from subscription_state
        where project = $1 and subscription = $2 and untold > 0 for update) o
      where s.project = o.project and s.subscription = o.subscription
      returning o.untold as count, o.untold_since as since`,
    values: [project, subscription],
  })
  if (taken === undefined) return undefined
  const [version] = await connection.query<VersionRow>({
    name: 'subscription-last',
    text: `select ${versionColumns('v')} from version v
      where v.project = $1 and v.type = ${typeNumber(SUBSCRIPTION)} and v.id = $2
        and v.content is not null
      order by v.ver desc limit 1`,
    values: [project, subscription],
  })
  return { ...taken, version }
}

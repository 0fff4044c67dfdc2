/**
 * Pending deliveries: a row from the match of a change until its delivery. Workers lease rows, so that those of a
 * crashed worker are taken over.
 */

import { REGISTRY_TYPES } from '../access/policy.ts'
import { type Cause, SYSTEM_PROJECT_NUMBER } from '../access/principal.ts'
import { CHANGES_BY_LETTER, type ChangeKind } from '../access/subscription.ts'
import { timings } from '../core/config/waits.ts'
import { typeNumber } from '../fhir/definitions.ts'
import { dialect } from '../postgres/chosen-dialect.ts'
import { type Lease, type LeaseTable, leaseRow, releaseLeased } from '../postgres/leases.ts'
import { arrayLiteral, type Connection, hasRows } from '../postgres/statement.ts'
import type { Turn } from '../queue/jobs.ts'
import type { VersionRow } from '../store/rows/rows.ts'

export interface Delivery {
  /** The same for all attempts. */
  readonly id: string
  readonly project: number
  readonly subscription: string
  /** Version of the Subscription in force; undefined when it is no longer active. */
  readonly terms: number | undefined
  readonly type: number
  readonly resource: string
  readonly ver: number
  readonly change: ChangeKind
  readonly cause: Partial<Cause>
  readonly target: string
  /** 1-based, this one included. */
  readonly attempt: number
  /** Failures inside the service. */
  readonly faults: number
  /** Lease token. */
  readonly token: number
  readonly added: Date
  /** Added, or made due again by a replay: all attempts since then run the same version of a Bot. */
  readonly since: Date
  /** The key of its Bot's runs. */
  readonly turn: Turn | undefined
  /** Changes that this one has replaced. */
  readonly replaced: number
  /** A message about the Subscription itself, which is then its resource; undefined for a change. */
  readonly notice: Notice | undefined
  /** Number of the event of a topic. */
  readonly event: number | undefined
  /** The version to send (the last one for a deletion); undefined when expunged. */
  readonly version: VersionRow | undefined
}

const NOTICES = { h: 'handshake', b: 'heartbeat' } as const

type Notice = (typeof NOTICES)[keyof typeof NOTICES]

/** Maps the letter in the column `op` to the subject of a delivery. */
export const DELIVERY_KINDS = { ...CHANGES_BY_LETTER, ...NOTICES } as const

export interface WorkerCapacity {
  readonly hooks: number
  readonly bots: number
}

/** While a delivery is active, `due` is the end of its lease. */
export const DELIVERIES: LeaseTable = {
  name: 'delivery',
  key: { id: 'uuid' },
  token: 'takes',
  expiresAt: 'due',
  leaseMs: timings.leaseMs,
}

export function deliveryLease({ id, token }: Pick<Delivery, 'id' | 'token'>): Lease {
  return { key: [id], token }
}

/** False for a delivery that has ended, or is a dead letter. */
export async function hasDelivery(connection: Connection, id: string): Promise<boolean> {
  return await hasRows(connection, {
    name: 'delivery-exists',
    text: `select 1 from delivery where id = $1 and state <> 'failed'`,
    values: [id],
  })
}

interface Repeat {
  readonly delayMs: number
  readonly error: string
  readonly fault: boolean
}

/** Retries after `delayMs`. `fault`: not counted against the Subscription. False when the lease was lost. */
export async function retryDelivery(
  connection: Connection,
  delivery: Pick<Delivery, 'id' | 'token'>,
  { delayMs, error, fault }: Repeat,
): Promise<boolean> {
  return await releaseLeased(connection, DELIVERIES, deliveryLease(delivery), {
    name: 'delivery-repeat',
    set: `state = 'waiting', error = $4, due = clock_timestamp() + $3::float8 * interval '1 ms',
      attempts = attempts - $5::int, faults = faults + $5::int`,
    values: [delayMs, error, fault ? 1 : 0],
  })
}

/** Releases a delivery that was not begun. False when the lease was lost. */
export async function releaseDelivery(
  connection: Connection,
  delivery: Pick<Delivery, 'id' | 'token'>,
  delayMs: number,
): Promise<boolean> {
  return await releaseLeased(connection, DELIVERIES, deliveryLease(delivery), {
    name: 'delivery-back',
    set: `state = 'waiting', attempts = attempts - 1,
      due = clock_timestamp() + $3::float8 * interval '1 ms'`,
    values: [delayMs],
  })
}

/** Counts of pending deliveries. */
interface Backlog {
  readonly waiting: number
  /** Age of the oldest unattempted delivery that is not debounced; 0 without one. */
  readonly oldestSeconds: number
  /** Subscriptions with paused deliveries. */
  readonly paused: number
}

export const NO_BACKLOG: Backlog = { waiting: 0, oldestSeconds: 0, paused: 0 }

export async function readDeliveryBacklog(connection: Connection): Promise<Backlog> {
  const [row] = await connection.query<Backlog>({
    name: 'delivery-backlog',
    text: `select count(*)::int as waiting,
        coalesce(extract(epoch from clock_timestamp() - min(added)
          filter (where attempts = 0 and not (debounced and due > clock_timestamp()))), 0)::float8
          as "oldestSeconds",
        (select count(*)::int from subscription_state where paused_until > clock_timestamp()) as paused
      from delivery where state <> 'failed'`,
  })
  return row ?? NO_BACKLOG
}

/*
 * Workers take pending deliveries in turns by Project. The first attempt for a version waits for those of earlier
 * versions of its resource, and each attempt with a key for earlier changes of the key until they have ended. Deliveries to busy or paused receivers are skipped at no cost, however many they are.
 */

const PER_PROJECT = 20
const PER_TARGET = 10
/** Serializes takes of all workers, so that work in progress is counted before more is taken. */
const LOCK = 6_221_483_007_210_018n

export const TAKE_LOCKS = [LOCK]

const REGISTRY = arrayLiteral([...REGISTRY_TYPES].map(typeNumber))

type OwnColumns = Pick<
  Delivery,
  | 'id'
  | 'project'
  | 'subscription'
  | 'type'
  | 'resource'
  | 'ver'
  | 'target'
  | 'attempt'
  | 'faults'
  | 'token'
  | 'added'
  | 'since'
  | 'replaced'
>

interface TakenRow extends OwnColumns {
  readonly op: keyof typeof DELIVERY_KINDS
  readonly event: string | null
  readonly origin: string
  readonly terms: number | null
  readonly turn_key: string | null
  readonly turn_most: number | null
  readonly filed: number
  readonly vver: number
  readonly lu: Date | null
  readonly content: string | null
  readonly meta_at: number
  readonly meta_ext: string
}

/** No earlier change is still to be matched, and fewer than `turn_most` earlier ones of the key are pending. */
const IS_TURN = `(not exists (select 1 from outbox b where b.project = x.project and b.seq < x.turn_seq)
              and (select count(*) from (select 1 from delivery y where y.project = x.project
                and y.turn_key = x.turn_key and y.state <> 'failed'
                and (y.turn_seq, y.id) < (x.turn_seq, x.id) limit x.turn_most) z) < x.turn_most)`

/** $1: room for bot deliveries, $2: for external ones, $3: types of the registry. */
const takeSql = (columns: string, versions: string) => `with recursive
      pending as (
        (select project, target, subscription from delivery where state <> 'failed'
          order by project, target, subscription limit 1)
        union all
        select n.* from pending o cross join lateral (
          select d.project, d.target, d.subscription from delivery d
          where (d.project, d.target, d.subscription) > (o.project, o.target, o.subscription)
            and d.state <> 'failed'
          order by d.project, d.target, d.subscription limit 1) n),
      busy as materialized (
        select project, target, count(*) as n from delivery
        where state = 'active' and due > statement_timestamp() group by project, target),
      due as (
        select d.*, row_number() over (partition by d.project order by d.again, d.due)
          + coalesce((select sum(n) from busy where busy.project = d.project), 0) as turn
        from pending o cross join lateral (
          select x.id, x.project, x.target, x.attempts > 0 as again, x.due from delivery x
          where x.project = o.project and x.target = o.target and x.subscription = o.subscription
            and x.state <> 'failed' and x.due <= statement_timestamp()
            and (x.attempts > 0 or not exists (select 1 from delivery y
              where y.project = x.project and y.subscription = x.subscription and y.type = x.type
                and y.resource = x.resource and y.ver < x.ver and y.state <> 'failed'
                and (y.attempts = 0 or y.state = 'active')))
            and (x.turn_key is null or ${IS_TURN})
          order by x.attempts > 0, x.due
          limit ${PER_TARGET}
          for update skip locked) d
        where case when o.target like 'Bot/%' then $1::int else $2::int end > 0
          and o.target not in (select target from busy group by target having sum(n) >= ${PER_TARGET})
          and not exists (select 1 from subscription_state s where s.project = o.project
            and s.subscription = o.subscription and s.paused_until > statement_timestamp())),
      placed as (
        select due.*, row_number() over (partition by target order by again, turn, due)
          + coalesce((select sum(n) from busy where busy.target = due.target), 0) as place
        from due where turn <= ${PER_PROJECT}),
      chosen as (
        select id, row_number() over (partition by target like 'Bot/%' order by turn, due) as rank,
          case when target like 'Bot/%' then $1::int else $2::int end as room
        from placed where place <= ${PER_TARGET}),
      taken as (
        update delivery d set state = 'active',
          attempts = d.attempts + (d.state = 'waiting')::int,
          faults = d.faults + (d.state = 'active')::int,
          ${leaseRow(DELIVERIES, 'd')}
        from chosen c where d.id = c.id and c.rank <= c.room
        returning d.*,
          case when d.type = any($3::smallint[]) then ${SYSTEM_PROJECT_NUMBER} else d.project end as filed)
      select d.id::text, d.project, d.subscription::text, d.type, d.resource::text, d.ver, d.op, d.origin,
        d.target, d.attempts as attempt, d.faults, d.takes as token, d.added, d.turn_key, d.turn_most, d.replaced, d.event::text,
        coalesce(d.since, d.added) as since, d.filed, a.ver as terms${columns}
      from taken d
      left join active_subscription a on a.project = d.project and a.id = d.subscription ${versions}`

const VERSION = ', v.ver as vver, v.lu, v.content, v.meta_at, v.meta_ext'
const VERSIONS = `
      left join version v on v.project = d.filed and v.type = d.type and v.id = d.resource
        and v.ver = d.ver - (d.op = 'd')::int`

/** Leases due deliveries in a transaction that holds `TAKE_LOCKS`. One statement. */
export async function leaseDeliveries(
  connection: Connection,
  room: WorkerCapacity,
): Promise<readonly Delivery[]> {
  const values = [room.bots, room.hooks, REGISTRY]
  const rows = await connection.query<TakenRow>({
    name: 'delivery-take',
    text: takeSql(VERSION, VERSIONS),
    values,
    inSteps: async ({ query }) => {
      const taken = await query<TakenRow>({ text: takeSql('', ''), values })
      const versions = await query<{ n: number }>({
        text: `select x.n::int${VERSION}
          from unnest($1::int[], $2::smallint[], $3::uuid[], $4::int[]) with ordinality
            as x(project, type, id, ver, n)
          join version v on ${dialect.projectOfList('v.project', 4)} and v.type = x.type and v.id = x.id and v.ver = x.ver`,
        perProject: taken.map(({ filed }) => filed),
        values: [
          arrayLiteral(taken.map(({ filed }) => filed)),
          arrayLiteral(taken.map(({ type }) => type)),
          arrayLiteral(taken.map(({ resource }) => resource)),
          arrayLiteral(taken.map(({ ver, op }) => (op === 'd' ? ver - 1 : ver))),
        ],
      })
      const nothing = { lu: null, content: null }
      return taken.map((row, i) => ({
        ...row,
        ...(versions.find(({ n }) => n === i + 1) ?? nothing),
      }))
    },
  })
  return rows.map(toDelivery)
}

function toDelivery(row: TakenRow): Delivery {
  const {
    op,
    origin,
    terms,
    turn_key,
    turn_most,
    filed,
    vver,
    lu,
    content,
    meta_at,
    meta_ext,
    event,
    ...own
  } = row
  const { type, resource } = own
  const kind = DELIVERY_KINDS[op]
  const isNotice = kind === 'handshake' || kind === 'heartbeat'
  return {
    ...own,
    terms: terms ?? undefined,
    turn: turn_key === null ? undefined : { key: turn_key, most: turn_most ?? 1 },
    change: isNotice ? 'update' : kind,
    notice: isNotice ? kind : undefined,
    event: event === null ? undefined : Number(event),
    // Written by the store.
    cause: JSON.parse(origin) as Partial<Cause>,
    version:
      lu === null || content === null
        ? undefined
        : { project: filed, type, id: resource, ver: vver, lu, content, meta_at, meta_ext },
  }
}

/**
 * Workers take pending deliveries by turns of Projects. The first attempt for a version waits for that of
 * every earlier version of its resource. Deliveries behind a receiver that is busy, or that pauses, are not
 * looked at: however many they are, they do not slow down the others.
 */
import { REGISTRY_TYPES } from '../access/policy.ts'
import { type Cause, SYSTEM_PROJECT_NUMBER } from '../access/principal.ts'
import { typeNumber } from '../fhir/definitions.ts'
import type { Connection } from '../platform/postgres/statement.ts'
import { type Delivery, LEASE_MS, type Room } from './deliveries.ts'

const PER_PROJECT = 20
const PER_TARGET = 10
/** Takes of all workers come one after the other: what is under way is counted before more is taken. */
const LOCK = 6_221_483_007_210_018n

export const TAKE_LOCKS = [LOCK]

const CHANGES = { c: 'create', u: 'update', d: 'delete' } as const
const REGISTRY = `{${[...REGISTRY_TYPES].map(typeNumber).join(',')}}`

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
  | 'added'
>

interface TakenRow extends OwnColumns {
  readonly op: keyof typeof CHANGES
  readonly origin: string
  readonly terms: number | null
  readonly filed: number
  readonly vver: number
  readonly lu: Date | null
  readonly content: string | null
  readonly meta_at: number
  readonly meta_ext: string
}

/** $1: room for deliveries to bots, $2: for those to addresses, $3: types of the registry. */
const TAKE_SQL = `with recursive
      owed as (
        (select project, target, subscription from delivery where state <> 'failed'
          order by project, target, subscription limit 1)
        union all
        select n.* from owed o cross join lateral (
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
        from owed o cross join lateral (
          select x.id, x.project, x.target, x.attempts > 0 as again, x.due from delivery x
          where x.project = o.project and x.target = o.target and x.subscription = o.subscription
            and x.state <> 'failed' and x.due <= statement_timestamp()
            and (x.attempts > 0 or not exists (select from delivery y
              where y.project = x.project and y.subscription = x.subscription and y.type = x.type
                and y.resource = x.resource and y.ver < x.ver and y.state <> 'failed'
                and (y.attempts = 0 or y.state = 'active')))
          order by x.attempts > 0, x.due
          limit ${PER_TARGET}
          for update skip locked) d
        where case when o.target like 'Bot/%' then $1::int else $2::int end > 0
          and o.target not in (select target from busy group by target having sum(n) >= ${PER_TARGET})
          and not exists (select from subscription_state s where s.project = o.project
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
          due = clock_timestamp() + interval '${LEASE_MS} ms'
        from chosen c where d.id = c.id and c.rank <= c.room
        returning d.*,
          case when d.type = any($3::smallint[]) then ${SYSTEM_PROJECT_NUMBER} else d.project end as filed)
      select d.id::text, d.project, d.subscription::text, d.type, d.resource::text, d.ver, d.op, d.origin,
        d.target, d.attempts as attempt, d.faults, d.added, d.filed, a.ver as terms,
        v.ver as vver, v.lu, v.content, v.meta_at, v.meta_ext
      from taken d
      left join active_subscription a on a.project = d.project and a.id = d.subscription
      left join version v on v.project = d.filed and v.type = d.type and v.id = d.resource
        and v.ver = d.ver - (d.op = 'd')::int`

/** Takes deliveries that are due, in a transaction that holds `TAKE_LOCKS`. One statement. */
export async function takeDeliveries(
  connection: Connection,
  room: Room,
): Promise<readonly Delivery[]> {
  const rows = await connection.query<TakenRow>({
    name: 'delivery-take',
    text: TAKE_SQL,
    values: [room.bots, room.hooks, REGISTRY],
  })
  return rows.map(toDelivery)
}

function toDelivery(row: TakenRow): Delivery {
  const { op, origin, terms, filed, vver, lu, content, meta_at, meta_ext, ...own } = row
  const { type, resource } = own
  return {
    ...own,
    terms: terms ?? undefined,
    change: CHANGES[op],
    // Written by the store.
    cause: JSON.parse(origin) as Partial<Cause>,
    version:
      lu === null || content === null
        ? undefined
        : { project: filed, type, id: resource, ver: vver, lu, content, meta_at, meta_ext },
  }
}

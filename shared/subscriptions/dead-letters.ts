/**
 * Dead letters of a Project: deliveries (rows of `delivery` in state `failed`) and runs (`dead_run`) whose attempts have
 * ended. Replays are spread over time by the rate.
 */
import { typeNumber } from '../fhir/definitions.ts'
import type { Connection } from '../postgres/statement.ts'

export const DEAD_KINDS = ['delivery', 'schedule', 'run'] as const
type DeadKind = (typeof DEAD_KINDS)[number]

interface DeadProject {
  readonly number: number
  readonly id: string
}

export interface DeadFilter {
  readonly id: string | undefined
  readonly kind: DeadKind | undefined
  /** `Bot/<id>`, or the host of a web hook. */
  readonly target: string | undefined
  /** Part of the error, in any case. */
  readonly error: string | undefined
  readonly since: Date | undefined
  readonly until: Date | undefined
}

export interface DeadCursor {
  readonly failed: Date
  readonly id: string
}

export interface DeadLetter {
  readonly id: string
  readonly kind: DeadKind
  readonly target: string
  readonly attempts: number
  readonly error: string | null
  readonly added: Date
  readonly failed: Date
  /** When it is replayed; null unless a replay waits. */
  readonly due: Date | null
  /** FHIR ids and version of a delivery. */
  readonly subscription: string | null
  readonly type: number | null
  readonly resource: string | null
  readonly version: number | null
}

/** Characters of an error by which letters are grouped. */
const GROUPED_ERROR = 200

const KIND_OF_RUN = "case when x.job is null then 'schedule' else 'run' end"

const FILTER = (failed: string, target: string, kind: string) => `
  ($2::uuid is null or x.id = $2) and ($3::text is null or ${kind} = $3)
  and ($4::text is null or ${target} = $4)
  and ($5::text is null or position(lower($5) in lower(x.error)) > 0)
  and ($6::timestamptz is null or ${failed} >= $6) and ($7::timestamptz is null or ${failed} < $7)`

const OF_RUN = FILTER('x.failed', "'Bot/' || x.bot", KIND_OF_RUN)
const OF_DELIVERY = `x.state = 'failed' and ${FILTER('x.due', 'x.target', "'delivery'")}`

function filterValues({ id, kind, target, error, since, until }: DeadFilter): readonly unknown[] {
  return [id ?? null, kind ?? null, target ?? null, error ?? null, since ?? null, until ?? null]
}

/** Cursors have milliseconds. */
const MS = (time: string) => `date_trunc('milliseconds', ${time})`

/** Every stored version begins like this; a deletion row has no content. */
const fhirId = (version: string, row: string) =>
  `coalesce(substring(${version}.content from '^\\{"resourceType":"\\w+","id":"([A-Za-z0-9.-]{1,64})"'), ${row}::text)`

/** Latest first. */
export async function listDeadLetters(
  connection: Connection,
  project: DeadProject,
  filter: DeadFilter,
  { after, count }: { readonly after: DeadCursor | undefined; readonly count: number },
): Promise<readonly DeadLetter[]> {
  const values = [...filterValues(filter), after?.failed ?? null, after?.id ?? null, count]
  const [runs, deliveries] = await Promise.all([
    connection.query<DeadLetter>({
      name: 'dead-runs',
      text: `select x.id, ${KIND_OF_RUN} as kind, 'Bot/' || x.bot as target, x.attempts, x.error, x.added, x.failed,
          x.due, null as subscription, null as type, null as resource, null as version
        from dead_run x where x.project = $1 and ${OF_RUN}
          and ($8::timestamptz is null or (${MS('x.failed')}, x.id) < ($8, $9::uuid))
        order by ${MS('x.failed')} desc, x.id desc limit $10`,
      values: [project.id, ...values],
    }),
    connection.query<DeadLetter>({
      name: 'dead-deliveries',
      text: `select x.id, 'delivery' as kind, x.target, x.attempts, x.error, x.added, x.due as failed, null as due,
          ${fhirId('s', 'x.subscription')} as subscription, x.type, ${fhirId('v', 'x.resource')} as resource,
          x.ver as version
        from delivery x
        left join version v on v.project = $1 and v.type = x.type and v.id = x.resource and v.ver = x.ver
        left join lateral (select content from version s where s.project = $1 and s.id = x.subscription
          and s.type = ${typeNumber('Subscription')} and s.content is not null order by s.ver desc limit 1) s on true
        where x.project = $1 and ${OF_DELIVERY}
          and ($8::timestamptz is null or (${MS('x.due')}, x.id) < ($8, $9::uuid))
        order by ${MS('x.due')} desc, x.id desc limit $10`,
      values: [project.number, ...values],
    }),
  ])
  return [...runs, ...deliveries]
    .sort((a, b) => b.failed.getTime() - a.failed.getTime() || (a.id < b.id ? 1 : -1))
    .slice(0, count)
}

interface DeadGroup {
  readonly kind: DeadKind
  readonly target: string
  /** The beginning of the error that all have. */
  readonly error: string | null
  readonly count: number
  readonly last: Date
}

const GROUPED = `left(x.error, ${GROUPED_ERROR}) as error, count(*)::int as count`

/** Groups dead letters by kind, target and error; the largest groups first. */
export async function groupDeadLetters(
  connection: Connection,
  project: DeadProject,
  filter: DeadFilter,
  most: number,
): Promise<readonly DeadGroup[]> {
  const values = [...filterValues(filter), most]
  const [runs, deliveries] = await Promise.all([
    connection.query<DeadGroup>({
      name: 'dead-run-groups',
      text: `select ${KIND_OF_RUN} as kind, 'Bot/' || x.bot as target, ${GROUPED}, max(x.failed) as last
        from dead_run x where x.project = $1 and ${OF_RUN}
        group by 1, 2, 3 order by count desc, last desc limit $8`,
      values: [project.id, ...values],
    }),
    connection.query<DeadGroup>({
      name: 'dead-delivery-groups',
      text: `select 'delivery' as kind, x.target, ${GROUPED}, max(x.due) as last
        from delivery x where x.project = $1 and ${OF_DELIVERY}
        group by 1, 2, 3 order by count desc, last desc limit $8`,
      values: [project.number, ...values],
    }),
  ])
  return [...runs, ...deliveries]
    .sort((a, b) => b.count - a.count || b.last.getTime() - a.last.getTime())
    .slice(0, most)
}

/** Makes dead letters due, `rate` a second, the oldest first; returns their count. A waiting replay is left alone. */
export async function replayDeadLetters(
  connection: Connection,
  project: DeadProject,
  filter: DeadFilter,
  rate: number,
): Promise<number> {
  const values = filterValues(filter)
  const runs = await connection.query({
    name: 'dead-runs-replay',
    text: `with c as (select x.id, row_number() over (order by x.failed, x.id) - 1 as n from dead_run x
        where x.project = $1 and x.due is null and ${OF_RUN})
      update dead_run d set due = clock_timestamp() + c.n / $8::float8 * interval '1 s' from c
      where d.project = $1 and d.id = c.id and d.due is null returning 1`,
    values: [project.id, ...values, rate],
  })
  const deliveries = await connection.query({
    name: 'dead-deliveries-replay',
    text: `with c as (select x.id, row_number() over (order by x.due, x.id) - 1 + $9::int as n from delivery x
        where x.project = $1 and ${OF_DELIVERY})
      update delivery d set state = 'waiting', attempts = 0, faults = 0, since = clock_timestamp(),
        due = clock_timestamp() + c.n / $8::float8 * interval '1 s' from c
      where d.project = $1 and d.id = c.id and d.state = 'failed' returning 1`,
    values: [project.number, ...values, rate, runs.length],
  })
  return runs.length + deliveries.length
}

/** Deletes dead letters, also those whose replay waits; returns their count. */
export async function discardDeadLetters(
  connection: Connection,
  project: DeadProject,
  filter: DeadFilter,
): Promise<number> {
  const values = filterValues(filter)
  const runs = await connection.query({
    name: 'dead-runs-discard',
    text: `delete from dead_run x where x.project = $1 and ${OF_RUN} returning 1`,
    values: [project.id, ...values],
  })
  const deliveries = await connection.query({
    name: 'dead-deliveries-discard',
    text: `delete from delivery x where x.project = $1 and ${OF_DELIVERY} returning 1`,
    values: [project.number, ...values],
  })
  return runs.length + deliveries.length
}

type DeadCounts = Readonly<Record<DeadKind, number>>

export const NO_DEAD: DeadCounts = { delivery: 0, schedule: 0, run: 0 }

/** Counts the dead letters of all Projects without a waiting replay. */
export async function countDeadLetters(connection: Connection): Promise<DeadCounts> {
  const [row] = await connection.query<DeadCounts>({
    name: 'dead-letters-count',
    text: `select (select count(*)::int from delivery where state = 'failed') as delivery,
      count(*) filter (where job is null)::int as schedule, count(job)::int as run
      from dead_run where due is null`,
  })
  return row ?? NO_DEAD
}

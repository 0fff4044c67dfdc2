/** Accepted asynchronous requests: a row of `job` from acceptance until the end. */
import { leaseNext, leaseRow } from '../../postgres/leases.ts'
import type { Connection } from '../../postgres/statement.ts'
import { JOBS, type LeasedJob } from '../rows/upkeep-jobs.ts'

const KIND = 'request'

/** Holds no token. */
export interface StoredRequest {
  readonly projectId: string
  readonly membershipId: string
  readonly scope: string
  readonly patient: string | undefined
  readonly profile: string | undefined
  readonly profileDisplay: string | undefined
  readonly clientId: string | undefined
  readonly method: string
  readonly path: string
  readonly query: string
  readonly headers: Readonly<Record<string, string>>
  readonly body: string
  readonly requestId: string
  readonly traceId: string
}

interface NewRequest {
  readonly id: string
  readonly project: number
  readonly request: StoredRequest
  readonly most: number
}

/** False when the Project already has `most`. */
export async function addRequest(
  database: Connection,
  { id, project, request, most }: NewRequest,
): Promise<boolean> {
  const rows = await database.query({
    name: 'request-add',
    text: `insert into job (id, project, kind, state, input)
      select $1, $2, '${KIND}', 'waiting', $3::jsonb
      where (select count(*) from job where project = $2 and kind = '${KIND}') < $4
      returning id`,
    values: [id, project, JSON.stringify(request), most],
  })
  return rows.length > 0
}

export async function isAcceptedRequest(database: Connection, id: string): Promise<boolean> {
  const rows = await database.query({
    name: 'request-is',
    text: `select 1 from job where id = $1 and kind = '${KIND}'`,
    values: [id],
  })
  return rows.length > 0
}

export interface LeasedRequest extends LeasedJob {
  readonly request: StoredRequest
}

/** Undefined when another worker has the request, or it has ended. */
export async function leaseRequest(
  database: Connection,
  id: string,
): Promise<LeasedRequest | undefined> {
  const [row] = await database.query<LeasedRequest>({
    name: 'request-lease',
    text: `update job x set ${leaseRow(JOBS, 'x')}, state = 'active', started = clock_timestamp(),
        touched = clock_timestamp()
      where id = $1 and kind = '${KIND}' and state = 'waiting'
      returning id, takes as token, input as request`,
    values: [id],
  })
  return row
}

export async function leaseLostRequest(database: Connection): Promise<LeasedRequest | undefined> {
  return await leaseNext<LeasedRequest>(database, JOBS, {
    name: 'request-lease-lost',
    // Workers of the previous release write no lease, but touch their job every 10 s.
    where: `x.kind = '${KIND}' and x.state = 'active'
      and (x.held is not null or x.touched < clock_timestamp() - interval '45 s')`,
    orderBy: 'x.touched',
    set: 'touched = clock_timestamp()',
    returning: 'x.id, x.input as request',
  })
}

export async function waitingRequests(
  database: Connection,
  waitingMs: number,
  count: number,
): Promise<readonly string[]> {
  const rows = await database.query<{ id: string }>({
    name: 'request-waiting',
    text: `select id from job where kind = '${KIND}' and state = 'waiting'
        and touched < clock_timestamp() - $1::float8 * interval '1 ms'
      order by touched limit $2`,
    values: [waitingMs, count],
  })
  return rows.map(({ id }) => id)
}

/** Requests on record: accepted asynchronous ones (rows of `job`), and replies kept by Idempotency-Key. */

import { leaseEnd, leaseNext } from '../../postgres/leases.ts'
import { type Connection, hasRows } from '../../postgres/statement.ts'
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
  /** Id of the Project in the called address. */
  readonly projectScope?: string
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

/**
 * Adds a request that is leased to its web process until `offerRequest`: no worker takes it before its AsyncJob is
 * stored. False when the Project already has `most`.
 */
export async function addRequest(
  database: Connection,
  { id, project, request, most }: NewRequest,
): Promise<boolean> {
  return await hasRows(database, {
    name: 'request-add',
    text: `insert into job (id, project, kind, state, input, held)
      select $1, $2, '${KIND}', 'waiting', $3::jsonb, ${leaseEnd(JOBS)}
      where (select count(*) from job where project = $2 and kind = '${KIND}') < $4
      returning id`,
    values: [id, project, JSON.stringify(request), most],
  })
}

/** Ends the lease of the web process. False if it has expired and a worker has taken the request. */
export async function offerRequest(database: Connection, id: string): Promise<boolean> {
  return await hasRows(database, {
    name: 'request-offer',
    text: `update job set held = null where id = $1 and kind = '${KIND}' and state = 'waiting'
      returning 1`,
    values: [id],
  })
}

export async function isAcceptedRequest(database: Connection, id: string): Promise<boolean> {
  return await hasRows(database, {
    name: 'request-is',
    text: `select 1 from job where id = $1 and kind = '${KIND}'`,
    values: [id],
  })
}

export interface LeasedRequest extends LeasedJob {
  readonly request: StoredRequest
}

/** Leases the oldest waiting request of the Project with the fewest running ones. */
export async function leaseRequest(database: Connection): Promise<LeasedRequest | undefined> {
  return await leaseNext<LeasedRequest>(database, JOBS, {
    name: 'request-lease-next',
    where: `x.kind = '${KIND}' and x.state = 'waiting'`,
    orderBy: `(select count(*) from job o where o.project = x.project and o.kind = '${KIND}'
      and o.state = 'active' and o.held > clock_timestamp()), x.touched`,
    set: `state = 'active', started = clock_timestamp(), touched = clock_timestamp()`,
    returning: 'x.id, x.input as request',
  })
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

interface RequestDepth {
  readonly waiting: number
  readonly active: number
  /** How long the oldest has been waiting; null without any. */
  readonly oldestMs: number | null
}

export async function requestDepth(database: Connection): Promise<RequestDepth | undefined> {
  const [depth] = await database.query<RequestDepth>({
    name: 'request-depth',
    text: `select count(*) filter (where state = 'waiting')::int as waiting,
        count(*) filter (where state = 'active')::int as active,
        (extract(epoch from clock_timestamp() - min(touched) filter (where state = 'waiting'))
          * 1000)::float8 as "oldestMs"
      from job where kind = '${KIND}'`,
  })
  return depth
}

const KEPT = '24 hours'
/** A request without a response by now has died with its process. */
const LEASE = '5 minutes'

export interface StoredReply {
  readonly status: number
  readonly headers: Readonly<Record<string, string>>
  readonly body: Buffer | undefined
  /** Digest of the caller's read rights; null for responses of earlier releases. */
  readonly rights: string | null
}

export interface IdempotencyKey {
  readonly id: Buffer
  readonly body: Buffer
}

export type Found =
  | { readonly kind: 'first' | 'running' | 'interrupted' | 'other-body' }
  | { readonly kind: 'answered'; readonly reply: StoredReply }

/** Only the first caller gets the key. */
export async function claimRequest(
  database: Connection,
  { id, body }: IdempotencyKey,
): Promise<Found> {
  const claimed = await database.query({
    name: 'idempotent-claim',
    text: `insert into idempotent_request as r (id, body) values ($1, $2)
      on conflict (id) do update
      set body = excluded.body, added = clock_timestamp(), status = null, headers = null, reply = null,
        rights = null
      where r.added < clock_timestamp() - interval '${KEPT}'
      returning 1 as claimed`,
    values: [id, body],
  })
  if (claimed.length > 0) return { kind: 'first' }
  // If it was released between both statements, the next repeat is the first.
  return (await readRequest(database, { id, body })) ?? { kind: 'running' }
}

/** Locks a key until the transaction ends, also by a crash. One round trip: the row is read after the lock. */
export async function holdRequest(connection: Connection, once: IdempotencyKey): Promise<Found> {
  const [[lock], found] = await Promise.all([
    connection.query<{ held: boolean }>({
      name: 'idempotent-hold',
      text: 'select pg_try_advisory_xact_lock($1) as held',
      values: [once.id.readBigInt64BE()],
    }),
    readRequest(connection, once),
  ])
  if (found !== undefined) return found
  return { kind: lock?.held === true ? 'first' : 'running' }
}

async function readRequest(
  connection: Connection,
  { id, body }: IdempotencyKey,
): Promise<Found | undefined> {
  const [row] = await connection.query<{
    body: Buffer
    status: number | null
    headers: Record<string, string> | null
    reply: Buffer | null
    rights: string | null
    runs: boolean
  }>({
    name: 'idempotent-read',
    text: `select body, status, headers, reply, rights, added > clock_timestamp() - interval '${LEASE}' as runs
      from idempotent_request where id = $1 and added > clock_timestamp() - interval '${KEPT}'`,
    values: [id],
  })
  if (row === undefined) return undefined
  if (!row.body.equals(body)) return { kind: 'other-body' }
  const { status, headers, reply, rights, runs } = row
  if (status === null) return { kind: runs ? 'running' : 'interrupted' }
  return {
    kind: 'answered',
    reply: { status, headers: headers ?? {}, body: reply ?? undefined, rights },
  }
}

export async function keepReply(
  connection: Connection,
  { id, body }: IdempotencyKey,
  { status, headers, body: reply, rights }: StoredReply,
): Promise<void> {
  await connection.query({
    name: 'idempotent-keep',
    text: `insert into idempotent_request as r (id, body, status, headers, reply, rights)
      values ($1, $2, $3, $4, $5, $6)
      on conflict (id) do update set body = excluded.body, added = clock_timestamp(),
        status = excluded.status, headers = excluded.headers, reply = excluded.reply, rights = excluded.rights
      where r.status is null or r.added < clock_timestamp() - interval '${KEPT}'`,
    values: [id, body, status, JSON.stringify(headers), reply ?? null, rights],
  })
}

export async function forgetRequest(database: Connection, { id }: IdempotencyKey): Promise<void> {
  await database.query({
    name: 'idempotent-forget',
    text: 'delete from idempotent_request where id = $1 and status is null',
    values: [id],
  })
}

export async function removeOldRequests(database: Connection): Promise<void> {
  await database.query({
    name: 'idempotent-remove-old',
    text: `delete from idempotent_request where id in (
      select id from idempotent_request
      where added < clock_timestamp() - interval '${KEPT}' limit 1000)`,
  })
}

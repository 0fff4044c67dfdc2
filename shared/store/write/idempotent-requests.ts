/** Stored responses for Idempotency-Keys, committed with the transaction or after a claim, which never runs twice. */
import type { Connection } from '../../postgres/statement.ts'

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

/** Locks a key until the transaction ends, also by a crash. One round trip: the row is read behind the lock. */
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
    values: [],
  })
}

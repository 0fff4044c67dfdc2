/** Answers to requests with an Idempotency-Key, so that a repeat is answered the same. */
import type { Connection } from '../../platform/postgres/statement.ts'

const KEPT = '24 hours'
/** A request that has not answered by now has died with its process. */
const LEASE = '5 minutes'

export interface KeptReply {
  readonly status: number
  readonly headers: Readonly<Record<string, string>>
  readonly body: Buffer | undefined
}

export type Found =
  | { readonly kind: 'first' | 'running' | 'other-body' }
  | { readonly kind: 'answered'; readonly reply: KeptReply }

/** Claims an id for a body, both as digests; only the first one gets it. */
export async function claimRequest(database: Connection, id: Buffer, body: Buffer): Promise<Found> {
  const claimed = await database.query({
    name: 'idempotent-claim',
    text: `insert into idempotent_request as r (id, body) values ($1, $2)
      on conflict (id) do update
      set body = excluded.body, added = clock_timestamp(), status = null, headers = null, reply = null
      where r.added < clock_timestamp()
        - case when r.status is null then interval '${LEASE}' else interval '${KEPT}' end
      returning 1 as claimed`,
    values: [id, body],
  })
  if (claimed.length > 0) return { kind: 'first' }
  const [row] = await database.query<{
    body: Buffer
    status: number | null
    headers: Record<string, string> | null
    reply: Buffer | null
  }>({
    name: 'idempotent-read',
    text: 'select body, status, headers, reply from idempotent_request where id = $1',
    values: [id],
  })
  // It was given up between the two statements: the repeat after this one will be the first.
  if (row === undefined) return { kind: 'running' }
  if (!row.body.equals(body)) return { kind: 'other-body' }
  if (row.status === null) return { kind: 'running' }
  const { status, headers, reply } = row
  return {
    kind: 'answered',
    reply: { status, headers: headers ?? {}, body: reply ?? undefined },
  }
}

export async function keepReply(
  database: Connection,
  id: Buffer,
  { status, headers, body }: KeptReply,
): Promise<void> {
  await database.query({
    name: 'idempotent-keep',
    text: 'update idempotent_request set status = $2, headers = $3, reply = $4 where id = $1',
    values: [id, status, JSON.stringify(headers), body ?? null],
  })
}

/** Gives an id up, so that a repeat is tried anew. */
export async function forgetRequest(database: Connection, id: Buffer): Promise<void> {
  await database.query({
    name: 'idempotent-forget',
    text: 'delete from idempotent_request where id = $1 and status is null',
    values: [id],
  })
}

/** Forgets what is older than a day. */
export async function removeOldRequests(database: Connection): Promise<void> {
  await database.query({
    name: 'idempotent-remove-old',
    text: `delete from idempotent_request where id in (
      select id from idempotent_request
      where added < clock_timestamp() - interval '${KEPT}' limit 1000)`,
    values: [],
  })
}

/** Requests that were accepted to be answered later: a row of `job` from acceptance until the end. */
import type { Connection } from '../../platform/postgres/statement.ts'

const KIND = 'request'

/** The data to carry a request out in another process. It holds no token. */
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

/** False when the Project has `most` of them already. */
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

/** True until it has ended. */
export async function isAcceptedRequest(database: Connection, id: string): Promise<boolean> {
  const rows = await database.query({
    name: 'request-is',
    text: `select 1 from job where id = $1 and kind = '${KIND}'`,
    values: [id],
  })
  return rows.length > 0
}

/** Undefined when it is not waiting: another worker has it, or it has ended. */
export async function claimRequest(
  database: Connection,
  id: string,
): Promise<StoredRequest | undefined> {
  const [row] = await database.query<{ input: StoredRequest }>({
    name: 'request-claim',
    text: `update job set state = 'active', started = clock_timestamp(), touched = clock_timestamp()
      where id = $1 and kind = '${KIND}' and state = 'waiting' returning input`,
    values: [id],
  })
  return row?.input
}

/** Says that a worker still has it. */
export async function touchRequest(database: Connection, id: string): Promise<void> {
  await database.query({
    name: 'request-touch',
    text: 'update job set touched = clock_timestamp() where id = $1',
    values: [id],
  })
}

export async function removeRequest(database: Connection, id: string): Promise<void> {
  await database.query({
    name: 'request-remove',
    text: 'delete from job where id = $1',
    values: [id],
  })
}

export interface LostRequest {
  readonly id: string
  readonly state: 'waiting' | 'active'
  readonly projectId: string
  readonly profile: string | null
}

/** Lists requests without a sign of life for a while, at most `count`. */
export async function quietRequests(
  database: Connection,
  waitingMs: number,
  activeMs: number,
  count: number,
): Promise<readonly LostRequest[]> {
  return database.query<LostRequest>({
    name: 'request-quiet',
    text: `select id, state, input->>'projectId' as "projectId", input->>'profile' as profile
      from job where kind = '${KIND}' and touched < clock_timestamp()
        - case when state = 'waiting' then $1::float8 else $2::float8 end * interval '1 ms'
      order by touched limit $3`,
    values: [waitingMs, activeMs, count],
  })
}

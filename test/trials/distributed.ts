/**
 * Writers, exports and moves on a database that is distributed by Project; docs/scale.md has the figures.
 *
 * `TEST_ONE_DATABASE=1 TEST_DATABASE_URL=<of a fresh database at Citus> npm test -- test/trials/distributed.ts` has two
 * processes write while exports follow each other by `_since`, and then while the Project gets its own part of the tables,
 * which moves from one server to the other and back. Each of the two takes `TRIAL_SECONDS`. All acknowledged writes must
 * be stored at the end.
 */
import { randomUUID } from 'node:crypto'
import { setTimeout as delay } from 'node:timers/promises'
import { Client as Connection } from 'pg'
import t from 'tap'
import { openBotica } from '../fixtures/botica.ts'
import { type Answer, type Client, createClient } from '../fixtures/client.ts'
import { exportAll } from '../fixtures/exports/exports.ts'

const WRITERS = 8
const MS = Number(process.env.TRIAL_SECONDS ?? '20') * 1000
const AGAIN_MS = 200
const RETRYABLE = new Set([409, 429, 503])

interface Stored {
  readonly resourceType: string
  readonly id: string
  readonly meta: { readonly versionId: string; readonly lastUpdated: string }
}

const botica = await openBotica(t, { worker: true })
const { admin } = botica
const clients = [admin, createClient(await botica.startWeb(), admin.token)]

const acknowledged: Stored[] = []
const failed: string[] = []
let retried = 0

/** Undefined for requests to send again, or never. */
function stored<T>({ status, text, body }: Answer<T>): T | undefined {
  if (status < 300) return body
  if (RETRYABLE.has(status)) retried += 1
  else failed.push(`${status} ${text}`)
  return undefined
}

const say = (text: string) => process.stderr.write(`${text}\n`)
const aBasic = (text: string) => ({ resourceType: 'Basic', code: { text } })

/** One after another: a separate resource, its changes, and transactions of three with a change in them. */
async function write(client: Client, end: AbortSignal): Promise<void> {
  let own: Stored | undefined
  for (let n = 0; !end.aborted; n++) {
    const text = randomUUID()
    if (own === undefined) {
      own = stored(await client.post<Stored>('Basic', aBasic(text)))
      if (own !== undefined) acknowledged.push(own)
    } else if (n % 3 > 0) {
      const body = { ...aBasic(text), id: own.id }
      const done = stored(await client.put<Stored>(`Basic/${own.id}`, body))
      if (done === undefined) await delay(AGAIN_MS)
      else acknowledged.push(done)
    } else {
      const post = { request: { method: 'POST', url: 'Basic' }, resource: aBasic(text) }
      const put = {
        request: { method: 'PUT', url: `Basic/${own.id}` },
        resource: { ...aBasic(text), id: own.id },
      }
      const done = stored(
        await client.post<{ entry: { resource: Stored }[] }>(
          '',
          { resourceType: 'Bundle', type: 'transaction', entry: [post, post, put] },
          { Prefer: 'return=representation' },
        ),
      )
      if (done === undefined) await delay(AGAIN_MS)
      else acknowledged.push(...done.entry.map(({ resource }) => resource))
      // The next ones are about another resource.
      if (n % 30 === 0) own = undefined
    }
  }
}

/** Writers run while `work` does. */
async function besideWriters(work: (end: AbortSignal) => Promise<void>): Promise<void> {
  const controller = new AbortController()
  const writers = Array.from({ length: WRITERS }, (_, n) =>
    write(clients[n % clients.length] ?? admin, controller.signal),
  )
  try {
    await work(AbortSignal.timeout(MS))
  } finally {
    controller.abort()
    await Promise.all(writers)
  }
}

/** The newest version of each resource that a file of the chain has had. */
const exported = new Map<string, number>()

/** Returns the time of the export; reports missing resources to `lost`. */
async function follow(since: string | undefined, lost: string[]): Promise<string> {
  const query = since === undefined ? '' : `&_since=${encodeURIComponent(since)}`
  const { manifest, resources } = await exportAll(admin, `$export?_type=Basic${query}`)
  const { transactionTime } = manifest
  for (const { id, meta } of (resources.get('Basic') ?? []) as readonly Stored[]) {
    exported.set(id, Math.max(Number(meta.versionId), exported.get(id) ?? 0))
    if (Date.parse(meta.lastUpdated) > Date.parse(transactionTime))
      lost.push(`${id} is of ${meta.lastUpdated}, the export of ${transactionTime}`)
  }
  const until = Date.parse(transactionTime)
  for (const { id, meta } of acknowledged) {
    const isDue = Date.parse(meta.lastUpdated) <= until
    if (isDue && (exported.get(id) ?? 0) < Number(meta.versionId))
      lost.push(`${id}/${meta.versionId} of ${meta.lastUpdated} by ${transactionTime}`)
  }
  return transactionTime
}

t.test('a chain of exports has all that was acknowledged', async (t) => {
  const lost: string[] = []
  let since: string | undefined
  let exports = 0
  await besideWriters(async (end) => {
    do {
      since = await follow(since, lost)
      exports += 1
    } while (!end.aborted)
  })
  const last = Math.max(...acknowledged.map(({ meta }) => Date.parse(meta.lastUpdated)))
  do {
    since = await follow(since, lost)
    exports += 1
  } while (Date.parse(since) < last)
  t.same(lost, [])
  t.same(failed, [])
  say(`${exports} exports, ${acknowledged.length} versions, ${retried} calls sent again`)
})

interface Place {
  readonly shard: string
  readonly host: string
  readonly port: number
}

t.test('a Project is moved to another server while it is written to', async (t) => {
  const connection = new Connection({ connectionString: process.env.DATABASE_URL })
  await connection.connect()
  t.teardown(() => connection.end())
  const queryRows = async <Row extends object>(text: string, ...values: unknown[]) =>
    (await connection.query<Row>(text, values)).rows
  const before = acknowledged.length
  retried = 0
  let moves = 0
  await besideWriters(async (end) => {
    const [own] = await queryRows<{ project: number }>(
      'select max(project) as project from version',
    )
    await queryRows(
      `select isolate_tenant_to_new_shard('version', $1::int, 'CASCADE')`,
      own?.project,
    )
    do {
      const [from] = await queryRows<Place>(
        `select shardid::text as shard, nodename as host, nodeport as port from citus_shards
          where shardid = get_shard_id_for_distribution_column('version', $1::int)`,
        own?.project,
      )
      if (from === undefined) throw new Error('The Project has no place')
      const [to] = await queryRows<Omit<Place, 'shard'>>(
        `select nodename as host, nodeport as port from pg_dist_node
          where shouldhaveshards and (nodename, nodeport) <> ($1, $2::int) limit 1`,
        from.host,
        from.port,
      )
      if (to === undefined) throw new Error('There is no other server')
      const places = [from.shard, from.host, from.port, to.host, to.port]
      await queryRows(
        'select citus_move_shard_placement($1::bigint, $2, $3::int, $4, $5::int)',
        ...places,
      )
      moves += 1
    } while (!end.aborted)
  })
  t.same(failed, [])
  const newest = new Map<string, number>()
  for (const { id, meta } of acknowledged)
    newest.set(id, Math.max(Number(meta.versionId), newest.get(id) ?? 0))
  const lost: string[] = []
  for (const [id, version] of newest) {
    const { status, body } = await admin.get<Stored>(`Basic/${id}`)
    if (status !== 200 || Number(body.meta.versionId) < version) lost.push(`${id}/${version}`)
  }
  t.same(lost, [])
  const count = acknowledged.length - before
  say(`${moves} moves, ${count} versions, ${retried} calls sent again`)
})

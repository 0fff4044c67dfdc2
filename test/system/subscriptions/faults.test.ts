/** Imports the database, to watch deliveries while web is away. */
import t, { type Test } from 'tap'
import { createLogger } from '../../../shared/core/log.ts'
import { openDatabase } from '../../../shared/postgres/database.ts'
import { until } from '../../fixtures/botica.ts'
import type { Untyped } from '../../fixtures/bots/bots.ts'
import { aSubscription, type Received, startReceiver } from '../../fixtures/http/receiver.ts'
import { openCluster, type Running } from '../../fixtures/services/cluster.ts'
import { bound, openSocket, socketUrl } from '../../fixtures/sockets.ts'

const PATIENCE_MS = 90_000
/** Concurrent deliveries per host. */
const AT_ONCE = 10
const RESOURCES = 12
const VERSIONS = 3
const SECRETS = ['header-of-the-channel', 'key-of-the-signature']

t.setTimeout(240_000)
const receiver = await startReceiver(t)
const cluster = await openCluster(t)
const { postgres, redis, web } = cluster
const { admin } = await cluster.createTenant('Deliveries')
const processes: Running[] = [web]
const SECRET_URL = 'https://www.medplum.com/fhir/StructureDefinition'

async function subscribe(type: string): Promise<{ readonly id: string; readonly path: string }> {
  const path = `/${type}`
  const more = {
    channel: { header: [`Authorization: Bearer ${SECRETS[0]}`] },
    extension: [{ url: `${SECRET_URL}/subscription-secret`, valueString: SECRETS[1] }],
  }
  const { id = '' } = await admin.create(aSubscription(type, receiver.url + path, more))
  return { id, path }
}

async function startWorker(): Promise<Running> {
  const worker = await cluster.startWorker()
  processes.push(worker)
  return worker
}

/** Blocks the receiver until `open`, with the maximum number of deliveries in progress. */
async function heldAmid(type: string, path: string): Promise<{ open(): void }> {
  const gate = Promise.withResolvers<number>()
  receiver.answer(path, () => gate.promise)
  const transaction = (request: (i: number) => object, resource: (i: number) => object) =>
    admin.post('', {
      resourceType: 'Bundle',
      type: 'transaction',
      entry: Array.from({ length: RESOURCES }, (_, i) => ({
        request: request(i),
        resource: resource(i),
      })),
    })
  const named = (version: number, id?: string) => ({
    resourceType: type,
    id,
    code: { text: `${version}` },
  })
  const created = await transaction(
    () => ({ method: 'POST', url: type }),
    () => named(1),
  )
  const ids = (created.body as Untyped).entry.map(
    ({ response }: Untyped) => response.location.split('/')[1] as string,
  )
  for (let version = 2; version <= VERSIONS; version++) {
    const changed = await transaction(
      (i) => ({ method: 'PUT', url: `${type}/${ids[i]}` }),
      (i) => named(version, ids[i]),
    )
    t.equal(changed.status, 200)
  }
  await receiver.got(path, AT_ONCE)
  return { open: () => gate.resolve(200) }
}

const readVersion = ({ body }: Received): [id: string, version: number] => {
  const { id, meta } = JSON.parse(body)
  return [id, Number(meta.versionId)]
}

/** Asserts that all versions arrived, in order of first arrival per resource. */
async function assertAllInOrder(t: Test, path: string): Promise<void> {
  const arrived = () => new Set(receiver.on(path).map((one) => one.headers['x-event-id']))
  await until(async () => arrived().size === RESOURCES * VERSIONS, PATIENCE_MS)
  const firsts = new Map<string, number[]>()
  for (const [id, version] of receiver.on(path).map(readVersion)) {
    const seen = firsts.get(id) ?? []
    if (!seen.includes(version)) firsts.set(id, [...seen, version])
  }
  t.equal(firsts.size, RESOURCES)
  for (const versions of firsts.values()) t.same(versions, [1, 2, 3])
}

/** Simulates the passage of half a minute. */
async function leasesEnd(): Promise<void> {
  const database = openDatabase(
    { databaseUrl: postgres.url, databasePool: 1 },
    createLogger('silent', 'script'),
  )
  const text = `update delivery set due = clock_timestamp() where state = 'active'`
  await database.query({ text, values: [] }).finally(() => database.close())
}

t.test('redelivers events of a killed worker', async (t) => {
  const { path } = await subscribe('Basic')
  const worker = await startWorker()
  const { open } = await heldAmid('Basic', path)

  worker.child.kill('SIGKILL')
  await worker.ended
  open()
  await leasesEnd()
  await startWorker()

  await assertAllInOrder(t, path)
  const twice = Map.groupBy(receiver.on(path), (one) => one.headers['x-event-id'] ?? '')
  t.equal([...twice.values()].filter((all) => all.length > 1).length, AT_ONCE)
})

t.test('settles deliveries after an outage of PostgreSQL', async (t) => {
  const { path } = await subscribe('Medication')
  const { open } = await heldAmid('Medication', path)

  await postgres.kill()
  open()
  await postgres.start()

  await assertAllInOrder(t, path)
})

t.test('continues deliveries without Redis and with an emptied one', async (t) => {
  const { path } = await subscribe('Substance')
  const { open } = await heldAmid('Substance', path)

  await redis.kill()
  open()
  await assertAllInOrder(t, path)
  await redis.start()
})

t.test('without Redis, a web socket does not hold up other Subscriptions', async (t) => {
  const socket = await openSocket(t, socketUrl(cluster.baseUrl))
  // The service may not have Redis back yet.
  await until(() => bound(admin, socket, 'Location').then(Boolean, () => false), PATIENCE_MS)
  const { path } = await subscribe('Location')
  await redis.kill()
  await admin.create({ resourceType: 'Location' })
  await receiver.got(path, 1)
  await redis.start()
  t.equal(await socket.closed, 1013, 'the socket may have missed the change')
})

t.test('writes no Subscription secret to logs and AuditEvents', async (t) => {
  const { body } = await admin.get<Untyped>('AuditEvent?_count=1000')
  t.ok(body.entry.length > 0)
  const texts = [JSON.stringify(body), ...processes.map(({ said }) => said())]
  for (const secret of SECRETS) {
    for (const text of texts) t.notMatch(text, secret)
  }
})

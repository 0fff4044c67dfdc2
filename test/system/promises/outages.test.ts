/** Reported outages: a full disk, and a Redis whose events missed a web socket. */
import { randomBytes } from 'node:crypto'
import { Redis } from 'ioredis'
import t from 'tap'
import { until } from '../../fixtures/botica.ts'
import { aBot, execute, handler } from '../../fixtures/bots/bots.ts'
import type { Answer } from '../../fixtures/client.ts'
import { openSdk } from '../../fixtures/sdk.ts'
import { openCluster } from '../../fixtures/services/cluster.ts'
import { bound, notificationType, openSocket, socketUrl } from '../../fixtures/sockets.ts'
import { moveToSmallDisk } from '../ledger/small-disk.ts'

t.setTimeout(400_000)
const PATIENCE_MS = 180_000
const TRY_AGAIN_LATER = 1013
const cluster = await openCluster(t)
const tenant = await cluster.createTenant('Outages')
const { admin } = tenant
await cluster.startWorker()
const disk = await moveToSmallDisk(t, cluster.postgres.url, 24)

const aStatement = {
  resourceType: 'DeviceUseStatement',
  status: 'active',
  subject: { reference: 'Patient/1' },
  device: { reference: 'Device/1' },
} as const

const sized = (bytes: number) => ({
  resourceType: 'Basic',
  code: { text: randomBytes(bytes).toString('base64') },
})
const large = () => sized(500_000)
/** Handled by web itself, without its thread for large bodies. */
const small = () => sized(30_000)

t.test('returns 503 for writes while the disk is full, and reports it in health', async (t) => {
  const writer = await aBot(tenant, handler(`return await medplum.createResource(event.input)`))

  const refused: Answer[] = []
  await until(async () => {
    const bodies = [large(), large(), small(), small()]
    const answers = await Promise.all(bodies.map((body) => admin.post('Basic', body)))
    refused.push(...answers.filter(({ status }) => status !== 201))
    return answers.every(({ status }) => status !== 201)
  }, PATIENCE_MS)
  for (const { status, headers, body } of refused) {
    t.equal(status, 503)
    t.ok(headers.has('retry-after'))
    t.match(body, { issue: [{ code: 'transient' }] })
  }
  const health = await admin.get('/healthcheck')
  t.equal(health.status, 503)
  t.match(health.body, { ok: false, postgres: false, redis: true })
  const lines = cluster.web.said().split('PostgreSQL has no room left').length - 1
  t.ok(lines <= 2, `logs ${lines} lines, of web and of its thread`)
  t.notMatch(cluster.web.said(), /"level":50.*"requestId"/, 'logs no rejected request as an error')
  t.equal((await admin.get('Basic?_count=1')).status, 200, 'serves reads')
  const cut = await execute(tenant.admin, writer, large())
  t.ok(cut.status >= 500, `answers ${cut.status} for a bot that cannot write`)
  t.match(cut.body, { issue: [{ code: 'transient' }] })

  await disk.resize(200)
  await until(async () => (await admin.post('Basic', large())).status === 201, PATIENCE_MS)
})

for (const [name, lose] of [
  ['missed something', restartRedis],
  ['been forgotten', emptyRedis],
] as const) {
  t.test(`closes a web socket that may have ${name}, and lets it bind again`, async (t) => {
    const socket = await openSocket(t, socketUrl(cluster.baseUrl))
    await bound(admin, socket, 'Communication')
    const missed = await lose(() =>
      admin.create({ resourceType: 'Communication', status: 'completed' }),
    )
    t.equal(await socket.closed, TRY_AGAIN_LATER)

    const again = await openSocket(t, socketUrl(cluster.baseUrl))
    await until(() => bound(admin, again, 'Communication').then(Boolean, () => false), PATIENCE_MS)
    const since = encodeURIComponent(missed.meta?.lastUpdated ?? '')
    const asked = await admin.get(`Communication?_lastUpdated=ge${since}`)
    t.match(
      asked.body,
      { entry: [{ resource: { id: missed.id } }] },
      'a search finds the missed change',
    )
    const next = await admin.create({ resourceType: 'Communication', status: 'completed' })
    // The missed event may arrive first.
    const isNext = (message: unknown) => JSON.stringify(message).includes(next.id ?? 'none')
    const heard = await again.heard(
      (message) => notificationType(message) === 'event-notification' && isNext(message),
    )
    t.ok(heard)
  })
}

for (const [name, lose] of [
  ['Redis restarts', restartRedis],
  ['Redis is emptied', emptyRedis],
] as const) {
  t.test(`binds the SDK again when ${name}`, async (t) => {
    const medplum = await openSdk({ ...tenant, baseUrl: cluster.baseUrl })
    t.teardown(() => medplum.getSubscriptionManager().closeWebSocket())
    const emitter = medplum.subscribeToCriteria('DeviceUseStatement')
    const heard: string[] = []
    let connects = 0
    emitter.addEventListener('message', ({ payload }) => heard.push(JSON.stringify(payload)))
    emitter.addEventListener('connect', () => {
      connects += 1
    })
    await until(async () => connects === 1, PATIENCE_MS)
    await lose(() => medplum.createResource(aStatement))
    await until(async () => connects === 2, PATIENCE_MS)
    const { id = 'none' } = await medplum.createResource(aStatement)
    await until(async () => heard.some((text) => text.includes(id)), PATIENCE_MS)
  })
}

async function restartRedis<T>(meanwhile: () => Promise<T>): Promise<T> {
  await cluster.redis.kill()
  const done = await meanwhile()
  await cluster.redis.start()
  return done
}

async function emptyRedis<T>(then: () => Promise<T>): Promise<T> {
  const redis = new Redis(cluster.redis.url)
  await redis.flushall()
  redis.disconnect()
  return then()
}

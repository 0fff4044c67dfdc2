/** Imports helpers of the launcher, to start processes on free ports. */
import { isDeepStrictEqual } from 'node:util'
import { Redis } from 'ioredis'
import t, { type Test } from 'tap'
import { freePort } from '../../scripts/service.ts'
import { keys } from '../../shared/queue/jobs.ts'
import { type Tenant, until } from '../fixtures/botica.ts'
import { aBot, execute, handler } from '../fixtures/bots/bots.ts'
import { openLine } from '../fixtures/bots/line.ts'
import { type Answer, createClient, signIn } from '../fixtures/client.ts'
import { aPatient } from '../fixtures/resources.ts'
import { complaints, listChildPids, openCluster, said } from '../fixtures/services/cluster.ts'
import {
  assertAnswered,
  assertQuietLog,
  assertUnavailable,
  assertWrittenOnce,
  basics,
  CODE,
  isResult,
  runMany,
  timed,
} from './promises/fault-runs.ts'

const SESSION_USABLE_MS = 5000
/** A caller whose rejection is lost waits for 25 s. */
const SOON_MS = 20_000
const STOPPED_MS = 60_000

t.setTimeout(400_000)
const cluster = await openCluster(t)
const { web, redis, postgres, baseUrl } = cluster
const nobody = createClient(baseUrl)
const tenant = await cluster.createTenant('Faults')
const { admin } = tenant
const { id, secret } = tenant.adminCredentials
const queue = new Redis(redis.url, { maxRetriesPerRequest: 0 })
queue.on('error', () => undefined)
t.teardown(() => queue.disconnect())
const line = openLine(t, redis.url)

const bot = await aBot(tenant, CODE)

async function assertCountersAtZero(t: Test, { project }: Tenant): Promise<void> {
  // Scores above all timestamps are not runs.
  const flight = () => queue.zcount(keys.flight('bots-sync', project.id), '-inf', 1e14)
  await until(async () => (await flight()) === 0 && (await activeRuns()) === 0, 60_000)
  t.equal(await line.getWaitingCount(), 0)
}

/** Checks that health reports only this store as down; retries a check that is late on a busy machine. */
async function assertAway(away: 'redis' | 'postgres'): Promise<void> {
  const expected = { ok: false, redis: away !== 'redis', postgres: away !== 'postgres' }
  let health = await nobody.get('/healthcheck')
  const isSaid = async () => {
    health = await nobody.get('/healthcheck')
    return isDeepStrictEqual({ ...health.body, ...expected }, health.body)
  }
  await until(isSaid, 60_000).catch(() => undefined)
  t.match(health, { status: 503, body: expected }, health.text)
}

const activeRuns = () => line.getActiveCount()

const unavailable = {
  status: 503,
  body: { resourceType: 'OperationOutcome', issue: [{ code: 'transient' }] },
}

const lost = await execute(admin, bot, { n: 1 }, { Prefer: 'respond-async' })
await queue.flushdb()

let worker = await cluster.startWorker()

t.test('answers every caller when a worker is killed during 200 runs', async (t) => {
  let answered = 0
  const victim = worker
  const all = runMany(tenant, bot, 200, () => {
    answered += 1
    if (answered === 40) victim.child.kill('SIGKILL')
  })
  await victim.ended
  t.ok(answered < 190, `${answered} were answered before the kill`)
  worker = await cluster.startWorker()
  const runs = await all
  assertAnswered(t, runs)
  await assertWrittenOnce(t, tenant, runs)
  await assertCountersAtZero(t, tenant)
  t.equal((await execute(admin, bot, { n: 2 })).status, 200)
})

t.test('answers all callers when one of two workers is killed', async (t) => {
  const second = await cluster.startWorker()
  let answered = 0
  const all = runMany(tenant, bot, 60, () => answered++)
  await until(async () => answered >= 10, 60_000)
  second.child.kill('SIGKILL')
  const runs = await all
  assertAnswered(t, runs)
  await assertWrittenOnce(t, tenant, runs)
  await assertCountersAtZero(t, tenant)
})

t.test('executes an accepted run that Redis lost', async (t) => {
  t.equal(lost.status, 202)
  const status = lost.headers.get('content-location') ?? ''
  await until(async () => (await admin.get(status)).status !== 202, 60_000)
  const { body, text } = await admin.get(status)
  t.match(body, { resourceType: 'AsyncJob', status: 'completed' }, text)
})

t.test('limits a killed executor to the runs of its project', async (t) => {
  const [other, victim] = await Promise.all(['Other', 'Victim'].map(cluster.createTenant))
  if (other === undefined || victim === undefined) throw new Error('There are two')
  const [otherBot, victimBot] = await Promise.all([aBot(other, CODE), aBot(victim, CODE)])
  const before = new Set(listChildPids(worker))
  // The first run takes the spare executor; its replacement serves the next project.
  t.equal((await execute(other.admin, otherBot)).status, 200)
  let next: number | undefined
  await until(async () => {
    next = listChildPids(worker).find((pid) => !before.has(pid))
    return next !== undefined
  }, 60_000)
  t.equal((await execute(victim.admin, victimBot)).status, 200)

  let answered = 0
  const hit = runMany(victim, victimBot, 40, () => answered++)
  const spared = runMany(other, otherBot, 40)
  await until(async () => answered >= 5, 60_000)
  process.kill(next ?? 0, 'SIGKILL')
  const runs = await hit
  assertAnswered(t, runs)
  await assertWrittenOnce(t, victim, runs)
  t.ok((await spared).every(({ n, answer }) => isResult(n, answer)))
  t.equal((await execute(victim.admin, victimBot)).status, 200)
  t.notOk(listChildPids(worker).includes(next ?? 0))
})

t.test('answers everything but runs without Redis, and completes runs in flight', async (t) => {
  const patient = await admin.create(aPatient())
  const seen = [complaints(web).length, complaints(worker).length] as const
  const slow = [0, 1].map((n) => execute(admin, bot, { n, ms: 2000 }))
  await until(async () => (await activeRuns()) === 2, 60_000)
  await redis.kill()

  // Longer than the runs in flight, which end without Redis.
  await assertUnavailable(t, 2500, SOON_MS, () => [
    execute(admin, bot),
    execute(admin, bot, {}, { Prefer: 'respond-async' }),
  ])
  t.equal((await admin.get(`Patient/${patient.id}`)).status, 200)
  t.equal((await admin.post('Patient', aPatient())).status, 201)
  await signIn(baseUrl, id, secret)
  await assertAway('redis')
  t.equal((await nobody.get('/livez')).status, 200)

  await redis.start()
  await until(async () => (await execute(admin, bot)).status === 200, 60_000)
  await until(async () => (await nobody.get('/healthcheck')).status === 200, 60_000)
  t.same(
    (await Promise.all(slow)).map(({ status, text }) => `${status} ${text}`),
    ['200 {"n":0}', '200 {"n":1}'],
  )
  await assertCountersAtZero(t, tenant)
  assertQuietLog(t, web, seen[0])
  assertQuietLog(t, worker, seen[1])
})

t.test('treats a silent Redis as unavailable, and withdraws pending requests', async (t) => {
  const patient = await admin.create(aPatient())
  const written = await basics(tenant)
  redis.silence()
  await assertUnavailable(t, 2500, SOON_MS, () => [execute(admin, bot, { n: 1 })])
  t.equal((await admin.get(`Patient/${patient.id}`)).status, 200)
  await assertAway('redis')
  redis.resume()
  await until(async () => (await execute(admin, bot)).status === 200, 60_000)
  await assertCountersAtZero(t, tenant)
  t.same(await basics(tenant), written, 'no run of a rejected caller has written')
})

t.test('returns 503 without PostgreSQL, and loses no acknowledged write', async (t) => {
  const patient = await admin.create(aPatient())
  const polling = await aBot(
    tenant,
    handler(`for (;;) {
      try {
        await medplum.readResource('Patient', event.input.id)
      } catch (error) {
        return { caught: error.outcome?.issue?.[0]?.code ?? String(error) }
      }
      await new Promise((resolve) => setTimeout(resolve, 100))
    }`),
  )
  // A bot that ran recently is cached and needs no PostgreSQL.
  const unknown = await aBot(tenant, CODE)
  const seen = [complaints(web).length, complaints(worker).length] as const
  const caught = execute(admin, polling, { id: patient.id })
  await until(async () => (await activeRuns()) === 1, 60_000)
  const acknowledged: string[] = []
  const writing = writeUntilRefused(acknowledged)
  await until(async () => acknowledged.length >= 20, 60_000)
  await postgres.kill()
  const refused = await writing
  t.match(refused, unavailable, refused.text)

  // The session is cached for the first responses and not for the last ones.
  await assertUnavailable(t, SESSION_USABLE_MS, SOON_MS, () => [
    admin.get(`Patient/${patient.id}`),
    admin.post('Patient', aPatient()),
    admin.get('Patient?_count=1'),
    execute(admin, unknown),
  ])
  await t.rejects(signIn(baseUrl, id, secret), { message: /answered 503: .*temporarily_unavail/ })
  await assertAway('postgres')
  const run = await caught
  t.match(run, { status: 200, body: { caught: 'transient' } }, run.text)

  await postgres.start()
  await until(async () => (await execute(admin, bot)).status === 200, 60_000)
  await until(async () => (await nobody.get('/healthcheck')).status === 200, 60_000)
  const found = await Promise.all(acknowledged.map((id) => admin.get(`Patient/${id}`)))
  t.ok(found.every(({ status }) => status === 200))
  const audited = () => admin.get(`AuditEvent?entity=Bot/${polling}`)
  await until(async () => (await audited()).text.includes('"execute"'), 60_000)
  await assertCountersAtZero(t, tenant)
  assertQuietLog(t, web, seen[0])
  assertQuietLog(t, worker, seen[1])
})

async function writeUntilRefused(acknowledged: string[]): Promise<Answer> {
  for (;;) {
    const answer = await admin.post('Patient', aPatient())
    if (answer.status !== 201) return answer
    acknowledged.push(String(answer.body.id))
  }
}

t.test('completes running runs on worker shutdown, and leaves queued ones', async (t) => {
  const leaving = worker
  worker = await cluster.startWorker()
  const all = Promise.all(
    Array.from({ length: 40 }, (_, n) => timed(n, execute(admin, bot, { n, ms: 500 }))),
  )
  await until(async () => (await activeRuns()) >= 10, 60_000)
  const stoppedAt = Date.now()
  leaving.child.kill('SIGTERM')
  t.equal(await leaving.ended, 0)
  t.ok(Date.now() - stoppedAt < STOPPED_MS)
  const runs = await all
  t.same(
    runs.filter(({ n, answer }) => !isResult(n, answer)),
    [],
  )
  await assertWrittenOnce(t, tenant, runs)
  await assertCountersAtZero(t, tenant)
})

t.test('completes open requests on web shutdown', async (t) => {
  const port = String(await freePort())
  const leaving = cluster.run('server', { PORT: port })
  await said(leaving, '"listening"')
  const there = createClient(`http://127.0.0.1:${port}/`, admin.token)
  const running = execute(there, bot, { n: 1, ms: 1500 })
  await until(async () => (await activeRuns()) === 1, 60_000)
  leaving.child.kill('SIGTERM')
  await said(leaving, '"stopping"')
  await t.rejects(fetch(`http://127.0.0.1:${port}/livez`), 'new connections are refused')
  const answer = await running
  t.match([answer.status, answer.text], [200, '{"n":1}'])
  t.equal(answer.headers.get('connection'), 'close')
  t.equal(await leaving.ended, 0)
})

t.test('stops in time when Redis no longer answers', async (t) => {
  const port = String(await freePort())
  const leaving = [cluster.run('server', { PORT: port }), await cluster.startWorker()] as const
  await said(leaving[0], '"listening"')
  redis.silence()
  t.teardown(() => redis.resume())
  const stoppedAt = Date.now()
  for (const { child } of leaving) child.kill('SIGTERM')
  t.same(await Promise.all(leaving.map(({ ended }) => ended)), [0, 0])
  t.ok(Date.now() - stoppedAt < STOPPED_MS)
})

t.test('ends a process immediately on a second signal', async (t) => {
  const port = String(await freePort())
  const impatient = cluster.run('server', { PORT: port })
  await said(impatient, '"listening"')
  const there = createClient(`http://127.0.0.1:${port}/`, admin.token)
  const cut = t.rejects(execute(there, bot, { ms: 9000 }))
  await until(async () => (await activeRuns()) === 1, 60_000)
  for (const running of [impatient, worker]) {
    running.child.kill('SIGTERM')
    await said(running, '"stopping"')
    running.child.kill('SIGTERM')
    t.equal(await running.ended, 1)
  }
  await cut
})

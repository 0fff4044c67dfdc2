/** A run has one owner: a frozen worker or lost Redis data does not repeat it. */
import { setTimeout as delay } from 'node:timers/promises'
import { Redis } from 'ioredis'
import t, { type Test } from 'tap'
import { type Tenant, until } from '../../fixtures/botica.ts'
import { aBot, execute, finished, handler } from '../../fixtures/bots/bots.ts'
import { openLine } from '../../fixtures/bots/line.ts'
import { openCluster, type Running } from '../../fixtures/services/cluster.ts'
import { basics } from './fault-runs.ts'

t.setTimeout(400_000)
const PATIENCE_MS = 120_000
const LATER = { Prefer: 'respond-async' }
const WAITING = { Prefer: 'wait=110' }

const cluster = await openCluster(t)
const redis = new Redis(cluster.redis.url, { maxRetriesPerRequest: null })
redis.on('error', () => undefined)
t.teardown(() => redis.disconnect())

/** Writes a Basic with the run id after `ms`, and after the awaited Patient exists, if any. */
const CODE = handler(`
  const wait = (ms) => new Promise((resolve) => setTimeout(resolve, ms))
  await wait(event.input.ms)
  while (event.input.awaited && !(await medplum.searchOne('Patient'))) await wait(200)
  await medplum.createResource({ resourceType: 'Basic', code: { text: event.runId } })
  return event.runId`)

const lines = [
  openLine(t, cluster.redis.url, 'bots-sync'),
  openLine(t, cluster.redis.url, 'bots-async'),
]

async function active(): Promise<number> {
  const counts = await Promise.all(lines.map((line) => line.getActiveCount()))
  return counts.reduce((sum, count) => sum + count, 0)
}

async function start({ admin }: Tenant, id: string, input: object) {
  const sync = [0, 1, 2].map(() => execute(admin, id, input, WAITING))
  const accepted = await Promise.all([0, 1, 2, 3].map(() => execute(admin, id, input, LATER)))
  await until(async () => (await active()) === 7, PATIENCE_MS)
  return { sync, accepted: accepted.map(({ headers }) => headers.get('content-location')) }
}

async function assertOnce({ admin }: Tenant, t: Test, accepted: readonly (string | null)[]) {
  const jobs = await Promise.all(accepted.map((url) => finished(admin, url, PATIENCE_MS)))
  t.same(new Set(jobs.map(({ status }) => status)), new Set(['completed']))
  return jobs.map(({ id }) => id)
}

t.test('rejects writes of a frozen worker for runs that another worker executed', async (t) => {
  const tenant = await cluster.createTenant('Frozen')
  const id = await aBot(tenant, CODE, { fields: { timeout: 300 } })
  const frozen = await cluster.startWorker()
  const { sync, accepted } = await start(tenant, id, { ms: 1000, awaited: true })
  frozen.child.kill('SIGSTOP')
  const other = await cluster.startWorker()
  await tenant.admin.create({ resourceType: 'Patient' })
  const answers = await Promise.all(sync)
  t.same(
    answers.map(({ status }) => status),
    [200, 200, 200],
  )
  const runs = await assertOnce(tenant, t, accepted)
  frozen.child.kill('SIGCONT')
  await says(frozen, 'lost to another worker')
  frozen.child.kill('SIGTERM')
  await frozen.ended
  const written = await basics(tenant)
  t.same(written.toSorted(), [...runs, ...answers.map(({ text }) => text)].toSorted(), 'once each')
  other.child.kill('SIGTERM')
  await other.ended
})

t.test('executes running runs once when Redis is emptied', async (t) => {
  const tenant = await cluster.createTenant('Emptied')
  const id = await aBot(tenant, CODE, { fields: { timeout: 300 } })
  const worker = await cluster.startWorker()
  const second = await cluster.startWorker()
  const { sync, accepted } = await start(tenant, id, { ms: 30_000 })
  await redis.flushall()
  const runs = await assertOnce(tenant, t, accepted)
  const answers = await Promise.all(sync)
  t.same(
    answers.map(({ status }) => status),
    [200, 200, 200],
  )
  const written = await basics(tenant)
  t.same(written.toSorted(), [...runs, ...answers.map(({ text }) => text)].toSorted(), 'once each')
  for (const one of [worker, second]) one.child.kill('SIGTERM')
})

t.test('does not repeat a run that Redis lost after further reconnects', async (t) => {
  const tenant = await cluster.createTenant('Forgotten')
  const id = await aBot(
    tenant,
    handler(`await medplum.createResource({ resourceType: 'Basic', code: { text: event.runId } })
      await new Promise((resolve) => setTimeout(resolve, event.input.ms))`),
    { fields: { timeout: 300 } },
  )
  const worker = await cluster.startWorker()
  const call = execute(tenant.admin, id, { ms: 60_000 }, WAITING)
  await until(async () => (await basics(tenant)).length === 1, PATIENCE_MS)
  worker.child.kill('SIGKILL')
  await worker.ended
  await redis.flushall()
  for (let times = 0; times < 2; times++) {
    await cluster.redis.kill()
    await cluster.redis.start()
    await delay(500)
  }
  const other = await cluster.startWorker()
  t.match(await call, { status: 500, text: /Bot run interrupted/ })
  t.equal((await basics(tenant)).length, 1)
  other.child.kill('SIGTERM')
})

async function says({ said }: Running, text: string): Promise<void> {
  await until(async () => said().includes(text), PATIENCE_MS).catch((cause: unknown) => {
    throw new Error(`Printed ${said()} without "${text}"`, { cause })
  })
}

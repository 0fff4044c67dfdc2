/** Deadlines and schedules use one clock: a worker with a wrong clock works normally and logs the offset. */
import { globSync } from 'node:fs'
import t from 'tap'
import { until } from '../../fixtures/botica.ts'
import { aBot, execute, handler, type Untyped } from '../../fixtures/bots/bots.ts'
import { openCluster, said } from '../../fixtures/services/cluster.ts'

t.setTimeout(300_000)
const PATIENCE_MS = 60_000
/** Workers read the time of Redis every few seconds. */
const TOLERANCE_MS = 5000
const [library] = globSync('/usr/lib/*/faketime/libfaketime.so.1')
if (library === undefined) {
  t.pass('libfaketime is not installed')
  process.exit(0)
}

const cluster = await openCluster(t)
const tenant = await cluster.createTenant('Clocks')
const { admin } = tenant
const bot = await aBot(tenant, handler('return 1'))

async function recordedSince(startedAt: number): Promise<number> {
  const [from, to] = [startedAt - TOLERANCE_MS, startedAt + PATIENCE_MS + TOLERANCE_MS]
  const range = [from, to].map((time) => new Date(time).toISOString())
  const search = `AuditEvent?date=ge${range[0]}&date=le${range[1]}&_sort=-_lastUpdated&_count=10`
  let found: readonly Untyped[] = []
  await until(async () => {
    const { body } = await admin.get<Untyped>(search)
    const since = new Date(startedAt).toISOString()
    found = (body.entry ?? []).filter(({ resource }: Untyped) => resource.meta.lastUpdated >= since)
    return found.length === 10
  }, PATIENCE_MS)
  return found.length
}

for (const [name, offset] of [
  ['ahead', '+600s'],
  ['behind', '-600s'],
]) {
  t.test(`serves with a worker clock ten minutes ${name} and logs the offset`, async (t) => {
    const startedAt = Date.now()
    const worker = cluster.run('worker', {
      LD_PRELOAD: library,
      FAKETIME: `${offset}`,
      FAKETIME_DONT_FAKE_MONOTONIC: '1',
    })
    await said(worker, '"taking jobs"')
    const answers = await Promise.all(Array.from({ length: 10 }, () => execute(admin, bot)))
    t.same([...new Set(answers.map(({ status, text }) => `${status} ${text}`))], ['200 1'])
    const recorded = await recordedSince(startedAt)
    t.equal(recorded, 10, 'records runs at the time of the service')
    t.equal(worker.said().split('The clock of this worker is off').length, 2, 'logs one line')
    await until(async () => {
      const { body } = await admin.get<{ clocks?: boolean }>('/healthcheck')
      return body.clocks === false
    }, PATIENCE_MS)
    worker.child.kill('SIGKILL')
    await worker.ended
    await until(async () => {
      const { body } = await admin.get<{ clocks?: boolean }>('/healthcheck')
      return body.clocks === true
    }, PATIENCE_MS)
  })
}

t.test('does not run a schedule early on a worker whose clock is ahead', async (t) => {
  const worker = cluster.run('worker', {
    LD_PRELOAD: library,
    FAKETIME: '+600s',
    FAKETIME_DONT_FAKE_MONOTONIC: '1',
  })
  const seconds = await aBot(
    tenant,
    handler(
      `await medplum.createResource({ resourceType: 'Basic', code: { text: event.input.id } })`,
    ),
  )
  await said(worker, '"taking jobs"')
  const minute = new Date(Date.now() + 5 * 60_000).getUTCMinutes()
  const read = await admin.get(`Bot/${seconds}`)
  t.equal(
    (await admin.put(`Bot/${seconds}`, { ...read.body, cronString: `${minute} * * * *` })).status,
    200,
  )
  await execute(admin, bot)
  const other = await aBot(tenant, handler('return 2'))
  for (let round = 0; round < 20; round++) await execute(admin, other)
  t.equal((await admin.get('Basic?_summary=count')).body.total, 0)
})

/** The service serves again soon after a store or all of it was killed; how soon is a comment of the test. */
import t from 'tap'
import { until } from '../../fixtures/botica.ts'
import { aBot, execute, handler } from '../../fixtures/bots/bots.ts'
import { depth } from '../../fixtures/depth.ts'
import { aPatient } from '../../fixtures/resources.ts'
import { openCluster, type Running, said } from '../../fixtures/services/cluster.ts'

t.setTimeout(300_000)
const PATIENCE_MS = 60_000
const ROUNDS = depth({ slice: 1, full: 3 })

const cluster = await openCluster(t)
const { postgres, redis } = cluster
const tenant = await cluster.createTenant('Recovery')
const { admin } = tenant
const bot = await aBot(tenant, handler('return event.input.n'))
let worker: Running = await cluster.startWorker()

const writes = async () => (await admin.post('Patient', aPatient())).status === 201
const runs = async () => (await execute(admin, bot, { n: 5 })).text === '5'

/** Milliseconds from the moment that the stores run again until `serves` is true. */
async function recovery(serves: () => Promise<boolean>): Promise<number> {
  const since = Date.now()
  await until(() => serves().catch(() => false), PATIENCE_MS)
  return Date.now() - since
}

async function restartBoth(): Promise<void> {
  await Promise.all([postgres.kill(), redis.kill()])
  worker.child.kill('SIGKILL')
  await worker.ended
  await Promise.all([postgres.start(), redis.start()])
  worker = cluster.run('worker')
}

for (const [name, hurt, serves] of [
  ['PostgreSQL', () => postgres.kill().then(postgres.start), writes],
  ['Redis', () => redis.kill().then(redis.start), runs],
  ['both and the worker', restartBoth, runs],
] as const) {
  t.test(`${name} killed: the service goes on by itself`, async (t) => {
    const times: number[] = []
    for (let round = 0; round < ROUNDS; round++) {
      t.ok(await until(serves, PATIENCE_MS).then(() => true), 'it serves')
      await hurt()
      times.push(await recovery(serves))
    }
    await said(worker, '"taking jobs"')
    t.comment(`${name}: ${times.join(', ')} ms`)
    t.equal(times.length, ROUNDS)
  })
}

/** Time until the service works again after a killed store or a full restart, printed as a comment. */
import t from 'tap'
import { until } from '../../fixtures/botica.ts'
import { aBot, execute, handler } from '../../fixtures/bots/bots.ts'
import { aPatient } from '../../fixtures/resources.ts'
import { openCluster, type Running, said } from '../../fixtures/services/cluster.ts'

t.setTimeout(300_000)
const PATIENCE_MS = 60_000
const ROUNDS = 3

const cluster = await openCluster(t)
const { postgres, redis } = cluster
const tenant = await cluster.createTenant('Recovery')
const { admin } = tenant
const bot = await aBot(tenant, handler('return event.input.n'))
let worker: Running = await cluster.startWorker()

const writes = async () => (await admin.post('Patient', aPatient())).status === 201
const runs = async () => (await execute(admin, bot, { n: 5 })).text === '5'

/** Returns the milliseconds from the restart of the stores until `serves` returns true. */
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
  t.test(`recovers without help after ${name} was killed`, async (t) => {
    const times: number[] = []
    for (let round = 0; round < ROUNDS; round++) {
      t.ok(await until(serves, PATIENCE_MS).then(() => true), 'the service works')
      await hurt()
      times.push(await recovery(serves))
    }
    await said(worker, '"taking jobs"')
    t.comment(`${name}: ${times.join(', ')} ms`)
    t.equal(times.length, ROUNDS)
  })
}

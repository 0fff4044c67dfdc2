import { randomUUID } from 'node:crypto'
import { Queue } from 'bullmq'
import { Redis } from 'ioredis'
import t, { type Test } from 'tap'
import { readConfig } from '../../shared/config/config.ts'
import { createLogger } from '../../shared/log.ts'
import { connectionNameOf, watchWorkers } from '../../shared/platform/queue/lost-workers.ts'
import { keys } from '../../shared/platform/queue/scripts.ts'
import { LendingWorker } from '../../shared/platform/queue/worker.ts'
import { openRedis } from '../../shared/platform/redis/redis.ts'
import { until } from '../fixtures/botica.ts'

const PREFIX = 'lost'
const PATIENCE_MS = 60_000
/** Nothing but the loss of its worker gives a job back. */
const NEVER_MS = 3_600_000

const config = readConfig()
const log = createLogger('silent', 'worker')
const admin = new Redis(config.redisUrl)
t.teardown(() => admin.disconnect())

/** A worker of the queue, known to others as those of a service are. */
async function aWorker(t: Test, queue: string, work: (id: string) => Promise<unknown>) {
  const workerId = randomUUID()
  const connection = openRedis(config, 'worker', log, connectionNameOf(workerId))
  const settings = {
    connection,
    prefix: PREFIX,
    lockDuration: NEVER_MS,
    stalledInterval: NEVER_MS,
    maxStalledCount: 1,
    removeOnComplete: { count: 0 },
  }
  const worker = new LendingWorker<null>(
    queue,
    async ({ id = '' }) => {
      await work(id)
      return null
    },
    settings,
    { most: 0, count: 0 },
  )
  await worker.waitUntilReady()
  await admin.zadd(keys.workers('bots-sync'), Date.now() + NEVER_MS, workerId)
  t.teardown(async () => {
    await admin.zrem(keys.workers('bots-sync'), workerId)
    await worker.close(true)
    connection.disconnect()
  })
  const lookout = () => {
    const giveBack = (owner: string) => worker.giveBackOf(owner)
    const watch = watchWorkers({ redis: connection, workerId, log, giveBack })
    t.teardown(() => watch.stop())
  }
  return { workerId, connection, lookout }
}

t.test('a worker whose connection is gone has its jobs taken over', async (t) => {
  const name = randomUUID()
  const queue = new Queue(name, { connection: admin, prefix: PREFIX })
  t.teardown(() => queue.close())
  const begun: string[] = []
  const never = new Promise(() => {})
  const first = await aWorker(t, name, (id) => {
    begun.push(id)
    return never
  })
  await queue.add('work', null, { jobId: 'held' })
  await until(async () => begun.length === 1, PATIENCE_MS)

  const done: string[] = []
  const second = await aWorker(t, name, async (id) => done.push(id))
  second.lookout()
  const third = await aWorker(t, randomUUID(), async () => {})
  third.lookout()
  await queue.add('work', null, { jobId: 'free' })
  await until(async () => done.includes('free'), PATIENCE_MS)
  t.notOk(done.includes('held'), 'what a living worker has stays with it')

  first.connection.disconnect()
  await until(async () => done.includes('held'), PATIENCE_MS)
  const known = await admin.zrange(keys.workers('bots-sync'), '0', '-1')
  t.notOk(known.includes(first.workerId))
  t.ok(known.includes(third.workerId))
})

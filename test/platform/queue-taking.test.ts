import { randomUUID } from 'node:crypto'
import { DelayedError, type Job, Queue } from 'bullmq'
import { Redis } from 'ioredis'
import t from 'tap'
import { readConfig } from '../../shared/config/config.ts'
import { createLogger } from '../../shared/log.ts'
import { useLeanScripts } from '../../shared/platform/queue/scripts.ts'
import { LendingWorker } from '../../shared/platform/queue/worker.ts'
import { openRedis } from '../../shared/platform/redis/redis.ts'
import { until } from '../fixtures/botica.ts'

const LONG_S = 3600
const PATIENCE_MS = 60_000
const PREFIX = 'taking'

interface Data {
  readonly n: number
}

interface Teardown {
  teardown(end: () => Promise<void>): void
}

type Work = (job: Job<Data>, token: string | undefined) => Promise<unknown>

const config = readConfig()
const log = createLogger('silent', 'worker')
const connection = openRedis(config, 'worker', log)
useLeanScripts(connection)
const watcher = new Redis(config.redisUrl)
t.teardown(() => {
  connection.disconnect()
  watcher.disconnect()
})

/** Workers that never look by themselves: what nobody wakes them for stays where it is. */
async function aQueue(t: Teardown, workers: number, work: Work, most = 0) {
  const name = randomUUID()
  const queue = new Queue<Data>(name, { connection, prefix: PREFIX })
  const opened = Array.from(
    { length: workers },
    () =>
      new LendingWorker<Data>(
        name,
        async (job, token) => {
          await work(job, token)
          return null
        },
        {
          connection,
          prefix: PREFIX,
          concurrency: 4,
          drainDelay: LONG_S,
          lockDuration: LONG_S * 1000,
          stalledInterval: LONG_S * 1000,
          removeOnComplete: { count: 0 },
        },
        { most, count: 0 },
      ),
  )
  await Promise.all(opened.map((worker) => worker.waitUntilReady()))
  t.teardown(async () => {
    await Promise.all(opened.map((worker) => worker.close()))
    await queue.obliterate({ force: true })
    await queue.close()
  })
  await waiting(name, workers)
  return { name, queue, workers: opened }
}

/** All commands that Redis gets from now on. */
async function aMonitor(t: { teardown(end: () => void): void }): Promise<Redis> {
  const monitor = watcher.duplicate({ monitor: true })
  t.teardown(() => monitor.disconnect())
  // ioredis calls it a fault when the first command comes in one piece with the answer.
  monitor.on('error', () => undefined)
  await new Promise((resolve) => monitor.once('monitoring', resolve))
  return monitor
}

/** Until so many workers of the queue wait for a job. */
async function waiting(name: string, workers: number): Promise<void> {
  const connectionName = `name=${PREFIX}:${Buffer.from(name).toString('base64')} `
  await until(async () => {
    const clients = String(await watcher.client('LIST')).split('\n')
    const blocked = clients.filter(
      (line) => line.includes(connectionName) && line.includes('cmd=bzpopmin'),
    )
    return blocked.length === workers
  }, PATIENCE_MS)
}

const isIdle = async (name: string) => (await watcher.llen(`${PREFIX}:${name}:active`)) === 0

t.test('a worker without work has a job in the step that wakes it', async (t) => {
  const done: number[] = []
  const { name, queue } = await aQueue(t, 1, async (job) => done.push(job.data.n))
  const add = async (n: number) => {
    await queue.add('job', { n })
    await until(async () => done.includes(n), PATIENCE_MS)
    await until(() => isIdle(name), PATIENCE_MS)
    await waiting(name, 1)
  }
  await add(0)
  const monitor = await aMonitor(t)
  const sent: string[] = []
  const inScripts: string[] = []
  const told = new Set<string>()
  monitor.on('monitor', (_time: string, [command = '', ...args]: string[], source: string) => {
    if (command === 'echo') told.add(args[0] ?? '')
    if (source === 'lua' && args.some((arg) => arg.includes(name))) inScripts.push(command)
    if (source !== 'lua' && args.some((arg) => arg.includes(name))) sent.push(command)
  })
  await add(1)
  const end = randomUUID()
  await watcher.echo(end)
  await until(async () => told.has(end), PATIENCE_MS)
  const commands = sent.filter((command) => command === 'evalsha' || command === 'bzpopmin').sort()
  t.strictSame(
    commands,
    ['bzpopmin', 'evalsha', 'evalsha', 'evalsha', 'evalsha'],
    'added, taken, seen to be the last, completed; and one wait for the next',
  )
  t.ok(inScripts.length <= 26, inScripts.join(' '))
  t.notOk(await watcher.exists(`${PREFIX}:${name}:events`), 'no events are written down')
})

t.test('each of many jobs is done once, whoever is woken', async (t) => {
  const done: number[] = []
  const { name, queue } = await aQueue(t, 3, async (job) => done.push(job.data.n))
  const all = Array.from({ length: 300 }, (_, n) => n)
  await Promise.all(
    all.map(async (n) => queue.add('job', { n }, n % 3 === 0 ? { priority: (n % 5) + 1 } : {})),
  )
  await until(async () => done.length >= all.length, PATIENCE_MS)
  await until(() => isIdle(name), PATIENCE_MS)
  t.strictSame(
    done.toSorted((a, b) => a - b),
    all,
  )
})

t.test('a job that is due later wakes the worker, though others came meanwhile', async (t) => {
  const done: number[] = []
  const { name, queue } = await aQueue(t, 1, async (job) => done.push(job.data.n))
  await queue.add('job', { n: 1 }, { delay: 500 })
  await queue.add('job', { n: 2 })
  await until(async () => done.length === 2, PATIENCE_MS)
  t.strictSame(done.toSorted(), [1, 2])
  await waiting(name, 1)
  await queue.add('job', { n: 3 })
  await queue.add('job', { n: 4 }, { delay: 1 })
  await until(async () => done.length === 4, PATIENCE_MS)
  t.strictSame(done.slice(2).toSorted(), [3, 4])
})

t.test('jobs that rest bring the next ones along when they end', async (t) => {
  const done: number[] = []
  const opened: LendingWorker<Data>[] = []
  const { name, queue, workers } = await aQueue(
    t,
    1,
    async ({ id = '', data }) => {
      opened[0]?.rest(id, true)
      await new Promise((resolve) => setTimeout(resolve, 20))
      opened[0]?.rest(id, false)
      done.push(data.n)
    },
    1000,
  )
  opened.push(...workers)
  const all = Array.from({ length: 400 }, (_, n) => n)
  const monitor = await aMonitor(t)
  let sent = 0
  monitor.on('monitor', (_time: string, [command, ...args]: string[], source: string) => {
    if (source !== 'lua' && command === 'evalsha' && args.some((arg) => arg.includes(name))) sent++
  })
  await queue.addBulk(all.map((n) => ({ name: 'job', data: { n } })))
  await until(async () => done.length === all.length, PATIENCE_MS)
  await until(() => isIdle(name), PATIENCE_MS)
  // Each is added and completed.
  const questions = sent - 2 * all.length
  t.ok(questions < all.length * 0.75, `${questions} questions for ${all.length} jobs`)
  t.strictSame(
    done.toSorted((a, b) => a - b),
    all,
    'each was done once',
  )
})

t.test(
  'a job is locked for as long as its worker says, also one that another brought along',
  async (t) => {
    const locks: number[] = []
    const names: string[] = []
    const { name, queue } = await aQueue(t, 1, async ({ id }) => {
      locks.push(await watcher.pttl(`${PREFIX}:${names[0]}:${id}:lock`))
    })
    names.push(name)
    await queue.addBulk(Array.from({ length: 20 }, (_, n) => ({ name: 'job', data: { n } })))
    await until(async () => locks.length === 20, PATIENCE_MS)
    t.ok(Math.min(...locks) > (LONG_S - 60) * 1000, locks.join())
  },
)

t.test('a job can be put off by who has taken it', async (t) => {
  let attempts = 0
  const { name, queue } = await aQueue(t, 2, async (job, token) => {
    if (++attempts > 3) return
    await job.moveToDelayed(Date.now() + 1, token)
    throw new DelayedError()
  })
  await queue.add('job', { n: 1 })
  await until(async () => attempts === 4, PATIENCE_MS)
  await until(() => isIdle(name), PATIENCE_MS)
  t.equal(await queue.getDelayedCount(), 0, 'and be completed at last')
})

t.test('a job that a wait has brought along may fail, and the next one is taken', async (t) => {
  const done: number[] = []
  const { queue, workers } = await aQueue(t, 1, async (job) => {
    if (job.data.n === 1) throw new Error('No')
    done.push(job.data.n)
  })
  const failed: string[] = []
  workers[0]?.on('failed', (_job, error) => failed.push(error.message))
  await queue.add('job', { n: 1 })
  await queue.add('job', { n: 2 })
  await until(async () => done.length === 1 && failed.length === 1, PATIENCE_MS)
  t.strictSame({ done, failed }, { done: [2], failed: ['No'] })
})

t.test('a connection that is cut off while the worker waits is made anew', async (t) => {
  const done: number[] = []
  const { name, queue } = await aQueue(t, 1, async (job) => done.push(job.data.n))
  const connectionName = `name=${PREFIX}:${Buffer.from(name).toString('base64')} `
  const clients = String(await watcher.client('LIST')).split('\n')
  const id = /^id=(\d+)/.exec(clients.find((line) => line.includes(connectionName)) ?? '')?.[1]
  await watcher.client('KILL', 'ID', Number(id))
  await waiting(name, 1)
  await queue.add('job', { n: 1 })
  await until(async () => done.length === 1, PATIENCE_MS)
  t.strictSame(done, [1])
})

t.test('Redis may forget the scripts while a worker waits', async (t) => {
  const done: number[] = []
  const { name, queue } = await aQueue(t, 1, async (job) => done.push(job.data.n))
  await watcher.script('FLUSH')
  for (const n of [1, 2]) {
    await queue.add('job', { n })
    await until(async () => done.includes(n), PATIENCE_MS)
  }
  await waiting(name, 1)
  t.strictSame(done, [1, 2])
})

t.test('workers that stop while jobs come take none of them along', async (t) => {
  const done: number[] = []
  const { queue, workers } = await aQueue(t, 4, async (job) => done.push(job.data.n))
  const [last, ...others] = workers
  let isOver = false
  const adding = (async () => {
    let added = 0
    while (!isOver) await queue.add('job', { n: added++ })
    return added
  })()
  for (const worker of others) await worker.close()
  isOver = true
  const added = await adding
  await until(async () => done.length >= added, PATIENCE_MS)
  t.strictSame(
    done.toSorted((a, b) => a - b),
    Array.from({ length: added }, (_, n) => n),
  )
  t.equal(last?.isRunning(), true)
})

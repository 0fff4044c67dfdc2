/** Imports the bus, to break and restore connections between two messages. */
import { randomUUID } from 'node:crypto'
import { Redis } from 'ioredis'
import t from 'tap'
import type { CacheChange } from '../../../../shared/core/cache.ts'
import { readConfig } from '../../../../shared/core/config/config.ts'
import { createLogger } from '../../../../shared/core/log.ts'
import { CANCEL } from '../../../../shared/queue/jobs.ts'
import { type Bus, messageKind, openBus } from '../../../../shared/redis/bus.ts'
import { openChanges } from '../../../../shared/redis/changes.ts'
import { openRedis, untilReady } from '../../../../shared/redis/redis.ts'
import { createAnnouncer, listenForWakes, wakeWorkers } from '../../../../shared/redis/wakes.ts'
import { openBotica, takeRedisDatabase, until } from '../../../fixtures/botica.ts'

const PATIENCE_MS = 60_000
const log = createLogger('silent', 'script')
const NOTES = messageKind<string>('notes')

async function aProcess(url: string) {
  const config = readConfig({ ...process.env, REDIS_URL: url })
  const redis = openRedis(config, 'request', log)
  await untilReady(redis, log)
  const bus = await openBus(config, redis, log)
  t.teardown(() => {
    bus.close()
    redis.disconnect()
  })
  return { bus, changes: await openChanges(bus, redis) }
}

const url = await takeRedisDatabase(process.env.REDIS_URL)
const one = await aProcess(url)
const same = await aProcess(url)
const other = await aProcess(await takeRedisDatabase(process.env.REDIS_URL))

async function heardAll(publisher: Bus, listener: Bus): Promise<void> {
  const mark = randomUUID()
  const { promise, resolve } = Promise.withResolvers<void>()
  const listening = await listener.listen(NOTES, () => resolve(), mark)
  await publisher.publish(NOTES, 'mark', mark)
  await promise
  await listening.close()
}

t.test('separates services on two databases of one Redis', async (t) => {
  const heard: Record<string, unknown[]> = { same: [], other: [] }
  for (const [name, { bus, changes }] of Object.entries({ same, other })) {
    const note = (what: unknown) => heard[name]?.push(what)
    changes.follow((changes) => note(changes))
    await listenForWakes(bus, 'change', () => note('wake'))
    await bus.listen(CANCEL, note)
    await bus.listen(NOTES, note, 'address')
  }
  const change: CacheChange = { type: 'Project', id: 'p', number: 1, home: undefined }
  await one.changes.report(change)
  createAnnouncer(one.bus)()
  await wakeWorkers(one.bus, 'export')
  await one.bus.publish(CANCEL, 'run')
  await one.bus.publish(NOTES, 'note', 'address')
  await one.bus.publish(NOTES, 'note', 'elsewhere')
  await heardAll(one.bus, same.bus)
  await heardAll(other.bus, other.bus)
  t.same(heard.same, [[{ type: 'Project', id: 'p', number: 1 }], 'wake', 'run', 'note'])
  t.same(heard.other, [])
})

t.test('stops messages to a closed listener only', async (t) => {
  const heard: string[] = []
  const first = await same.bus.listen(NOTES, (note) => heard.push(`first ${note}`))
  await same.bus.listen(NOTES, (note) => heard.push(`second ${note}`))
  await one.bus.publish(NOTES, 'a')
  await heardAll(one.bus, same.bus)
  await first.close()
  await one.bus.publish(NOTES, 'b')
  await heardAll(one.bus, same.bus)
  t.same(heard, ['first a', 'second a', 'second b'])
})

t.test(
  'reports possible message loss after a reconnect, and receives the next message',
  async (t) => {
    const redis = new Redis(process.env.REDIS_URL ?? '')
    t.teardown(() => redis.disconnect())
    const heard: string[] = []
    const third = await aProcess(url)
    await third.bus.listen(NOTES, (note) => heard.push(note), 'after')
    const gap = Promise.withResolvers<void>()
    third.bus.onGap(() => {
      heard.push('gap')
      gap.resolve()
    })
    const newest = Math.max(
      ...(await countListeners(redis, Number(new URL(url).pathname.slice(1)))),
    )
    await redis.client('KILL', 'ID', newest)
    await gap.promise
    await one.bus.publish(NOTES, 'note', 'after')
    await heardAll(one.bus, third.bus)
    t.same(heard, ['gap', 'note'])
  },
)

/** Returns the ids of the listening connections of clients of a database. */
async function countListeners(redis: Redis, database: number): Promise<readonly number[]> {
  const list = String(await redis.client('LIST', 'TYPE', 'PUBSUB'))
  const own = list.split('\n').filter((line) => line.includes(` db=${database} `))
  return own.map((line) => Number(/^id=(\d+)/.exec(line)?.[1]))
}

t.test('listens on one connection per process', async (t) => {
  const { services, startWorker } = await openBotica(t)
  const { redis } = services
  const database = redis.options.db ?? 0
  t.equal((await countListeners(redis, database)).length, 1)
  await startWorker()
  await until(async () => (await countListeners(redis, database)).length >= 2, PATIENCE_MS)
  t.equal((await countListeners(redis, database)).length, 2)
})

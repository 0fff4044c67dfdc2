/** The pace of exports: how they learn that web has much to do, and how they rest meanwhile. */
import t from 'tap'
import { readConfig } from '../../shared/core/config/config.ts'
import { createLogger } from '../../shared/core/log.ts'
import { createPace } from '../../shared/export/exporting.ts'
import { openRedis } from '../../shared/redis/redis.ts'
import { publishWebLoad, watchWebLoad } from '../../shared/redis/web-load.ts'
import { until } from '../fixtures/botica.ts'

const DONE_MS = 60_000

function spin(ms: number): void {
  for (const end = performance.now() + ms; performance.now() < end; );
}

/** Whether it answers before the event loop turns. */
async function isAtOnce(work: Promise<void>): Promise<boolean> {
  const turn = new Promise<false>((resolve) => setImmediate(() => resolve(false)))
  return await Promise.race([work.then(() => true), turn])
}

t.test(
  'a web process that has much to do is heard of, and no longer once it has not',
  async (t) => {
    const redis = openRedis(readConfig(), 'worker', createLogger('silent', 'worker'))
    t.teardown(() => redis.disconnect())
    publishWebLoad(redis)
    const isBusy = watchWebLoad(redis)
    t.notOk(isBusy())
    await until(async () => {
      spin(100)
      return isBusy()
    }, DONE_MS)
    await until(async () => !isBusy(), DONE_MS)
  },
)

t.test('without Redis nobody is busy', async (t) => {
  let asked = 0
  const isBusy = watchWebLoad({
    exists: async () => {
      asked += 1
      throw new Error('Redis is away')
    },
  })
  await until(async () => isBusy() || asked > 1, DONE_MS)
  t.notOk(isBusy())
})

t.test('exports go on without a rest while nobody waits', async (t) => {
  const pace = createPace(() => false)
  t.notOk(pace.isAwaited())
  t.ok(await isAtOnce(pace.keep()))
  spin(150)
  t.ok(await isAtOnce(pace.keep()))
})

t.test(
  'while somebody waits they go on in bursts and rest for longer than these last',
  async (t) => {
    const pace = createPace(() => true)
    t.ok(pace.isAwaited())
    await until(() => isAtOnce(pace.keep()), DONE_MS)
    spin(150)
    const began = performance.now()
    const [one, other] = [pace.keep(), pace.keep()]
    t.notOk(await isAtOnce(one))
    await Promise.all([one, other])
    // A timer may be a millisecond early.
    t.ok(performance.now() - began >= 290, 'all of them rest')
    await until(() => isAtOnce(pace.keep()), DONE_MS)
  },
)

t.test('who does not wait any more is forgotten', async (t) => {
  let isBusy = true
  const pace = createPace(() => isBusy)
  t.ok(pace.isAwaited())
  isBusy = false
  await until(async () => !pace.isAwaited(), DONE_MS)
  t.ok(await isAtOnce(pace.keep()))
})

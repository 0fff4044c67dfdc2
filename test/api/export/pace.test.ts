/** Imports the pace of exports, because a request cannot set the load of web. */
import t from 'tap'
import { readConfig } from '../../../shared/core/config/config.ts'
import { createLogger } from '../../../shared/core/log.ts'
import { createPace } from '../../../shared/export/pace.ts'
import { openRedis } from '../../../shared/redis/redis.ts'
import { publishWebLoad, watchWebLoad } from '../../../shared/redis/web-load.ts'
import { until } from '../../fixtures/botica.ts'

const DONE_MS = 60_000

function spin(ms: number): void {
  for (const end = performance.now() + ms; performance.now() < end; );
}

/** Returns true if `work` settles before the event loop turns. */
async function isAtOnce(work: Promise<void>): Promise<boolean> {
  const turn = new Promise<false>((resolve) => setImmediate(() => resolve(false)))
  return await Promise.race([work.then(() => true), turn])
}

t.test('reports a busy web process, and reports it idle afterwards', async (t) => {
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
})

t.test('treats web as idle without Redis', async (t) => {
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

t.test('runs exports without pauses while no request waits', async (t) => {
  const pace = createPace(() => false)
  t.notOk(pace.isAwaited())
  t.ok(await isAtOnce(pace.keep()))
  spin(150)
  t.ok(await isAtOnce(pace.keep()))
})

t.test('runs in bursts and pauses longer than a burst while requests wait', async (t) => {
  const pace = createPace(() => true)
  t.ok(pace.isAwaited())
  await until(() => isAtOnce(pace.keep()), DONE_MS)
  spin(150)
  const began = performance.now()
  const [one, other] = [pace.keep(), pace.keep()]
  t.notOk(await isAtOnce(one))
  await Promise.all([one, other])
  // A timer may fire a millisecond early.
  t.ok(performance.now() - began >= 290, 'all exports pause')
  await until(() => isAtOnce(pace.keep()), DONE_MS)
})

t.test('ends waiting when web is no longer busy', async (t) => {
  let isBusy = true
  const pace = createPace(() => isBusy)
  t.ok(pace.isAwaited())
  isBusy = false
  await until(async () => !pace.isAwaited(), DONE_MS)
  t.ok(await isAtOnce(pace.keep()))
})

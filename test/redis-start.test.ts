/** How long a process waits for an answer of Redis: long at its start, when it may hear it late, and no longer. */
import { Redis } from 'ioredis'
import t from 'tap'
import { readConfig } from '../shared/config.ts'
import { createLogger } from '../shared/log.ts'
import { endStart, openRedis, untilReady } from '../shared/redis.ts'

const PAUSE_MS = 3000

const config = readConfig()
const log = createLogger('silent', 'script')
const redis = openRedis(config, 'request', log)
const other = new Redis(config.redisUrl)
t.teardown(() => {
  redis.disconnect()
  other.disconnect()
})
await untilReady(redis, log)
const pause = () => other.call('CLIENT', 'PAUSE', PAUSE_MS, 'ALL')

t.test('an answer that comes late is waited for at the start alone', async (t) => {
  await pause()
  t.equal(await redis.ping(), 'PONG')
  endStart(redis)
  await pause()
  await t.rejects(redis.ping(), { message: 'Command timed out' })
  t.equal(await other.ping(), 'PONG', 'the pause is over before the next test')
})

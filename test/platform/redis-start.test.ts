/** How long a process waits for an answer of Redis: long at its start, when it may hear it late, and no longer. */
import { rmSync } from 'node:fs'
import { join } from 'node:path'
import { Redis } from 'ioredis'
import t from 'tap'
import { temporaryFolder } from '../../scripts/account.ts'
import { startRedis } from '../../scripts/redis.ts'
import { readConfig } from '../../shared/config/config.ts'
import { createLogger } from '../../shared/log.ts'
import { endStart, openRedis, untilReady } from '../../shared/platform/redis/redis.ts'

const PAUSE_MS = 3000

// All that talk to a Redis wait while it pauses.
const folder = temporaryFolder('botica-pause-')
const own = await startRedis({ folder: join(folder, 'redis'), durable: false })
t.teardown(async () => {
  await own.stop()
  rmSync(folder, { recursive: true, force: true })
})
const config = readConfig({ ...process.env, REDIS_URL: own.url })
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
  endStart(redis, config)
  await pause()
  await t.rejects(redis.ping(), { message: 'Command timed out' })
  t.equal(await other.ping(), 'PONG', 'the pause is over before the next test')
})

/**
 * Redis timeouts of a process: long at start, short afterwards. Imports the connection, to open it to servers that
 * do not respond.
 */
import { type ChildProcess, spawn } from 'node:child_process'
import { once } from 'node:events'
import { rmSync } from 'node:fs'
import { join } from 'node:path'
import { Redis } from 'ioredis'
import t, { type Test } from 'tap'
import { temporaryFolder } from '../../../../scripts/account.ts'
import { findServer, startRedis } from '../../../../scripts/redis.ts'
import { freePort } from '../../../../scripts/service.ts'
import { readConfig } from '../../../../shared/core/config/config.ts'
import { createLogger } from '../../../../shared/core/log.ts'
import {
  endStart,
  openRedis,
  parseSentinelUrl,
  redisConfigError,
  untilReady,
} from '../../../../shared/redis/redis.ts'

const PAUSE_MS = 3000

// A paused Redis blocks all its clients.
const folder = temporaryFolder('botica-pause-')
const own = await startRedis({ folder: join(folder, 'redis'), durable: false })
t.teardown(async () => {
  await own.stop()
  rmSync(folder, { recursive: true, force: true })
})
// A command waits for much less than the pause, so that a slow process also finds Redis paused.
const config = readConfig({ ...process.env, REDIS_URL: own.url, REDIS_TIMEOUT_MS: '500' })
const log = createLogger('silent', 'script')
const redis = openRedis(config, 'request', log)
const other = new Redis(config.redisUrl)
t.teardown(() => {
  redis.disconnect()
  other.disconnect()
})
await untilReady(redis, log)
const pause = () => other.call('CLIENT', 'PAUSE', PAUSE_MS, 'ALL')

t.test('waits for a late response only at start', async (t) => {
  await pause()
  t.equal(await redis.ping(), 'PONG')
  endStart(redis, config)
  await pause()
  await t.rejects(redis.ping(), { message: 'Command timed out' })
  t.equal(await other.ping(), 'PONG', 'the pause ends before the next test')
})

t.test('rejects a Redis that may evict jobs, in one sentence', async (t) => {
  t.equal(await redisConfigError(redis), undefined)
  await other.config('SET', 'maxmemory-policy', 'allkeys-lru')
  t.match(
    await redisConfigError(redis),
    /evicts keys .*allkeys-lru.*set maxmemory-policy to noeviction/,
  )
  await other.config('SET', 'maxmemory-policy', 'noeviction')

  const member = await startMember(t)
  t.match(await redisConfigError(member), /names a node of a Redis Cluster/)
})

t.test('parses hosts, name and credentials of a Sentinel URL', async (t) => {
  t.same(parseSentinelUrl('redis-sentinel://me:s%40x@a:1,b/2?sentinelPassword=p#clinic'), {
    sentinels: [
      { host: 'a', port: 1 },
      { host: 'b', port: 26_379 },
    ],
    name: 'clinic',
    username: 'me',
    password: 's@x',
    db: 2,
    sentinelPassword: 'p',
  })
  t.equal(parseSentinelUrl('redis://a:1/2'), undefined)
})

/** Connects to a new Redis Cluster node; retries if its ports were taken meanwhile. */
async function startMember(t: Test): Promise<Redis> {
  const folder = temporaryFolder('botica-cluster-')
  const children: ChildProcess[] = []
  t.teardown(() => {
    for (const child of children) child.kill('SIGKILL')
    rmSync(folder, { recursive: true, force: true })
  })
  for (;;) {
    const [port, bus] = [await freePort(), await freePort()]
    const ports = [`port ${port}`, `cluster-port ${bus}`]
    const lines = [...ports, `dir ${folder}`, 'cluster-enabled yes', '']
    const child = spawn(findServer() ?? 'redis-server', ['-'], {
      stdio: ['pipe', 'ignore', 'ignore'],
    })
    children.push(child)
    child.stdin.end(lines.join('\n'))
    const member = new Redis({ port, maxRetriesPerRequest: null, retryStrategy: () => 50 })
    member.on('error', () => undefined)
    t.teardown(() => member.disconnect())
    const ended = once(child, 'exit').then(() => 'ended')
    const answer = member.ping().catch(() => 'disconnected')
    if ((await Promise.race([answer, ended])) === 'PONG') return member
    member.disconnect()
  }
}

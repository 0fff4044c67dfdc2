/** Redis with Sentinels: the service finds the primary and fails over. */
import { type ChildProcess, spawn } from 'node:child_process'
import { mkdtempSync, rmSync, writeFileSync } from 'node:fs'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { Redis } from 'ioredis'
import t from 'tap'
import { findServer } from '../../../../scripts/redis.ts'
import { freePort } from '../../../../scripts/service.ts'
import { openBotica, until } from '../../../fixtures/botica.ts'
import { aBot, execute, handler } from '../../../fixtures/bots/bots.ts'

const PATIENCE_MS = 60_000
const DOWN_AFTER_MS = 1000
const folder = mkdtempSync(join(tmpdir(), 'botica-sentinel-'))
t.teardown(() => rmSync(folder, { recursive: true, force: true }))

interface Node {
  readonly child: ChildProcess
  readonly port: number
}

async function start(lines: readonly string[], ...args: readonly string[]): Promise<Node> {
  const port = await freePort()
  const file = join(folder, `${port}.conf`)
  writeFileSync(file, [`port ${port}`, `dir ${folder}`, 'save ""', ...lines, ''].join('\n'))
  const child = spawn(findServer() ?? 'redis-server', [file, ...args], { stdio: 'ignore' })
  t.teardown(() => child.kill('SIGKILL'))
  const redis = new Redis({ port, maxRetriesPerRequest: null, retryStrategy: () => 50 })
  redis.on('error', () => undefined)
  await redis.ping()
  redis.disconnect()
  return { child, port }
}

const primary = await start([])
const replica = await start([`replicaof 127.0.0.1 ${primary.port}`])
const sentinel = await start(
  [
    `sentinel monitor clinic 127.0.0.1 ${primary.port} 1`,
    `sentinel down-after-milliseconds clinic ${DOWN_AFTER_MS}`,
  ],
  '--sentinel',
)
const watch = new Redis({ port: sentinel.port })
t.teardown(() => watch.disconnect())
const replicas = async () => (await watch.call('SENTINEL', 'REPLICAS', 'clinic')) as unknown[]
await until(async () => (await replicas()).length === 1, PATIENCE_MS)

const botica = await openBotica(t, {
  worker: true,
  env: { REDIS_URL: `redis-sentinel://127.0.0.1:${sentinel.port}/0#clinic` },
})

t.test('runs bots on the next primary after a failover', async (t) => {
  const bot = await aBot(botica, handler('return event.input.n'))
  t.equal((await execute(botica.admin, bot, { n: 1 })).text, '1')

  primary.child.kill('SIGKILL')
  const address = async () => (await watch.call('SENTINEL', 'MASTER', 'clinic')) as string[]
  await until(async () => (await address()).includes(String(replica.port)), PATIENCE_MS)
  await until(async () => (await execute(botica.admin, bot, { n: 2 })).status === 200, PATIENCE_MS)
  t.equal((await execute(botica.admin, bot, { n: 3 })).text, '3')
})

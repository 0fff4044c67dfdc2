/** Redis with Sentinels: the service finds the primary and fails over. */
import './short-silence.ts'
import { type ChildProcess, spawn } from 'node:child_process'
import { once } from 'node:events'
import { mkdtempSync, rmSync, writeFileSync } from 'node:fs'
import { type AddressInfo, createServer } from 'node:net'
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

const first = await start([])
const others = [first, first].map(({ port }) => start([`replicaof 127.0.0.1 ${port}`]))
const nodes = [first, ...(await Promise.all(others))]
const sentinel = await start(
  [
    `sentinel monitor clinic 127.0.0.1 ${first.port} 1`,
    `sentinel down-after-milliseconds clinic ${DOWN_AFTER_MS}`,
    // The time between two failovers.
    'sentinel failover-timeout clinic 2000',
  ],
  '--sentinel',
)
const watch = new Redis({ port: sentinel.port })
t.teardown(() => watch.disconnect())
const replicas = async () => (await watch.call('SENTINEL', 'REPLICAS', 'clinic')) as unknown[]
await until(async () => (await replicas()).length === 2, PATIENCE_MS)

// Accepts connections and never answers.
const hung = createServer().listen(0, '127.0.0.1')
await once(hung, 'listening')
t.teardown(() => hung.close())
const sentinels = [(hung.address() as AddressInfo).port, sentinel.port].map(
  (port) => `127.0.0.1:${port}`,
)
const botica = await openBotica(t, {
  worker: 'process',
  env: { REDIS_URL: `redis-sentinel://${sentinels}/0#clinic`, REDIS_TIMEOUT_MS: '2000' },
})

const address = async () => (await watch.call('SENTINEL', 'MASTER', 'clinic')) as string[]
async function findPrimary(): Promise<Node | undefined> {
  const fields = await address()
  return nodes.find(({ port }) => fields.includes(String(port)))
}

for (const [what, signal] of [
  ['was killed', 'SIGKILL'],
  ['hangs', 'SIGSTOP'],
] as const) {
  t.test(`runs bots on the next primary after one ${what}`, async (t) => {
    const bot = await aBot(botica, handler('return event.input.n'))
    t.equal((await execute(botica.admin, bot, { n: 1 })).text, '1')

    const primary = await findPrimary()
    primary?.child.kill(signal)
    await until(async () => (await findPrimary()) !== primary, PATIENCE_MS)
    const isRun = async () => (await execute(botica.admin, bot, { n: 2 })).status === 200
    await until(isRun, PATIENCE_MS)
    t.equal((await execute(botica.admin, bot, { n: 3 })).text, '3')
  })
}

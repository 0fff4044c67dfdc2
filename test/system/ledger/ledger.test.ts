/** The ledger compares what was answered while processes die, stand still and forget with what is there. */
import { setTimeout as delay } from 'node:timers/promises'
import { Redis } from 'ioredis'
import t from 'tap'
import { freePort } from '../../../scripts/service.ts'
import { until } from '../../fixtures/botica.ts'
import { aBot, execute, handler } from '../../fixtures/bots/bots.ts'
import { createClient } from '../../fixtures/client.ts'
import { depth } from '../../fixtures/depth.ts'
import { seeded } from '../../fixtures/policy/oracle.ts'
import { MRN_SYSTEM } from '../../fixtures/resources.ts'
import { openCluster, type Running, said } from '../../fixtures/services/cluster.ts'
import { type Entry, judge, keepWriting } from './writers.ts'

t.setTimeout(390_000)
const FAULTS = depth({ slice: 8, full: 24 })
const WRITERS = 4
const FREEZE_MS = { least: 1000, more: 4000 }
const CALM_MS = 500
const PATIENCE_MS = 120_000
/** The longest wait of a caller, and what a busy machine adds to it. */
const DEADLINE_MS = 60_000
const random = seeded(Number(process.env.TEST_SEED ?? 1))

const cluster = await openCluster(t)
const tenant = await cluster.createTenant('Ledger')
const { admin } = tenant
const redis = new Redis(cluster.redis.url, { maxRetriesPerRequest: null })
redis.on('error', () => undefined)
t.teardown(() => redis.disconnect())
const bot = await aBot(
  tenant,
  handler(`await new Promise((resolve) => setTimeout(resolve, 200))
    const value = event.input.mark
    await medplum.createResource({ resourceType: 'Patient', identifier: [{ system: '${MRN_SYSTEM}', value }] })
    return value`),
)

const port = await freePort()
const settings = { PORT: String(port), RATE_LIMIT_PER_MINUTE: '0' }
const startWeb = () => cluster.run('server', settings)
let web = startWeb()
const workers: Running[] = [await cluster.startWorker(), await cluster.startWorker()]
await said(web, '"listening"')

const frozen = () => delay(FREEZE_MS.least + random(FREEZE_MS.more))
async function freeze({ child }: Running): Promise<void> {
  child.kill('SIGSTOP')
  await frozen()
  child.kill('SIGCONT')
}

const FAULT: Readonly<Record<string, () => Promise<void>>> = {
  async 'web killed'() {
    web.child.kill('SIGKILL')
    await web.ended
    web = startWeb()
    await said(web, '"listening"')
  },
  async 'worker killed'() {
    const place = random(workers.length)
    workers[place]?.child.kill('SIGKILL')
    workers[place] = await cluster.startWorker()
  },
  'web frozen': () => freeze(web),
  'worker frozen': () => freeze(workers[random(workers.length)] as Running),
  async 'Redis emptied'() {
    await redis.flushall()
  },
  async 'Redis killed'() {
    await cluster.redis.kill()
    await delay(random(1000))
    await cluster.redis.start()
  },
  async 'PostgreSQL killed'() {
    await cluster.postgres.kill()
    await delay(random(1000))
    await cluster.postgres.start()
  },
  async 'Redis frozen'() {
    cluster.redis.silence()
    await frozen()
    cluster.redis.resume()
  },
}

t.test(
  'nothing accepted is lost, nothing is there twice, every caller has an answer',
  async (t) => {
    let isOver = false
    const clients = [admin, createClient(`http://127.0.0.1:${port}/`, admin.token)]
    const writing = Array.from({ length: WRITERS }, () => keepWriting(clients, bot, () => isOver))
    const counts: Record<string, number> = {}
    const names = Object.keys(FAULT)
    for (let n = 0; n < FAULTS; n++) {
      // Each kind once, then as the seed draws.
      const name = names[n] ?? names[random(names.length)] ?? ''
      counts[name] = (counts[name] ?? 0) + 1
      await FAULT[name]?.()
      await delay(CALM_MS)
    }
    isOver = true
    const entries: readonly Entry[] = (await Promise.all(writing)).flat()
    const since = Date.now()
    await until(
      async () => (await execute(admin, bot, { mark: 'calm' })).status === 200,
      PATIENCE_MS,
    )
    const calmMs = Date.now() - since
    const accepted = entries.flatMap(({ location }) => location ?? [])
    await until(async () => {
      const open = await Promise.all(accepted.map((url) => admin.get(url)))
      return open.every(({ status }) => status === 200)
    }, PATIENCE_MS)

    const rows = await judge(admin, entries)
    t.comment(JSON.stringify({ faults: counts, calmMs, rows }))
    const total = (value: 'lost' | 'twice') => rows.reduce((sum, row) => sum + row[value], 0)
    t.equal(total('lost'), 0)
    t.equal(total('twice'), 0)
    t.same(
      entries.filter(({ isMute }) => isMute),
      [],
      'each 503 says when to come back',
    )
    const slowest = Math.max(...entries.map(({ ms }) => ms))
    t.ok(slowest < DEADLINE_MS, `the slowest caller waited ${slowest} ms`)
  },
)

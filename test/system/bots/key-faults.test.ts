/** Keys of runs while other runs block them, their worker is killed, or Redis is away at the end of a run. */
import t from 'tap'
import { until } from '../../fixtures/botica.ts'
import { aBot, execute, finished, handler } from '../../fixtures/bots/bots.ts'
import { AT_GATE, aGate } from '../../fixtures/bots/gates.ts'
import { openCluster } from '../../fixtures/services/cluster.ts'

t.setTimeout(400_000)
const PATIENCE_MS = 180_000
const LATER = { Prefer: 'respond-async' }
const cluster = await openCluster(t)
const tenant = await cluster.createTenant('Keys')
const { admin } = tenant
const extension = [{ url: 'urn:botica:bot-concurrencyKey', valueString: 'key' }]
const fields = { extension, timeout: 300 }

const enqueue = async (bot: string, input: object) => {
  const { status, headers } = await execute(admin, bot, input, LATER)
  t.equal(status, 202)
  return headers.get('content-location') ?? ''
}
const result = async (url: string) => {
  const { output } = await finished(admin, url, PATIENCE_MS)
  return JSON.parse(output.parameter[0].valueString)
}

let worker = await cluster.startWorker()

t.test('a blocked key delays no other key', async (t) => {
  const bot = await aBot(tenant, handler(`${AT_GATE} return { ended: Date.now() }`), { fields })
  const { gate, open } = aGate(admin)
  const first = await enqueue(bot, { key: 'blocked', gate })
  const waiting: string[] = []
  for (let n = 0; n < 100; n++) waiting.push(await enqueue(bot, { key: 'blocked' }))
  for (let n = 0; n < 30; n++) {
    const { status } = await execute(admin, bot, { key: `free ${n}` })
    t.equal(status, 200, 'other keys run')
  }
  const opened = Date.now()
  await open()
  for (const url of [first, ...waiting]) t.ok((await result(url)).ended >= opened)
})

t.test('the key of a killed worker continues, in order', async (t) => {
  const code = handler(`const begun = Date.now()
    if (event.input.stays && event.attempt === 1) await new Promise(() => {})
    return { begun, ended: Date.now(), attempt: event.attempt }`)
  const bot = await aBot(tenant, code, { fields })
  const urls = [await enqueue(bot, { key: 'a', stays: true })]
  const path = `/admin/projects/${tenant.project.id}/bots/stats`
  await until(
    async () => (await admin.get<{ slotsUsed: number }>(path)).body.slotsUsed === 1,
    PATIENCE_MS,
  )
  for (let n = 0; n < 2; n++) urls.push(await enqueue(bot, { key: 'a' }))
  const killed = Date.now()
  worker.child.kill('SIGKILL')
  worker = await cluster.startWorker()
  const started = Date.now()
  const ends = await Promise.all(urls.map(result))
  t.equal(ends[0].attempt, 2)
  t.ok(ends[1].begun >= ends[0].ended)
  t.ok(ends[2].begun >= ends[1].ended)
  const free = ends[0].begun - killed
  t.comment(`begins again ${free} ms after the kill, ${started - killed} of them without a worker`)
})

t.test('runs of a key continue after Redis was away at the end of one', async (t) => {
  const bot = await aBot(tenant, handler(`${AT_GATE} return { ended: Date.now() }`), { fields })
  const { gate, open } = aGate(admin)
  const urls = [await enqueue(bot, { key: 'b', gate })]
  const path = `/admin/projects/${tenant.project.id}/bots/stats`
  await until(
    async () => (await admin.get<{ slotsUsed: number }>(path)).body.slotsUsed === 1,
    PATIENCE_MS,
  )
  for (let n = 0; n < 3; n++) urls.push(await enqueue(bot, { key: 'b' }))
  await cluster.redis.kill()
  await open()
  await cluster.redis.start()
  for (const url of urls) t.ok((await result(url)).ended)
  t.notMatch(worker.said(), /A bot job failed/)
})

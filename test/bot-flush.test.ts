import { Redis } from 'ioredis'
import t from 'tap'
import { openBotica, until } from './fixtures/botica.ts'
import { aBot, execute, finished, handler } from './fixtures/bots.ts'

const botica = await openBotica(t, { worker: true, env: { WORKER_CONCURRENCY: '2' } })
const { admin, services } = botica
const PATIENCE_MS = 90_000
const later = { Prefer: 'respond-async' }

t.test('accepted runs outlive a Redis that has forgotten them', async (t) => {
  const code = handler(`while (Date.now() < event.input.until);
    return event.runId`)
  const id = await aBot(botica, code, { fields: { timeout: 60 } })
  const release = Date.now() + 5000
  const accepted = await Promise.all(
    Array.from({ length: 12 }, () => execute(admin, id, { until: release }, later)),
  )
  const async = async (state: string) =>
    (await services.queues.depths())['bots-async']?.[state] ?? 0
  await until(async () => (await async('active')) >= 2, PATIENCE_MS)
  const redis = new Redis(services.config.redisUrl)
  await redis.flushdb()
  redis.disconnect()
  t.equal(await async('prioritized'), 0)

  const urls = accepted.map(({ headers }) => String(headers.get('content-location')))
  const jobs = await Promise.all(urls.map((url) => finished(admin, url, PATIENCE_MS)))
  t.same(
    jobs.map(({ status }) => status),
    urls.map(() => 'completed'),
  )
  t.same(
    jobs.map(({ output }) => output.parameter[0].valueString),
    accepted.map(({ headers }) => headers.get('x-bot-run-id')),
  )
  const answer = await execute(admin, id, { until: 0 })
  t.equal(answer.status, 200, 'and the next run is as any other')
  await until(async () => (await async('active')) === 0, PATIENCE_MS)
})

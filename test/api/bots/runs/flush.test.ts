import { Redis } from 'ioredis'
import t from 'tap'
import { openBotica, until } from '../../../fixtures/botica.ts'
import { aBot, execute, finished, handler } from '../../../fixtures/bots/bots.ts'
import { aGate } from '../../../fixtures/bots/gates.ts'

const botica = await openBotica(t, { worker: true, env: { WORKER_CONCURRENCY: '2' } })
const { admin, services } = botica
const PATIENCE_MS = 90_000
const later = { Prefer: 'respond-async' }

t.test('executes accepted runs after Redis lost its data', async (t) => {
  // It computes while it waits, so that the others stay queued.
  const code = handler(`
    while (event.input.gate && !(await medplum.searchOne('Basic', 'identifier=' + event.input.gate))) {
      const end = Date.now() + 200
      while (Date.now() < end);
    }
    return event.runId`)
  const url = `${botica.baseUrl}fhir/StructureDefinition/bot-cpuMs`
  const extension = [{ url, valueInteger: 300_000 }]
  const id = await aBot(botica, code, { fields: { timeout: 300, extension } })
  const { gate, open } = aGate(admin)
  const accepted = await Promise.all(
    Array.from({ length: 12 }, () => execute(admin, id, { gate }, later)),
  )
  const async = async (state: string) =>
    (await services.queues.depths())['bots-async']?.[state] ?? 0
  await until(async () => (await async('active')) >= 2, PATIENCE_MS)
  const redis = new Redis(services.config.redisUrl)
  await redis.flushdb()
  redis.disconnect()
  t.equal(await async('prioritized'), 0)
  await open()

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
  const answer = await execute(admin, id)
  t.equal(answer.status, 200, 'runs the next one normally')
  await until(async () => (await async('active')) === 0, PATIENCE_MS)
})

/** Imports the prefix of the queue's keys, to watch the queue from another process. */
import { execFileSync } from 'node:child_process'
import { randomUUID } from 'node:crypto'
import t from 'tap'
import { PREFIX } from '../../../../shared/redis/script.ts'
import { openBotica, until } from '../../../fixtures/botica.ts'
import {
  aBot,
  deploy,
  execute,
  finished,
  handler,
  type Untyped,
} from '../../../fixtures/bots/bots.ts'
import { AT_GATE, aGate } from '../../../fixtures/bots/gates.ts'

const botica = await openBotica(t, { worker: 'process' })
const { admin } = botica
const { queues } = botica.services
const PATIENCE_MS = 90_000
const later = { Prefer: 'respond-async' }
const waiting = handler(`${AT_GATE}
  return event.runId`)
const patient = { timeout: 120 }
const limit = (name: string, valueInteger: number) => ({
  extension: [{ url: `${botica.baseUrl}fhir/StructureDefinition/bot-${name}`, valueInteger }],
})
const state = async (queue: 'bots-sync' | 'bots-async', name: string) =>
  (await queues.depths())[queue]?.[name] ?? 0

t.test('retries a failed asynchronous run as often as its bot specifies', async (t) => {
  const failing = handler(`
    await medplum.createResource({ resourceType: 'Basic', code: { text: event.runId } })
    if (event.attempt < event.input.good) throw new Error('attempt ' + event.attempt)
    return 'attempt ' + event.attempt`)
  const id = await aBot(botica, failing, { fields: limit('retry', 3) })
  const runs = [2, 9].map(async (good) => {
    const accepted = await execute(admin, id, { good }, later)
    const job = await finished(admin, accepted.headers.get('content-location'), PATIENCE_MS)
    return { job, runId: accepted.headers.get('x-bot-run-id') }
  })
  const [mended, hopeless] = await Promise.all(runs)
  t.equal(mended?.job.status, 'completed')
  t.match(mended?.job.output.parameter[0], { valueString: 'attempt 2' })
  t.equal(hopeless?.job.status, 'error')
  t.match(hopeless?.job.output.parameter[0].resource.issue[0].details.text, 'attempt 3')
  const made = await admin.get<Untyped>('Basic?_count=100')
  const texts = made.body.entry.map(({ resource }: Untyped) => resource.code.text)
  t.equal(texts.filter((text: string) => text === hopeless?.runId).length, 3, 'under one run id')
  t.equal(
    (await execute(admin, id, { good: 2 })).status,
    400,
    'answers a waiting caller immediately',
  )
})

t.test('runs equal requests with one Idempotency-Key once', async (t) => {
  const id = await aBot(botica, handler('return event.runId'))
  const sync = { 'Idempotency-Key': randomUUID() }
  const first = await execute(admin, id, { a: 1 }, sync)
  const again = await execute(admin, id, { a: 1 }, sync)
  t.equal(again.text, first.text)
  t.equal(again.headers.get('x-bot-run-id'), first.headers.get('x-bot-run-id'))
  t.equal((await execute(admin, id, { a: 2 }, sync)).status, 422)
  const async = { ...later, 'Idempotency-Key': randomUUID() }
  const [one, two] = [await execute(admin, id, {}, async), await execute(admin, id, {}, async)]
  t.equal(one.status, 202)
  t.equal(two.status, 202)
  t.equal(two.headers.get('content-location'), one.headers.get('content-location'))
})

t.test('cancels a queued run', async (t) => {
  const id = await aBot(botica, waiting, { fields: { ...limit('maxConcurrency', 1), ...patient } })
  const { gate } = aGate(admin)
  const accept = async (input: object) =>
    String((await execute(admin, id, input, later)).headers.get('content-location'))
  const [running, held] = [await accept({ gate }), await accept({})]
  await until(async () => (await state('bots-async', 'active')) === 2, PATIENCE_MS)
  t.equal((await admin.del(held)).status, 202)
  t.match((await admin.get(held)).body, { status: 'cancelled' })
  await until(async () => (await state('bots-async', 'active')) === 1, PATIENCE_MS)
  const next = await accept({})
  t.equal((await admin.del(running)).status, 202)
  t.match(await finished(admin, next), { status: 'completed' })
  t.match((await admin.get(held)).body, { status: 'cancelled' })
})

t.test('ends a called bot when a limit ends the calling run', async (t) => {
  const inner = await aBot(
    botica,
    handler(`await medplum.createResource({ resourceType: 'Basic', code: { text: event.input.key } })
      await new Promise(() => {})`),
    { fields: { timeout: 300 } },
  )
  const outer = await aBot(
    botica,
    handler(`void medplum.executeBot('${inner}', event.input, 'application/json').catch(() => {})
      while (!(await medplum.searchOne('Basic', { 'code:text': event.input.key }))) {
        await new Promise((resolve) => setTimeout(resolve, 200))
      }
      for (;;);`),
    { fields: { timeout: 300, ...limit('cpuMs', 3000) } },
  )
  // On a busy machine that much CPU takes longer than a caller may wait.
  const accepted = await execute(admin, outer, { key: randomUUID() }, later)
  const cut = await finished(admin, accepted.headers.get('content-location'), 240_000)
  t.match(cut.output.parameter[0].resource, { issue: [{ code: 'too-costly' }] })
  let told: Untyped[] = []
  await until(async () => {
    told = (await admin.get<Untyped>(`Bot/${inner}/$runs`)).body.parameter ?? []
    return told.length > 0
  }, PATIENCE_MS)
  t.match(
    told[0].part.find(({ name }: Untyped) => name === 'status'),
    { valueCode: 'cancelled' },
  )
})

t.test('redirects waiting callers to the status URL on shutdown', async (t) => {
  const id = await aBot(botica, waiting, { fields: patient })
  const { gate, open } = aGate(admin)
  const asked = execute(admin, id, { gate })
  await until(async () => (await state('bots-sync', 'active')) === 1, PATIENCE_MS)
  queues.detachWaitingCallers()
  const answer = await asked
  t.equal(answer.status, 202)
  await open()
  const job = await finished(admin, answer.headers.get('content-location'))
  t.match(job.output.parameter[0], { valueString: answer.headers.get('x-bot-run-id') })
})

t.test('runs one version in each run during a deploy under load', async (t) => {
  const code = (n: number) => `const before = ${n}
    let runs = 0
    exports.handler = async (medplum, event) => {
      await new Promise((resolve) => setTimeout(resolve, 20))
      runs++
      const after = ${n}
      return { before, after, input: event.input.n }
    }`
  const id = await aBot(botica, code(0))
  const found: { readonly asked: number; readonly before: number; readonly after: number }[] = []
  let deployed = 0
  let isOver = false
  const callers = Array.from({ length: 8 }, async () => {
    while (!isOver) {
      const asked = deployed
      const { status, body, text } = await execute(admin, id, { n: asked })
      if (status !== 200) throw new Error(`${status} ${text}`)
      found.push({ asked, ...body })
    }
  })
  for (let n = 1; n <= 6; n++) {
    await deploy(admin, id, code(n))
    // A deployed version is in use within a second; then the callers know of it.
    await until(async () => found.some(({ after }) => after === n), PATIENCE_MS)
    deployed = n
  }
  isOver = true
  await Promise.all(callers)
  const halves = found.filter(({ before, after }) => before !== after)
  t.same(halves, [], 'no run sees two versions')
  const stale = found.filter(({ asked, after }) => after < asked)
  t.same(stale, [], 'the new version stays in use')
  t.ok(new Set(found.map(({ after }) => after)).size >= 6)
})

t.test('returns a reply that arrives while web is busy beyond the wait', async (t) => {
  const id = await aBot(botica, waiting, { fields: patient })
  const { gate, open } = aGate(admin)
  await execute(admin, id)
  const over = Date.now() + 10_500
  const asked = execute(admin, id, { gate }, { Prefer: 'wait=10' })
  await until(async () => (await state('bots-sync', 'active')) === 1, PATIENCE_MS)
  await open()
  // This process is web: it reads the worker's reply only after the run and the wait have ended.
  const code = `import { Queue } from 'bullmq'
    const queue = new Queue('bots-sync', { connection: { url: process.argv[1] }, prefix: '${PREFIX}' })
    while ((await queue.getActiveCount()) > 0);
    await queue.close()`
  const { redisUrl } = botica.services.config
  execFileSync(process.execPath, ['--input-type=module', '--eval', code, redisUrl])
  while (Date.now() < over);
  t.equal((await asked).status, 200)
})

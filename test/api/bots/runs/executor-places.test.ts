import { availableParallelism } from 'node:os'
import t from 'tap'
import { until } from '../../../fixtures/botica.ts'
import { aRun, handler, openTestExecutors, run } from '../../../fixtures/bots/runs.ts'

const PATIENCE_MS = 60_000
const wallMs = 120_000
const limits = { wallMs, cpuMs: wallMs, memoryMb: 64, resultBytes: 1e6, logBytes: 1e5 }
const executors = await openTestExecutors(t)
const pausing = aRun(
  handler('await new Promise((resolve) => setTimeout(resolve, event.input.ms))'),
  { limits },
)
const waiting = aRun(handler(`await fetch('http://x/')`), { limits })

function aHeldHost() {
  const opened = Promise.withResolvers<void>()
  const host = async () => {
    await opened.promise
    return JSON.stringify({ status: 200, headers: {}, body: '' })
  }
  return { host, open: opened.resolve }
}

t.test('gives slots of waiting runs to others', async (t) => {
  const isolates = () => executors.stats().isolates
  const { host, open } = aHeldHost()
  const runs = Array.from({ length: 20 }, () => run(executors, waiting, host))
  await until(async () => executors.stats().running === 20, PATIENCE_MS)
  t.equal(executors.stats().waiting, 0)
  open()
  t.ok((await Promise.all(runs)).every(({ status }) => status === 'ok'))
  await until(async () => isolates() > 0 && isolates() <= 5, PATIENCE_MS)
  t.pass('drops idle isolates except a few')
})

t.test('evicts idle isolates for bots with many runs', async (t) => {
  const own = await openTestExecutors(t, { memoryMb: 468 })
  const bots = Array.from({ length: 16 }, (_, n) => ({ ...waiting, botKey: `Bot/${n}` }))
  const first = aHeldHost()
  const fill = bots.flatMap((bot) => Array.from({ length: 4 }, () => run(own, bot, first.host)))
  await until(async () => own.stats().running === 64, PATIENCE_MS)
  first.open()
  await Promise.all(fill)
  await until(async () => own.stats().isolates === 64, PATIENCE_MS)

  const second = aHeldHost()
  const runs = Array.from({ length: 64 }, () => run(own, waiting, second.host))
  const most = async () => own.stats().isolates > 64 && own.stats().isolates <= 96
  await until(async () => own.stats().running === 64 && (await most()), PATIENCE_MS)
  second.open()
  t.ok((await Promise.all(runs)).every(({ status }) => status === 'ok'))
})

t.test('reserves slots for called bots', async (t) => {
  const own = await openTestExecutors(t, { runsPerExecutor: 3 })
  const echo = aRun(handler('return 1'), { limits, depth: 1 })
  const caller = aRun(handler(`return await medplum.get('fhir/R4/Basic/1').catch(String)`), {
    limits,
  })
  const host = async () => {
    const { body } = await run(own, echo)
    return JSON.stringify({ status: 200, headers: {}, body })
  }
  const results = await Promise.all(Array.from({ length: 6 }, () => run(own, caller, host)))
  t.ok(results.every(({ status, body }) => status === 'ok' && body === '1'))
})

t.test('makes room for another project when one is always busy', async (t) => {
  const own = await openTestExecutors(t, { maxExecutors: 1 })
  let isServed = false
  const loop = async () => {
    while (!isServed) await run(own, { ...pausing, input: '{"ms":50}' })
  }
  const crowd = Promise.all([loop(), loop(), loop()])
  await until(async () => own.stats().running > 0, PATIENCE_MS)
  const other = await run(own, { ...pausing, projectId: 'project-2', input: '{"ms":0}' })
  isServed = true
  await crowd
  t.equal(other.status, 'ok')
})

t.test('uses no CPU in a run that waits for a processor', async (t) => {
  const cores = availableParallelism()
  const own = await openTestExecutors(t)
  const busy = aRun(handler('let n = 0; while (n < 5e7) n++; return n'), { limits })
  await run(own, busy)
  const from = Date.now()
  const results = await Promise.all(Array.from({ length: 8 * cores }, () => run(own, busy)))
  const possibleMs = (Date.now() - from) * cores
  t.ok(results.every(({ status }) => status === 'ok'))
  const usedMs = results.reduce((sum, { cpuMs }) => sum + cpuMs, 0)
  t.ok(usedMs <= 1.2 * possibleMs, `uses ${usedMs} ms of ${possibleMs} possible`)
})

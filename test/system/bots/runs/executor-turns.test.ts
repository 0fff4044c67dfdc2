/**
 * Projects take turns in the executors of a worker; a slow start rejects no run. Imports the executors, to start
 * them slowly.
 */
import { availableParallelism } from 'node:os'
import t from 'tap'
import { defaultMemoryMb } from '../../../../shared/core/config/config.ts'
import { ExecutorProcess } from '../../../../worker/bots/executor-process.ts'
import { executorsWithin } from '../../../../worker/bots/executors.ts'
import { until } from '../../../fixtures/botica.ts'
import { aRun, handler, limits, openTestExecutors, run } from '../../../fixtures/bots/runs.ts'

const PATIENCE_MS = 60_000
/** Longer than the wait before a project takes an executor of another. */
const SLOW_MS = 800
const MOST = 8
const GB = 2 ** 30

const echo = aRun(handler('return event.input'))
const waiting = aRun(handler(`return await fetch('http://x/').then(String)`), { limits })

function slowStarts() {
  let count = 0
  const start = () => {
    count++
    const one = new ExecutorProcess()
    process.kill(one.pid, 'SIGSTOP')
    setTimeout(() => one.isAlive && process.kill(one.pid, 'SIGCONT'), SLOW_MS)
    return one
  }
  return { start, count: () => count }
}

const refused = {
  answer: async () => JSON.stringify({ error: 'Nobody answers' }),
  hasWritten: false,
}
const aCall = (n: number) => ({ ...echo, projectId: `project-${n}` })

t.test(
  'takes one start and one retirement for a call of a project without an executor',
  async (t) => {
    const { start, count } = slowStarts()
    const own = await openTestExecutors(t, { maxExecutors: MOST, spares: 0, start })
    for (let n = 0; n < 12; n++) t.equal((await run(own, aCall(n))).status, 'ok')
    t.equal(count(), 12)
    t.equal(own.stats().executors, MOST)
    await until(async () => own.stats().deaths.closed === 12 - MOST, PATIENCE_MS)

    for (const n of [11, 3, 1]) t.equal((await run(own, aCall(n))).status, 'ok')
    t.equal(count(), 12, 'others keep theirs, and the last project has a separate one')
  },
)

t.test('reuses executors for most calls of more projects than executors', async (t) => {
  let count = 0
  const start = () => {
    count++
    return new ExecutorProcess()
  }
  const own = await openTestExecutors(t, { maxExecutors: MOST, spares: 0, start })
  for (const starts of [12, 17, 22]) {
    for (let n = 0; n < 12; n++) t.equal((await run(own, aCall(n))).status, 'ok')
    t.equal(count, starts)
  }
})

t.test('serves projects that call together with few starts', async (t) => {
  const { start, count } = slowStarts()
  const own = await openTestExecutors(t, { maxExecutors: MOST, spares: 0, start })
  const calls = Array.from({ length: 12 }, (_, n) => run(own, aCall(n)))
  t.ok((await Promise.all(calls)).every(({ status }) => status === 'ok'))
  t.equal(count(), 12)
  t.ok(own.stats().executors <= MOST)
})

t.test('starts executors for many projects gradually, and releases slots meanwhile', async (t) => {
  let starting = 0
  let most = 0
  const start = () => {
    const one = new ExecutorProcess()
    most = Math.max(most, ++starting)
    void one.ready.then(() => starting--)
    return one
  }
  const own = await openTestExecutors(t, { maxExecutors: MOST, spares: 0, start })
  const told: boolean[] = []
  const calls = Array.from({ length: MOST }, (_, n) =>
    own.run(aCall(n), refused, new AbortController().signal, (isIdle) => told.push(isIdle)),
  )
  t.same(told, Array(MOST).fill(true), 'a run without an executor is parked')
  t.ok((await Promise.all(calls)).every(({ status }) => status === 'ok'))
  t.equal(told.filter((isIdle) => !isIdle).length, MOST, 'until it has one')
  t.ok(most <= Math.max(2, availableParallelism()))
})

t.test('keeps busy executors while another starts', async (t) => {
  const { start, count } = slowStarts()
  const own = await openTestExecutors(t, { maxExecutors: 3, spares: 0, start })
  const gate = Promise.withResolvers<void>()
  const host = async () => {
    await gate.promise
    return JSON.stringify({ status: 200, headers: {}, body: '' })
  }
  const busy = [1, 2].map((n) => run(own, { ...waiting, projectId: `busy-${n}` }, host))
  await until(async () => own.stats().running === 2, PATIENCE_MS)
  t.equal((await run(own, aCall(1))).status, 'ok')
  t.equal((await run(own, aCall(2))).status, 'ok', 'replaces the idle one')
  t.equal(own.stats().executors, 3)
  t.equal(count(), 4)
  gate.resolve()
  t.ok((await Promise.all(busy)).every(({ status }) => status === 'ok'))
})

t.test('keeps as many executors as the memory of a worker allows', (t) => {
  t.equal(executorsWithin(64), 2, 'at least two')
  t.ok(executorsWithin(512) >= 12)
  t.ok(executorsWithin(2048) >= 135)
  t.equal(defaultMemoryMb(32 * GB, 0), 8192, 'at most')
  t.equal(defaultMemoryMb(2 * GB, 0), 1024, 'half of a machine')
  t.equal(defaultMemoryMb(2 * GB, 2 ** 60), 1024, 'an unlimited limit')
  t.equal(defaultMemoryMb(8 * GB, GB / 2), 512, 'all of a container')
  t.end()
})

t.test('ends idle executors over the memory limit of a worker, except two', async (t) => {
  const own = await openTestExecutors(t, { maxExecutors: 4, memoryMb: 1 })
  await Promise.all([1, 2, 3, 4].map((n) => run(own, aCall(n))))
  await until(async () => own.stats().executors === 2, PATIENCE_MS)
  t.equal((await run(own, aCall(1))).status, 'ok')
})

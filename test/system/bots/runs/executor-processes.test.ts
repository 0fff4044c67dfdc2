/**
 * Sharing, crashes and shutdown of executor processes. Imports the process of an executor, to kill it at chosen
 * moments.
 */
import { spawn } from 'node:child_process'
import { once } from 'node:events'
import { existsSync, readdirSync, readFileSync } from 'node:fs'
import { getPriority } from 'node:os'
import { setTimeout as delay } from 'node:timers/promises'
import t from 'tap'
import { ExecutorProcess } from '../../../../worker/bots/executor-process.ts'
import {
  aRun,
  failureText,
  handler,
  limits,
  openTestExecutors,
  run,
} from '../../../fixtures/bots/runs.ts'

const echo = aRun(handler('return event.input'))

const PATIENCE_MS = 60_000

async function until(isTrue: () => boolean, patienceMs = PATIENCE_MS): Promise<void> {
  const deadline = Date.now() + patienceMs
  while (!isTrue()) {
    if (Date.now() > deadline) throw new Error(`Never true: ${isTrue}`)
    await delay(10)
  }
}

function isZombie(pid: number): boolean {
  try {
    return / Z /.test(readFileSync(`/proc/${pid}/stat`, 'utf8'))
  } catch {
    return true
  }
}

function childPids(parent = process.pid): number[] {
  return readdirSync('/proc')
    .filter((name) => /^\d+$/.test(name))
    .filter((pid) => {
      try {
        const fields = readFileSync(`/proc/${pid}/stat`, 'utf8').split(') ')[1]?.split(' ')
        return fields?.[1] === String(parent)
      } catch {
        return false
      }
    })
    .map(Number)
}

function listThreads(pid: number): number[] {
  try {
    return readdirSync(`/proc/${pid}/task`).map(Number)
  } catch {
    return []
  }
}

function readPriority(thread: number): number | undefined {
  try {
    return getPriority(thread)
  } catch {
    return undefined
  }
}

/** Returns a start function that records executors, so that a test knows which one runs bots. */
function watchedExecutors(): { readonly start: () => ExecutorProcess; busy(): ExecutorProcess[] } {
  const started: ExecutorProcess[] = []
  const start = () => {
    const executor = new ExecutorProcess()
    started.push(executor)
    return executor
  }
  return { start, busy: () => started.filter(({ active }) => active.size > 0) }
}

t.test(
  'counts no CPU time while a run has no core',
  { skip: process.platform !== 'linux' },
  async (t) => {
    const { start, busy } = watchedExecutors()
    const executors = await openTestExecutors(t, { spares: 1, start })
    const cpuMs = 1500
    const bot = aRun(
      handler(`const end = Date.now() + ${2 * cpuMs}
      await medplum.readResource('Patient', '1').catch(() => {})
      while (Date.now() < end);
      return 'ended'`),
      { limits: { ...limits, cpuMs } },
    )
    const ended = new AbortController()
    let stopped: Promise<void> | undefined
    const result = await run(executors, bot, async () => {
      for (const { pid } of busy()) stopped = stopAgain(pid, ended.signal)
      return JSON.stringify({ error: 'Nobody answers' })
    })
    ended.abort()
    await stopped
    t.match(result, { status: 'ok', body: 'ended' })
  },
)

/** Suspends the process for most of the time, each time too briefly to miss a heartbeat. */
async function stopAgain(pid: number, signal: AbortSignal): Promise<void> {
  while (!signal.aborted) {
    process.kill(pid, 'SIGSTOP')
    await delay(700)
    process.kill(pid, 'SIGCONT')
    await delay(100)
  }
}

t.test('repeats runs without effects, and no others, when an executor dies', async (t) => {
  const { start, busy } = watchedExecutors()
  const own = await openTestExecutors(t, { spares: 1, start })
  const asked = new Set<string>()
  // The first call has no response before its caller ends.
  const host = (name: string) => async () => {
    if (asked.has(name)) return JSON.stringify({ status: 200, headers: {}, body: '' })
    asked.add(name)
    return new Promise<string>(() => {})
  }
  const reader = aRun(handler('await fetch("http://x/r"); return "read"'))
  const writer = aRun(handler('await fetch("http://x/w", { method: "POST" }); return "written"'))
  await run(own, echo)
  const runs = Promise.all([run(own, reader, host('reader')), run(own, writer, host('writer'))])
  await until(() => asked.size === 2)
  // The spare survives and runs the repetitions.
  for (const { pid } of busy()) process.kill(pid, 'SIGKILL')
  const [read, written] = await runs

  t.match(read, { status: 'ok', body: 'read' })
  t.match(written, { status: 'error', failure: 'interrupted' })
  t.match(failureText(written), /^Bot run interrupted/)
  t.equal((await run(own, echo)).status, 'ok')
})

t.test('isolates a bot version that killed two executors until the next deploy', async (t) => {
  const own = await openTestExecutors(t, { spares: 1 })
  // A top level that throws a proxy blocks its thread forever, so only a kill ends it.
  const code = 'throw new Proxy({}, { get() { for (;;); } }); export const handler = 1'
  const killer = aRun(code, { format: 'module' })
  const attack = (wallMs: number) => run(own, { ...killer, limits: { ...limits, wallMs } })
  for (const kills of [1, 2]) {
    const hasKilled = () => own.stats().deaths.closed + own.stats().deaths.timeout >= kills
    // On a busy machine the time may end before the code starts.
    for (let wallMs = 300; !hasKilled() && wallMs < PATIENCE_MS; wallMs *= 3) {
      const hostile = attack(wallMs)
      t.equal((await run(own, echo)).status, 'ok')
      t.equal((await hostile).failure, 'timeout')
      await until(hasKilled, 10_000).catch(() => undefined)
    }
  }
  t.equal(own.stats().heldVersions, 1)

  const hostile = attack(1000)
  await until(() => own.stats().quarantined === 1)
  t.equal((await run(own, echo)).status, 'ok')
  t.equal((await hostile).failure, 'timeout')
})

t.test('lowers the priority of an executor with high CPU use', async (t) => {
  const before = new Set(childPids())
  const own = await openTestExecutors(t, { spares: 1 })
  const controller = new AbortController()
  const endless = { ...limits, wallMs: 300_000, cpuMs: 300_000 }
  const busy = aRun(handler('for (;;);'), { projectId: 'busy', limits: endless })
  await run(own, { ...echo, projectId: 'quiet' })
  const ended = run(own, busy, undefined, controller.signal)

  const isBehind = (thread: number) => readPriority(thread) === Math.min(getPriority() + 5, 19)
  const behind = () =>
    childPids().filter((pid) => !before.has(pid) && listThreads(pid).some(isBehind))
  await until(() => behind().length > 0)
  const [pid = 0] = behind()
  t.equal(behind().length, 1)
  const others = () => listThreads(pid).filter((thread) => thread !== pid)
  await until(() =>
    others().every((thread) => isBehind(thread) || readPriority(thread) === undefined),
  )
  t.equal(getPriority(pid), getPriority(), 'all threads but the dispatcher')
  controller.abort()
  t.match(await ended, { failure: 'cancelled' })
})

t.test('takes turns between projects over the cap', async (t) => {
  const own = await openTestExecutors(t, { spares: 1, maxExecutors: 2 })
  const runs = Array.from({ length: 6 }, (_, i) => run(own, { ...echo, projectId: `project-${i}` }))
  const results = await Promise.all(runs)
  t.ok(results.every(({ status }) => status === 'ok'))
  t.ok(own.stats().executors <= 2)
})

t.test('ends every process on close', async (t) => {
  const before = new Set(childPids())
  const own = await openTestExecutors(t, { spares: 2 })
  const endless = { ...limits, wallMs: 300_000, cpuMs: 300_000 }
  const hanging = run(own, aRun(handler('for (;;);'), { limits: endless }))
  await run(own, echo)
  const started = childPids().filter((pid) => !before.has(pid))
  t.ok(started.length >= 2)
  await own.close()
  t.match(await hanging, { status: 'error', failure: 'interrupted' })
  await until(() => started.every((pid) => !existsSync(`/proc/${pid}`) || isZombie(pid)))
})

t.test('waits for an executor that starts slowly', async (t) => {
  const slow = new ExecutorProcess()
  t.teardown(() => slow.kill({ cause: 'closed' }))
  process.kill(slow.pid, 'SIGSTOP')
  // Longer than the silence that ends a started executor.
  await delay(3500)
  slow.check()
  t.ok(slow.isAlive)
  process.kill(slow.pid, 'SIGCONT')
  await slow.ready
})

t.test('ends an executor with its worker', async (t) => {
  const fixture = new URL('../../../fixtures/bots/runs.ts', import.meta.url)
  const code = `
    import { aRun, handler, openTestExecutors, run } from ${JSON.stringify(fixture.href)}
    const executors = await openTestExecutors({ teardown() {} }, { spares: 1 })
    void run(executors, aRun(handler('for (;;);')))
    await run(executors, aRun(handler('return 1')))
    process.kill(process.pid, 'SIGKILL')`
  const worker = spawn(process.execPath, ['--input-type=module', '--eval', code])
  let children: number[] = []
  const watch = setInterval(() => {
    const found = childPids(worker.pid)
    if (found.length > 0) children = found
  }, 5)
  const [, signal] = await once(worker, 'exit')
  clearInterval(watch)

  t.equal(signal, 'SIGKILL')
  t.ok(children.length > 0)
  await until(() => children.every((pid) => !existsSync(`/proc/${pid}`) || isZombie(pid)))
})

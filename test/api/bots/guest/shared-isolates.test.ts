/**
 * Concurrent, separated runs of a bot with `bot-concurrent` in one isolate. Imports the types of runs, which the
 * executor receives without a service.
 */
import t, { type Test } from 'tap'
import type { BotRun, HostCall } from '../../../../worker/bots/run-result.ts'
import { until } from '../../../fixtures/botica.ts'
import { aRun, failureText, handler, openTestExecutors, run } from '../../../fixtures/bots/runs.ts'

const PATIENCE_MS = 60_000
const WALL = { wallMs: 120_000, cpuMs: 60_000, memoryMb: 32, resultBytes: 65_536, logBytes: 65_536 }
const MANY = 20

/** Bot that executes its input: it waits for the gate, then returns its observations. */
const CODE = handler(`
  globalThis.mine = (globalThis.mine ?? []).concat(event.input.name)
  console.log('log of ' + event.input.name)
  if (event.input.write) await medplum.createResource({ resourceType: 'Basic', code: {} })
  if (event.input.prototype) {
    Object.prototype.planted = event.input.name
    Array.prototype.map = () => 'planted'
    Promise.prototype.then = () => { throw new Error('planted') }
  }
  if (event.input.does === 'wait') await fetch('http://gate/').then((reply) => reply.text())
  if (event.input.does === 'throw') throw new Error('thrown by ' + event.input.name)
  if (event.input.does === 'spin') for (;;);
  if (event.input.does === 'spin later') { await null; for (;;); }
  if (event.input.does === 'fill') { const kept = []; for (;;) kept.push(new Array(1000).fill({})) }
  if (event.input.does === 'forge') throw new Error('Isolate was disposed during execution due to memory limit')
  if (event.input.does === 'reject') Promise.reject(new Error('left alone'))
  return { name: event.input.name, secret: event.secrets.KEY.valueString, mine: globalThis.mine, planted: {}.planted ?? null, mapped: [1].map((n) => n + 1) }`)

interface Doing {
  readonly name: string
  readonly does?: string
  readonly write?: boolean
  readonly prototype?: boolean
}

function doing(input: Doing, changes: Partial<BotRun> = {}): BotRun {
  const secrets = { KEY: { name: 'KEY', valueString: `secret of ${input.name}` } }
  const context = { baseUrl: 'http://x/' }
  return {
    ...aRun(CODE, { limits: WALL, concurrent: true, input: JSON.stringify(input) }),
    event: JSON.stringify({ contentType: 'application/json', context, secrets }),
    ...changes,
  }
}

function aHeldHost() {
  const opened = Promise.withResolvers<void>()
  const asked: string[] = []
  const host = async ({ kind }: HostCall) => {
    asked.push(kind)
    if (kind === 'fetch') await opened.promise
    return JSON.stringify({
      status: 200,
      statusText: 'OK',
      url: 'http://gate/',
      headers: {},
      body: '{}',
    })
  }
  return { host, asked, open: opened.resolve }
}

const names = (count: number) => Array.from({ length: count }, (_, n) => `run ${n}`)

async function open(t: Test) {
  const executors = await openTestExecutors(t)
  const gate = aHeldHost()
  const waiting = names(MANY).map((name) =>
    run(executors, doing({ name, does: 'wait' }), gate.host),
  )
  await until(async () => gate.asked.length === MANY, PATIENCE_MS)
  const neighbours = async () => {
    gate.open()
    return (await Promise.all(waiting)).map(({ status, body, log }) => {
      return status === 'ok' ? { ...JSON.parse(body), log } : body
    })
  }
  return { executors, gate, neighbours }
}

function checkAlone(t: Test, results: readonly { name: string; mine: string[]; log: string }[]) {
  for (const [n, name] of names(MANY).entries()) {
    t.match(
      results[n],
      { name, secret: `secret of ${name}`, mine: [name], planted: null, mapped: [2] },
      'has separate globals',
    )
    t.match(results[n]?.log, new RegExp(`log of ${name}\\n?$`), 'has a separate log')
  }
}

t.test('separates event, secrets, log, globals and result of each run', async (t) => {
  const { executors, neighbours } = await open(t)
  t.equal(executors.stats().executors, 1)
  checkAlone(t, await neighbours())
})

t.test('separates prototypes changed by a run', async (t) => {
  const { executors, gate, neighbours } = await open(t)
  const planter = doing({ name: 'planter', does: 'throw', prototype: true })
  t.equal((await run(executors, planter, gate.host)).status, 'error')
  checkAlone(t, await neighbours())
})

for (const [does, text] of [
  ['throw', /^thrown by attacker$/],
  ['forge', /^Isolate was disposed during execution due to memory limit$/],
  ['spin', /^Bot computed for more than 2 s at a time$/],
  ['spin later', /^Bot computed for more than 2 s at a time$/],
  // V8 collects garbage for long before it gives up; a busy machine ends the executor first.
  [
    'fill',
    /^Bot (exceeded memory limit of 32 MB|computed for more than 2 s at a time|executor crashed)$/,
  ],
] as const) {
  t.test(`ends a run that does '${does}' alone`, async (t) => {
    const { executors, gate, neighbours } = await open(t)
    const attack = run(executors, doing({ name: 'attacker', does }), gate.host)
    // If the executor ends, each run is repeated alone and must not wait for a later one.
    if (does === 'fill') gate.open()
    const result = await attack
    t.equal(result.status, 'error')
    t.match(failureText(result), text)
    checkAlone(t, await neighbours())
  })
}

t.test('does not repeat a run that has written when another crashes the isolate', async (t) => {
  const executors = await openTestExecutors(t)
  const gate = aHeldHost()
  const writer = run(executors, doing({ name: 'writer', does: 'wait', write: true }), gate.host)
  const reader = run(executors, doing({ name: 'reader', does: 'wait' }), gate.host)
  await until(async () => gate.asked.filter((kind) => kind === 'fetch').length === 2, PATIENCE_MS)
  let isOver = false
  const attack = run(executors, doing({ name: 'attacker', does: 'fill' }), gate.host).finally(
    () => {
      isOver = true
    },
  )
  const hasDied = () => Object.values(executors.stats().deaths).some((times) => times > 0)
  // If the executor ends, each run is repeated alone and must not wait for a later one.
  await until(async () => isOver || hasDied(), PATIENCE_MS)
  gate.open()
  const attacked = failureText(await attack)
  const written = await writer
  // On a slow machine the attacker times out before it fills the memory, or the executor ends first.
  const isGone = hasDied() || /memory|crashed/.test(attacked)
  // The heap may still be full, so the next run in it may fail.
  if (isGone || written.status !== 'ok') t.match(failureText(written), /^Bot run interrupted/)
  t.equal((await reader).status, 'ok')
  t.equal(gate.asked.filter((kind) => kind === 'fhir').length, 1)
})

t.test('uses separate isolates for other memberships and bots', async (t) => {
  const { executors, gate, neighbours } = await open(t)
  const others = [{ identity: 'membership-2' }, { botKey: 'Bot/other' }]
  const results = await Promise.all(
    others.map((other) => run(executors, doing({ name: 'other' }, other), gate.host)),
  )
  t.ok(results.every(({ body }) => JSON.parse(body).mine.length === 1))
  checkAlone(t, await neighbours())
})

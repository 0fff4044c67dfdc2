import t from 'tap'
import {
  aRun,
  failureText,
  handler,
  limits,
  openTestExecutors,
  run,
} from '../../../fixtures/bots/runs.ts'

const executors = await openTestExecutors(t)

const echo = aRun(handler('return event.input'))

t.test('converts the result of a handler to text by kind', async (t) => {
  const cases: readonly [string, string, string][] = [
    ['return undefined', 'undefined', ''],
    ['return null', 'json', 'null'],
    ['return 42', 'json', '42'],
    ['return true', 'json', 'true'],
    ['return "text"', 'string', 'text'],
    ['return [1, { a: "é" }]', 'json', '[1,{"a":"é"}]'],
    ['return { resourceType: "Patient" }', 'json', '{"resourceType":"Patient"}'],
    [
      'return { resourceType: "OperationOutcome" }',
      'outcome',
      '{"resourceType":"OperationOutcome"}',
    ],
    ['return Hl7Message.parse("MSH|^~\\\\&|A\\rPID|1")', 'hl7', 'MSH|^~\\&|A\rPID|1'],
  ]
  for (const [body, kind, text] of cases) {
    t.match(await run(executors, aRun(handler(body))), { status: 'ok', kind, body: text }, body)
  }
})

t.test('passes each kind of input in its format', async (t) => {
  const of = async (
    inputKind: 'text' | 'json' | 'form' | 'hl7' | 'bytes' | 'none',
    input?: string,
  ) => {
    const code = handler(
      'return [event.input?.constructor?.name ?? typeof event.input, event.input]',
    )
    const result = await run(executors, aRun(code, { inputKind, input }))
    return JSON.parse(result.body)
  }
  t.same(await of('text', 'hi'), ['String', 'hi'])
  t.same(await of('json', '[1]'), ['Array', [1]])
  t.same(await of('form', 'a=1&b=2&b=%20'), ['Object', { a: '1', b: ['2', ' '] }])
  t.same(await of('bytes', 'AQID'), ['Uint8Array', { 0: 1, 1: 2, 2: 3 }])
  t.same(await of('none'), ['Object', {}])
  t.equal((await of('hl7', 'MSH|^~\\&|A'))[0], 'Hl7Message')
})

t.test('supports both module systems and all forms of export', async (t) => {
  const codes: readonly [string, 'commonjs' | 'module'][] = [
    ['module.exports.handler = async () => "yes"', 'commonjs'],
    ['module.exports = async () => "yes"', 'commonjs'],
    [
      'const { getReferenceString } = require("@medplum/core"); exports.handler = () => getReferenceString && "yes"',
      'commonjs',
    ],
    ['export const handler = async () => "yes"', 'module'],
    ['export default async () => "yes"', 'module'],
    [
      'import { createHash } from "node:crypto"; import * as core from "@medplum/core"; export function handler() { return createHash && core.getReferenceString && "yes" }',
      'module',
    ],
    ['const wait = await Promise.resolve("yes"); export const handler = () => wait', 'module'],
    [
      'await new Promise((end) => setTimeout(end, 20)); export const handler = () => "yes"',
      'module',
    ],
  ]
  for (const [code, format] of codes) {
    const bot = aRun(code, { format })
    t.equal((await run(executors, bot)).body, 'yes', code)
    t.equal((await run(executors, bot)).body, 'yes', 'again when warm')
  }
})

t.test('reports failures with documented texts and the run id', async (t) => {
  const small = { ...limits, cpuMs: 60_000, resultBytes: 1024 * 1024, memoryMb: 16 }
  // The time to fill a heap or to get CPU depends on the machine.
  const times: Record<string, object> = { timeout: { wallMs: 1500 }, cpu: { cpuMs: 900 } }
  const cases: readonly [string, string, string, string][] = [
    ['throw new Error("no such thing")', 'thrown', 'invalid', 'no such thing'],
    ['throw "plain text"', 'thrown', 'invalid', 'plain text'],
    ['await new Promise(() => {})', 'timeout', 'timeout', 'Bot timed out after 1.5 s'],
    ['for (;;);', 'cpu', 'too-costly', 'Bot exceeded CPU limit of 0.9 s'],
    [
      'const a = []; for (;;) a.push({ a: [a.length] })',
      'memory',
      'too-costly',
      'Bot exceeded memory limit of 16 MB',
    ],
    [
      'return "x".repeat(1024 * 1024 + 1)',
      'result',
      'too-costly',
      'Bot result is larger than 1 MB',
    ],
    [
      'return 1n',
      'result',
      'invalid',
      'Bot result could not be serialized: Do not know how to serialize a BigInt',
    ],
    [
      'return () => 1',
      'result',
      'invalid',
      'Bot result could not be serialized: A function has no JSON form',
    ],
    [
      'return { toJSON() {} }',
      'result',
      'invalid',
      'Bot result could not be serialized: An object has no JSON form',
    ],
  ]
  for (const [body, failure, code, text] of cases) {
    const bot = aRun(handler(body), { limits: { ...small, ...times[failure] } })
    const result = await run(executors, bot)
    const [issue] = JSON.parse(result.body).issue
    t.match(result, { status: 'error', failure, kind: 'outcome' }, body)
    t.match(issue, { severity: 'error', code, details: { text }, diagnostics: bot.runId }, body)
  }
})

t.test('reports code that cannot be loaded with its position', async (t) => {
  t.match(
    failureText(await run(executors, aRun('const = 1'))),
    /Unexpected token '=' \[bot\.js:1:7\]/,
  )
  t.equal(failureText(await run(executors, aRun('exports.other = 1'))), 'Bot has no handler export')
  t.equal(failureText(await run(executors, aRun('require("fs")'))), "Cannot find module 'fs'")
  const esm = aRun('import fs from "fs"; export const handler = () => fs', { format: 'module' })
  t.equal(failureText(await run(executors, esm)), "Cannot find module 'fs'")
})

t.test('returns a thrown OperationOutcome, or that of an error', async (t) => {
  const outcome = '{ resourceType: "OperationOutcome", id: "gone", issue: [] }'
  for (const thrown of [outcome, `Object.assign(new Error("x"), { outcome: ${outcome} })`]) {
    const result = await run(executors, aRun(handler(`throw ${thrown}`)))
    t.match(result, { status: 'error', failure: 'thrown', kind: 'outcome' })
    t.same(JSON.parse(result.body), { resourceType: 'OperationOutcome', id: 'gone', issue: [] })
  }
  const odd = '{ resourceType: "OperationOutcome", issue: 5, message: "no list" }'
  for (const thrown of [odd, `Object.assign(new Error("no list"), { outcome: ${odd} })`]) {
    const result = await run(executors, aRun(handler(`throw ${thrown}`)))
    t.equal(failureText(result), 'no list')
  }
})

t.test('keeps order, levels, head and tail of the log, without secrets', async (t) => {
  const event = JSON.stringify({
    context: {},
    secrets: { KEY: { name: 'KEY', valueString: 'hunter2hunter2' } },
  })
  const lines = aRun(
    handler(
      'console.log("a", { b: [1] }); console.warn(event.secrets.KEY.valueString); console.error("c")',
    ),
    { event },
  )
  const { log } = await run(executors, lines)
  t.match(log, /^\S+Z INFO a \{"b":\[1\]\}\n\S+Z WARN \*\*\*\n\S+Z ERROR c\n$/)

  const flood = aRun(
    handler('for (let i = 0; i < 5000; i++) console.log("line", i, "x".repeat(20000))'),
    { limits: { ...limits, logBytes: 65_536 } },
  )
  const flooded = await run(executors, flood)
  t.equal(flooded.status, 'ok')
  t.ok(Buffer.byteLength(flooded.log) <= 65_536)
  t.match(flooded.log, /INFO line 0 /)
  t.match(flooded.log, /lines left out/)
  t.match(flooded.log, /INFO line 4999 /)

  const late = aRun(handler('console.log("before"); await new Promise(() => {})'))
  // On a busy machine the time may end before the code starts.
  for (let wallMs = 200; ; wallMs *= 4) {
    const { failure, log } = await run(executors, { ...late, limits: { ...limits, wallMs } })
    t.equal(failure, 'timeout')
    if (log === '' && wallMs < 60_000) continue
    t.match(log, /INFO before\n$/)
    break
  }
})

t.test('forwards host calls, at most 32 at a time', async (t) => {
  let inFlight = 0
  let most = 0
  const calls: string[] = []
  const bot = aRun(
    handler(
      'const all = Array.from({ length: 100 }, (_, i) => fetch("http://x/" + i)); await Promise.all(all); await fetch("http://x/", { method: "POST", body: "b" }); return all.length',
    ),
  )
  const result = await run(executors, bot, async ({ kind, payload }) => {
    calls.push(`${kind} ${JSON.parse(payload).method}`)
    most = Math.max(most, ++inFlight)
    await new Promise((resolve) => setImmediate(resolve))
    inFlight--
    return JSON.stringify({ status: 200, headers: {}, body: '' })
  })
  t.equal(result.body, '100', result.body)
  t.equal(calls.length, 101)
  t.ok(most > 1 && most <= 32, `has ${most} in flight`)
})

t.test('fails only the call whose answer is too large', async (t) => {
  const code =
    handler(`const read = (id) => medplum.readResource('Basic', id).catch((error) => error.message)
    return [await read('large'), (await read('small')).id]`)
  const result = await run(executors, aRun(code), async ({ payload }) => {
    const isLarge = JSON.parse(payload).path === 'Basic/large'
    if (isLarge) return 'x'.repeat(64 * 1024 * 1024)
    const body = JSON.stringify({ resourceType: 'Basic', id: 'small' })
    return JSON.stringify({ status: 200, headers: { 'content-type': 'application/json' }, body })
  })
  t.same(JSON.parse(result.body), ['The answer is too large', 'small'])
})

t.test('fails only a run whose input is too large', async (t) => {
  const input = JSON.stringify('x'.repeat(64 * 1024 * 1024))
  const result = await run(executors, { ...echo, input })
  t.equal(failureText(result), 'The input is too large')
  t.equal((await run(executors, echo)).body, '{"a":1}')
})

t.test('ends a cancelled run immediately, without affecting others', async (t) => {
  for (const body of ['await new Promise(() => {})', 'for (;;);']) {
    const controller = new AbortController()
    const bot = aRun(handler(body), { limits: { ...limits, cpuMs: limits.wallMs } })
    const hanging = run(executors, bot, undefined, controller.signal)
    t.equal((await run(executors, echo)).status, 'ok')
    const startedAt = Date.now()
    controller.abort()
    const result = await hanging
    t.match(result, { status: 'error', failure: 'cancelled' })
    t.equal(failureText(result), 'Bot run cancelled')
    t.ok(Date.now() - startedAt < limits.wallMs / 2, 'long before its limit')
    t.equal((await run(executors, echo)).status, 'ok')
  }
})

t.test('queues runs of a bot beyond its isolates', async (t) => {
  const bot = aRun(handler('await new Promise((r) => setTimeout(r, 20)); return "done"'))
  const results = await Promise.all(Array.from({ length: 20 }, () => run(executors, bot)))
  t.ok(results.every(({ body }) => body === 'done'))
})

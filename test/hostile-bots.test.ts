import t from 'tap'
import type { RunFailure } from '../worker/bots/run-result.ts'
import { aRun, handler, limits, openTestExecutors, run } from './fixtures/bot-runs.ts'

const WALL_MS = 1200
/** A second is promised; a busy machine may take longer to notice. */
const GRACE_MS = 5000
const short = { ...limits, wallMs: WALL_MS, memoryMb: 32 }

const executors = await openTestExecutors(t, { spares: 2 })

const neighbour = aRun(handler('return event.input'))
const stranger = aRun(handler('return event.input'), { projectId: 'project-2' })

/** Code, and the failures that it may end in: which limit strikes first depends on the machine. */
const cases: readonly [name: string, code: string, ...failures: (RunFailure | 'none')[]][] = [
  ['an endless loop', handler('for (;;);'), 'timeout'],
  ['an endless loop at the top level', 'for (;;);', 'timeout'],
  ['an endless loop of microtasks', handler('for (;;) await null'), 'timeout'],
  [
    'a microtask that queues itself',
    handler('const f = () => queueMicrotask(f); f(); await new Promise(() => {})'),
    'timeout',
  ],
  [
    'a catastrophic regular expression',
    handler('return /^(a+)+$/.test("a".repeat(40) + "b")'),
    'timeout',
  ],
  ['a deep recursion', handler('const f = () => f() + 1; return f()'), 'thrown'],
  [
    'a caught deep recursion in a loop',
    handler('const f = () => { try { f() } catch { f() } }; f()'),
    'timeout',
  ],
  ['a promise that never settles', handler('await new Promise(() => {})'), 'timeout'],
  [
    'a timer that never ends',
    handler('setInterval(() => {}, 1); await new Promise(() => {})'),
    'timeout',
  ],
  ['too many timers', handler('for (let i = 0; i < 101; i++) setTimeout(() => {}, 1e6)'), 'thrown'],
  [
    'a flood of promises',
    handler('const all = []; for (;;) all.push(new Promise(() => {}))'),
    'memory',
    'timeout',
    'crash',
  ],
  [
    'a flood of Map entries',
    handler('const m = new Map(); for (let i = 0; ; i++) m.set(i, { i })'),
    'memory',
    'timeout',
    'crash',
  ],
  [
    'a flood of strings',
    handler(
      'const all = []; for (let i = 0; ; i++) all.push(("x" + i).repeat(1e4).split("").join("y"))',
    ),
    'memory',
    'timeout',
    'crash',
  ],
  [
    'a flood of large buffers',
    handler('const all = []; for (;;) all.push(new Uint8Array(1e7).fill(1))'),
    'thrown',
    'memory',
  ],
  [
    'a huge filled array',
    handler('return new Array(2 ** 27).fill(0).length'),
    'memory',
    'crash',
    'timeout',
  ],
  [
    'a huge array from a length',
    handler('return Array.from({ length: 2 ** 31 }).length'),
    'thrown',
    'memory',
    'crash',
    'timeout',
  ],
  [
    'a flood of nested arrays',
    handler('const all = []; for (;;) all.push({ a: new Array(1000).fill(1.5), b: [all.length] })'),
    'memory',
    'crash',
    'timeout',
  ],
  [
    'a growing WeakMap',
    handler(
      'const m = new WeakMap(); const keys = []; for (;;) { const k = {}; keys.push(k); m.set(k, {}) }',
    ),
    'memory',
    'crash',
    'timeout',
  ],
  ['a result of 400 MB', handler('return "x".repeat(400e6)'), 'result', 'memory', 'thrown'],
  ['a result over the limit', handler('return "x".repeat(6 * 1024 * 1024 + 1)'), 'result'],
  [
    'a result over the limit in bytes only',
    handler('return "é".repeat(4 * 1024 * 1024)'),
    'result',
  ],
  ['a squaring of a BigInt', handler('let n = 3n; for (;;) n *= n'), 'timeout', 'thrown', 'memory'],
  [
    'a thrown proxy',
    handler('throw new Proxy({}, { get() { for (;;); }, getPrototypeOf() { for (;;); } })'),
    'timeout',
  ],
  [
    'a thrown error with endless getters',
    handler(
      'const e = new Error("x"); for (const k of ["message", "stack", "name", "outcome"]) Object.defineProperty(e, k, { get() { for (;;); } }); throw e',
    ),
    'timeout',
  ],
  [
    'a returned object with an endless toJSON',
    handler('return { toJSON() { for (;;); } }'),
    'timeout',
  ],
  ['a thenable that never answers', handler('return { then() {} }'), 'timeout'],
  [
    'a thrown proxy out of the wrapper',
    '}); throw new Proxy({}, { get() { for (;;); } }); (function () {',
    'thrown',
  ],
  ['a thrown proxy at the top level', 'throw new Proxy({}, { get() { for (;;); } })', 'timeout'],
  [
    'endless stack formatting',
    handler('Error.prepareStackTrace = () => { for (;;); }; throw new Error("x")'),
    'timeout',
  ],
  [
    'a flood of log lines',
    handler('for (let i = 0; i < 300000; i++) console.log("line", i)'),
    'none',
    'timeout',
  ],
  [
    'a flood of host calls',
    handler('await Promise.all(Array.from({ length: 3000 }, () => fetch("http://x/")))'),
    'thrown',
  ],
  [
    'an async generator flood',
    handler('const f = async function* () { for (;;) yield 1 }; for await (const x of f());'),
    'timeout',
  ],
]

for (const [name, code, ...expected] of cases) {
  t.test(`${name} ends in time and harms no neighbour`, async (t) => {
    const startedAt = Date.now()
    const hostile = run(executors, aRun(code, { limits: short }))
    const before = await Promise.all([run(executors, neighbour), run(executors, stranger)])
    const result = await hostile
    const tookMs = Date.now() - startedAt
    const after = await Promise.all([run(executors, neighbour), run(executors, stranger)])

    const ending = result.failure ?? 'none'
    t.ok(
      expected.includes(ending),
      `ends as ${expected.join(' or ')}: ${ending} ${result.body.slice(0, 200)}`,
    )
    t.ok(tookMs < WALL_MS + GRACE_MS, `soon after its deadline: ${tookMs} ms`)
    for (const { body } of [...before, ...after]) t.equal(body, '{"a":1}')
  })
}

t.test('an ES module that throws a proxy at its top level ends with its process', async (t) => {
  const code = 'throw new Proxy({}, { get() { for (;;); } }); export const handler = 1'
  const result = await run(executors, aRun(code, { limits: short, format: 'module' }))

  t.equal(result.failure, 'timeout')
  t.equal((await run(executors, neighbour)).body, '{"a":1}')
})

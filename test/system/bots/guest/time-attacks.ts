import { type Attack, filling, looping, short, throwing } from '../../../fixtures/attacks/attack.ts'
import { handler } from '../../../fixtures/bots/runs.ts'

export const timeAttacks: readonly Attack[] = [
  looping('an endless loop', 'for (;;);'),
  {
    name: 'an endless loop at the top level',
    code: 'for (;;);',
    ends: ['timeout'],
    changes: { limits: short },
  },
  {
    name: 'an endless loop within the CPU limit of a longer run',
    code: handler('for (;;);'),
    ends: ['cpu'],
    changes: { limits: { ...short, wallMs: 60_000, cpuMs: 200 } },
  },
  looping('an endless loop of microtasks', 'for (;;) await null'),
  looping(
    'a microtask that queues itself',
    'const f = () => queueMicrotask(f); f(); await new Promise(() => {})',
  ),
  filling(
    'a promise that resolves with a new one for ever',
    'const f = () => Promise.resolve().then(f); await f()',
  ),
  looping('a catastrophic regular expression', 'return /^(a+)+$/.test("a".repeat(40) + "b")'),
  looping(
    'a catastrophic regular expression with a back reference',
    'return /(x+x+)+y\\1/.test("x".repeat(60))',
  ),
  looping(
    'a replace of a text by itself',
    'let s = "ab".repeat(1e4); for (;;) s = s.replaceAll("a", "a")',
  ),
  throwing('a deep recursion', 'const f = () => f() + 1; return f()', /call stack/),
  throwing(
    'a deep recursion over promises',
    'const f = async (n) => (await f(n + 1)) + 1; return await f(0)',
    /call stack/,
  ),
  looping(
    'a caught deep recursion in a loop',
    'const f = () => { try { f() } catch { f() } }; f()',
  ),
  looping('a promise that never settles', 'await new Promise(() => {})'),
  looping('a timer that never ends', 'setInterval(() => {}, 1); await new Promise(() => {})'),
  looping(
    'a timer that sets itself',
    'const f = () => setTimeout(f, 0); f(); await new Promise(() => {})',
  ),
  throwing(
    'too many timers',
    'for (let i = 0; i < 101; i++) setTimeout(() => {}, 1e6)',
    'A bot may have 100 timers at a time',
  ),
  looping('a squaring of a BigInt', 'let n = 3n; for (;;) n = (n * n) % (2n ** 4_000_000n)'),
  looping('a thenable that never answers', 'return { then() {} }'),
  looping('a thenable whose `then` is endless', 'return { get then() { for (;;); } }'),
  looping(
    'a thenable that resolves with itself again and again',
    'const f = () => ({ then: (resolve) => resolve(f()) }); return f()',
  ),
  looping(
    'an async generator without end',
    'const f = async function* () { for (;;) yield 1 }; for await (const x of f());',
  ),
  looping(
    'an iterator without end in a spread',
    'Math.max(...{ [Symbol.iterator]: () => ({ next: () => ({ done: false, get value() { for (;;); } }) }) })',
  ),
  looping('a sort whose order is endless', '[2, 1].sort(() => { for (;;); })'),
  looping(
    'a valueOf that is endless, in a call of the glue',
    'setTimeout(() => {}, { valueOf() { for (;;); } })',
  ),
  looping(
    'a toString that is endless, in a log line',
    'const e = new Error("x"); Object.defineProperty(e, "stack", { value: { toString() { for (;;); } } }); console.log(e)',
  ),
  looping(
    'an endless loop in a timer while the handler waits',
    'setTimeout(() => { for (;;); }, 1); await new Promise(() => {})',
  ),
  looping(
    'an endless loop in the answer to a host call',
    'await fetch("http://x/").catch(() => { for (;;); })',
  ),
  {
    name: 'an endless wait at the top level of a module',
    code: 'await new Promise(() => {}); export const handler = () => 1',
    ends: ['thrown', 'timeout'],
    says: "Cannot access 'handler' before initialization",
    changes: { limits: short, format: 'module' },
  },
  {
    name: 'a proxy thrown at the top level of a module',
    code: 'throw new Proxy({}, { get() { for (;;); } }); export const handler = 1',
    ends: ['timeout'],
    changes: { limits: short, format: 'module' },
  },
]

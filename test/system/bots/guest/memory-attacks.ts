/** Attacks on memory, in the heap and outside, and on the size of sandbox output. */

import {
  type Attack,
  filling,
  harmless,
  small,
  throwing,
} from '../../../fixtures/attacks/attack.ts'
import { handler } from '../../../fixtures/bots/runs.ts'

export const memoryAttacks: readonly Attack[] = [
  filling('a flood of promises', 'const all = []; for (;;) all.push(new Promise(() => {}))'),
  filling('a flood of Map entries', 'const m = new Map(); for (let i = 0; ; i++) m.set(i, { i })'),
  filling(
    'a flood of strings',
    'const all = []; for (let i = 0; ; i++) all.push(("x" + i).repeat(1e4).split("").join("y"))',
  ),
  filling(
    'a flood of large buffers',
    'const all = []; for (;;) all.push(new Uint8Array(1e7).fill(1))',
    'thrown',
  ),
  filling(
    'buffers that grow',
    'const all = []; for (;;) { const b = new ArrayBuffer(1, { maxByteLength: 1e8 }); b.resize(1e8); new Uint8Array(b).fill(1); all.push(b) }',
    'thrown',
  ),
  filling('a huge filled array', 'return new Array(2 ** 27).fill(0).length'),
  filling('a huge array from a length', 'return Array.from({ length: 2 ** 31 }).length', 'thrown'),
  filling(
    'a flood of nested arrays',
    'const all = []; for (;;) all.push({ a: new Array(1000).fill(1.5), b: [all.length] })',
  ),
  filling(
    'a growing WeakMap',
    'const m = new WeakMap(); const keys = []; for (;;) { const k = {}; keys.push(k); m.set(k, {}) }',
  ),
  filling(
    'weak references to objects they keep alive',
    'const all = []; for (;;) { const o = { a: new Array(100).fill(0) }; all.push(new WeakRef(o), o) }',
  ),
  filling(
    'a flood of symbols',
    'const all = []; for (let i = 0; ; i++) all.push(Symbol.for("s" + i))',
  ),
  filling(
    'a flood of regular expressions',
    'const all = []; for (let i = 0; ; i++) { const r = new RegExp("(a|b)*" + i); r.test("ab"); all.push(r) }',
  ),
  filling(
    'a text that doubles until it is used',
    'let s = "x"; for (;;) { s += s; s.charCodeAt(s.length >> 1); }',
    'thrown',
  ),
  throwing(
    'a text beyond the longest',
    'return "x".repeat(2 ** 30).length',
    /Invalid string length/,
  ),
  filling(
    'a JSON text that is larger than its value',
    'const a = {}; let b = a; for (let i = 0; i < 26; i++) b = [b, b]; return b',
    'thrown',
    'result',
  ),
  throwing(
    'a JSON text of a hundred thousand brackets',
    'return JSON.parse("[".repeat(1e5) + "]".repeat(1e5)).length && JSON.stringify(JSON.parse("[".repeat(1e5) + "]".repeat(1e5)))',
    /call stack|Unexpected|nest/,
  ),
  filling('a result of 400 MB', 'return "x".repeat(400e6)', 'result', 'thrown'),
  {
    name: 'a result over the limit',
    code: handler('return "x".repeat(6 * 1024 * 1024 + 1)'),
    ends: ['result'],
    says: 'Bot result is larger than 6 MB',
  },
  {
    name: 'a result over the limit in bytes only',
    code: handler('return "é".repeat(4 * 1024 * 1024)'),
    ends: ['result'],
    says: 'Bot result is larger than 6 MB',
  },
  {
    name: 'a thrown message without end',
    code: handler('throw new Error("x".repeat(1e7))'),
    ends: ['thrown'],
    says: /^x{4096}$/,
  },
  filling(
    'a flood of log lines',
    'for (let i = 0; i < 300_000; i++) console.log("line", i); return "done"',
    'ok',
  ),
  harmless('a log line of 50 MB', 'console.log("x".repeat(5e7)); return "done"', 'done'),
  harmless(
    'a log of a deep and wide object',
    'let o = {}; for (let i = 0; i < 20; i++) o = Object.fromEntries(Array.from({ length: 20 }, (_, n) => [n, o])); console.log(o); return "done"',
    'done',
  ),
  throwing(
    'more host calls than a run may make',
    'await Promise.all(Array.from({ length: 10_001 }, () => medplum.get("x").catch((e) => { if (/may make/.test(e.message)) throw e })))',
    /A run may make 10000 calls/,
  ),
  {
    name: 'a request larger than a frame',
    code: handler('await medplum.post("Patient", "x".repeat(17e6))'),
    ends: ['thrown'],
    says: 'The request is too large',
    changes: { limits: { ...small, wallMs: 60_000, memoryMb: 256 } },
  },
]

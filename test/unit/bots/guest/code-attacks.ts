/** Attacks by results, errors and leftovers of a handler, on the internal code and the outside. */

import {
  type Attack,
  harmless,
  looping,
  short,
  throwing,
} from '../../../fixtures/attacks/attack.ts'
import { handler } from '../../../fixtures/bots/runs.ts'

const endlessErrors =
  'const e = new Error("x"); for (const k of ["message", "stack", "name", "outcome"]) Object.defineProperty(e, k, { get() { for (;;); } });'
const noCode = /Code generation from strings disallowed|is not a constructor|is not a function/

export const outputAttacks: readonly Attack[] = [
  looping(
    'a thrown proxy',
    'throw new Proxy({}, { get() { for (;;); }, getPrototypeOf() { for (;;); } })',
  ),
  looping('a thrown error with endless getters', `${endlessErrors} throw e`),
  looping('an error with endless getters in a log line', `${endlessErrors} console.error(e)`),
  looping('a returned object with an endless toJSON', 'return { toJSON() { for (;;); } }'),
  looping(
    'a returned proxy with endless keys',
    'return new Proxy({}, { ownKeys() { for (;;); } })',
  ),
  looping(
    'endless stack formatting',
    'Error.prepareStackTrace = () => { for (;;); }; throw new Error("x")',
  ),
  {
    name: 'a thrown proxy out of the wrapper',
    code: '}); throw new Proxy({}, { get() { for (;;); } }); (function () {',
    ends: ['thrown'],
    says: /Unexpected token/,
  },
  {
    name: 'a thrown proxy at the top level',
    code: 'throw new Proxy({}, { get() { for (;;); } })',
    ends: ['timeout'],
    changes: { limits: short },
  },
  {
    name: 'an endless getter for the handler',
    code: 'Object.defineProperty(exports, "handler", { get() { for (;;); } })',
    ends: ['timeout'],
    changes: { limits: short },
  },
  throwing('a thrown symbol', 'throw Symbol("secret")', 'Symbol(secret)'),
  throwing('nothing thrown', 'throw undefined', 'undefined'),
  throwing('a thrown function', 'throw () => {}', '() => {}'),
  throwing('a thrown thenable', 'throw { then(r) { r("ok") }, message: "thrown" }', 'thrown'),
  throwing(
    'an outcome with a getter that throws',
    'throw { resourceType: "OperationOutcome", get issue() { throw new Error("x") } }',
    'Error',
  ),
  throwing(
    'an outcome that is one only once',
    'let n = 0; throw { get resourceType() { return n++ ? "x" : "OperationOutcome" }, toJSON() { throw 1 }, message: "m" }',
    'm',
  ),
  {
    name: 'a returned symbol',
    code: handler('return Symbol("x")'),
    ends: ['result'],
    says: 'Bot result could not be serialized: A symbol has no JSON form',
  },
  {
    name: 'a returned circle',
    code: handler('const a = {}; a.a = a; return a'),
    ends: ['result'],
    says: /circular/,
  },
  {
    name: 'a returned HL7 message whose text is not a string',
    code: handler(
      'const m = Hl7Message.parse("MSH|^~\\\\&|"); m.toString = () => ({ toString() { throw new Error("no") } }); return m',
    ),
    ends: ['result'],
    says: 'Bot result could not be serialized: no',
  },
  harmless('a toJSON that gives a text', 'return { toJSON: () => "text" }', '"text"'),
  harmless(
    'a result that changes after it was returned',
    'const a = { n: 1 }; setTimeout(() => { a.n = 2 }, 1); return a',
    '{"n":1}',
  ),
  harmless(
    'two results of one run',
    'return { then(resolve) { resolve("first"); resolve("second"); throw new Error("third") } }',
    'first',
  ),
]

export const escapeAttacks: readonly Attack[] = [
  throwing(
    'the constructor of a function',
    'return (() => {}).constructor("return this")().process.mainModule.require("fs")',
    /undefined/,
  ),
  throwing(
    'the constructor of an async function of the glue',
    'return medplum.createResource.constructor("return this")()',
    noCode,
  ),
  throwing(
    'the constructor of the timer',
    'return setTimeout.constructor.constructor("return process")().binding("fs")',
    /not a function/,
  ),
  throwing(
    'a constructor found over Reflect',
    'return Reflect.construct(Object, [], Object.getPrototypeOf(async () => {}).constructor)("return 1")',
    /./,
  ),
  throwing('eval by another name', 'const { eval: run } = globalThis; return run("1")', noCode),
  throwing(
    'WebAssembly',
    'return new WebAssembly.Memory({ initial: 1e4 })',
    'WebAssembly is not defined',
  ),
  throwing(
    'SharedArrayBuffer',
    'return new SharedArrayBuffer(8)',
    'SharedArrayBuffer is not defined',
  ),
  throwing('Atomics.wait', 'Atomics.wait(new Int32Array(8), 0, 0)', 'Atomics is not defined'),
  throwing(
    'a finalizer that wakes up later',
    'new FinalizationRegistry(() => { for (;;); }).register({}, 1)',
    'FinalizationRegistry is not defined',
  ),
  throwing(
    'the environment',
    'throw new Error(Object.keys(process.env).join() || "nothing")',
    'nothing',
  ),
  throwing(
    'a file by require',
    'return require("fs").readFileSync("/etc/passwd")',
    "Cannot find module 'fs'",
  ),
  throwing('a file by a path', 'return require("/etc/passwd")', "Cannot find module '/etc/passwd'"),
  throwing('a file of the glue', 'return require("./glue.cjs")', "Cannot find module './glue.cjs'"),
  throwing(
    'a prototype as a module',
    'return require("__proto__")',
    "Cannot find module '__proto__'",
  ),
  throwing('the module that spawns', 'return require("node:child_process")', /Cannot find module/),
  throwing(
    'a module name that changes',
    'let n = 0; return require({ toString: () => (n++ ? "fs" : "url") }).readFileSync("/etc/passwd")',
    /is not a function|Cannot find module/,
  ),
  throwing('an import at run time', 'return await import("node:fs")', /./),
  throwing('an import of a data address', 'return await import("data:text/javascript,1")', /./),
  {
    name: 'an import that the deploy did not see',
    code: 'import { readFileSync } from "node:fs"; export const handler = () => readFileSync("/etc/passwd")',
    ends: ['thrown'],
    says: "Cannot find module 'node:fs'",
    changes: { format: 'module' },
  },
  harmless(
    'the callers of the handler',
    'Error.prepareStackTrace = (e, s) => s; return new Error().stack.every((s) => [undefined, exports.handler].includes(s.getFunction()))',
    'true',
  ),
  harmless(
    '`this` of the handler',
    'return (function () { return this === undefined || this === globalThis || Object.keys(this).length === 0 })()',
    'true',
  ),
  harmless(
    'the arguments of the caller',
    'try { return typeof exports.handler.caller } catch (e) { return e.name }',
    /^(TypeError|object)$/,
  ),
  harmless(
    'the global object as a way to the glue',
    'return Object.getOwnPropertyNames(globalThis).filter((n) => /^(import |host$|send$|ask$|enter$|files$|loaded$|ivm)/.test(n))',
    '[]',
  ),
  harmless(
    'a setter on the prototype that catches objects of the glue',
    'const seen = []; for (const k of ["kind", "payload", "text", "resolve", "callback", "failure", "send"]) Object.defineProperty(Object.prototype, k, { configurable: true, set(v) { seen.push(typeof v); Object.defineProperty(this, k, { value: v, writable: true }) } }); await fetch("http://x/").catch(() => {}); setTimeout(() => {}, 1); for (const k of ["kind", "payload", "text", "resolve", "callback", "failure", "send"]) delete Object.prototype[k]; return seen.filter((kind) => kind === "function")',
    '[]',
  ),
  harmless(
    'a promise constructor that looks at every settlement',
    'const real = Promise.prototype.then; let seen = 0; Promise.prototype.then = function (...a) { seen++; return real.apply(this, a) }; await fetch("http://x/").catch(() => {}); Promise.prototype.then = real; return "alive"',
    'alive',
  ),
  harmless(
    'an array whose length the glue would read',
    'Array.prototype.push = Array.prototype.join = Array.prototype.map = () => { throw new Error("polluted") }; return "alive"',
    'alive',
  ),
  harmless(
    'a callback of a timer after the end of the run',
    'setTimeout(() => { globalThis.late = true }, 5); return "ended"',
    'ended',
  ),
  harmless(
    'a host call after the end of the run',
    'queueMicrotask(() => Promise.resolve().then(() => fetch("http://x/").catch(() => {}))); return "ended"',
    'ended',
  ),
]

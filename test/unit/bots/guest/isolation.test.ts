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

async function runForResult(code: string): Promise<unknown> {
  const result = await run(executors, aRun(code))
  if (result.status === 'error') throw new Error(failureText(result))
  return result.body === '' ? undefined : JSON.parse(result.body)
}

t.test('hides everything usable against the process from bots', async (t) => {
  const names = [
    'WebAssembly',
    'SharedArrayBuffer',
    'Atomics',
    'FinalizationRegistry',
    'ShadowRealm',
    'require',
    'Deno',
    'gc',
    'ivm',
    'host',
  ]
  const code = `const outer = typeof global; ${handler(`return ${JSON.stringify(names)}.filter((n) => n !== 'require' && n in globalThis)`)}`
  t.same(await runForResult(code), [])
})

t.test('exposes no real process to code written for Node', async (t) => {
  const names =
    'return [Object.keys(process), process.env, process.versions, global === globalThis]'
  const shim = ['argv', 'browser', 'env', 'platform', 'version', 'versions', 'cwd']
  const keys = [...shim, 'emitWarning', 'nextTick']
  t.same(await runForResult(handler(names)), [keys, {}, {}, true])
})

t.test('gives code from strings the globals of the bot, however it was created', async (t) => {
  const makers = [
    'Function',
    '(() => {}).constructor',
    'Reflect.construct(Object, [], (class A {}).constructor).constructor.constructor',
    'medplum.constructor.constructor',
    'console.log.constructor',
    'setTimeout.constructor',
    'require.constructor',
  ]
  const hidden = [
    'require',
    'host',
    'send',
    'sendHere',
    'ask',
    'exports',
    'module',
    'process.binding',
  ]
  for (const maker of makers) {
    const code = handler(`
      const make = ${maker}
      const types = ${JSON.stringify(hidden)}.map((name) => make('return typeof ' + name)())
      const callers = make('return [arguments.callee.caller === null, this === globalThis]')()
      return [make === Function, types, callers, make('a', 'b', 'return a + b')(1, 2)]`)
    const types = hidden.map(() => 'undefined')
    t.same(await runForResult(`'use strict'; ${code}`), [true, types, [true, true], 3], maker)
  }
  const spin = handler('Function("for (;;);")()')
  const short = { limits: { ...limits, wallMs: 500 } }
  t.equal((await run(executors, aRun(spin, short))).failure, 'timeout')
  t.equal((await run(executors, aRun(handler('return 1')))).body, '1')
})

t.test('blocks every other way to code from strings', async (t) => {
  const ways = [
    'eval("1")',
    '(0, eval)("1")',
    '(async () => {}).constructor("return 1")()',
    '(function* () {}).constructor("return 1")()',
    '(async function* () {}).constructor("return 1")()',
    'Object.getPrototypeOf(async () => {}).constructor("return 1")',
    'setTimeout("globalThis.x = 1")',
  ]
  for (const way of ways) {
    const result = await run(executors, aRun(handler(`return (${way}, 'made it')`)))
    t.equal(result.failure, 'thrown', way)
  }
})

t.test('hides internal functions from call sites', async (t) => {
  const code = handler(`
    Error.prepareStackTrace = (e, sites) => sites.map((s) => [typeof s.getFunction(), typeof s.getThis()])
    return new Error('x').stack.flat().filter((kind) => kind !== 'undefined')`)
  t.same(await runForResult(`'use strict'; ${code}`), [])
})

t.test('exposes through internal functions only functions of the same realm', async (t) => {
  const code = handler(`
    const seen = new Set(), found = []
    const visit = (value, path) => {
      if ((typeof value !== 'object' && typeof value !== 'function') || value === null || seen.has(value)) return
      seen.add(value)
      if (value !== Function.prototype && typeof value === 'function' && !(value instanceof Function)) found.push(path)
      const proto = Object.getPrototypeOf(value)
      visit(proto, path + '.__proto__')
      for (const key of Reflect.ownKeys(value)) {
        let inner
        try { inner = value[key] } catch { continue }
        if (/^(Isolate|Context|Script|Module|Reference|ExternalCopy|Callback|NativeModule)$/.test(inner?.constructor?.name ?? '')) found.push(path + '.' + String(key))
        visit(inner, path + '.' + String(key))
      }
    }
    visit(globalThis, 'globalThis'); visit(medplum, 'medplum'); visit(event, 'event')
    visit(require('@medplum/core'), 'core'); visit(require('crypto'), 'crypto')
    return found`)
  t.same(await runForResult(code), [])
})

t.test('limits modified built-ins to the bot itself', async (t) => {
  const code = `
    for (const proto of [Object.prototype, Array.prototype, Promise.prototype, String.prototype, Map.prototype]) {
      for (const key of Object.getOwnPropertyNames(proto)) {
        if (key === 'constructor') continue
        try { proto[key] = () => { throw 'polluted' } } catch {}
      }
    }
    Object.defineProperty(Object.prototype, 'run', { set() { throw 'polluted' }, get() { throw 'polluted' } })
    Object.defineProperty(Object.prototype, '0', { set() { throw 'polluted' } })
    Array.prototype[Symbol.iterator] = function* () { for (;;) yield 1 }
    JSON.stringify = () => { throw 'polluted' }; JSON.parse = () => ({ resourceType: 'polluted' })
    globalThis.Promise = globalThis.Error = globalThis.String = globalThis.Reflect = undefined
    exports.handler = async () => 'still here'`
  const broken = aRun(code)
  const same = aRun(handler('return event.input'))

  for (let round = 0; round < 3; round++) {
    const result = await run(executors, broken)
    t.match(result, { status: 'ok', kind: 'string', body: 'still here' })
    t.equal((await run(executors, same)).body, '{"a":1}')
  }
})

t.test('leaves nothing that runs in the next run', async (t) => {
  const bot = aRun(
    `let n = 0; ${handler('setTimeout(() => n++, 1); setInterval(() => n++, 1); return n')}`,
  )

  t.equal((await run(executors, bot)).body, '0')
  await run(executors, aRun(handler('await new Promise((r) => setTimeout(r, 30))')))
  t.equal((await run(executors, bot)).body, '0')
})

t.test('shares no isolate between bots of a project or memberships of a bot', async (t) => {
  const code = `globalThis.n ??= 0; ${handler('return ++globalThis.n')}`
  const counts = []
  for (const changes of [
    {},
    {},
    { identity: 'other' },
    { botKey: 'Bot/other' },
    { projectId: 'other' },
    { fresh: true },
  ]) {
    counts.push((await run(executors, aRun(code, changes))).body)
  }
  t.same(counts, ['1', '2', '1', '1', '1', '1'])
})

t.test('hides kept state from other memberships, bots and projects', async (t) => {
  const secret = 'only for the first'
  const event = JSON.stringify({
    context: {},
    secrets: { KEY: { name: 'KEY', valueString: secret } },
    requester: { reference: 'Practitioner/first' },
  })
  const code = handler(`
    const places = [globalThis, Object.prototype, Array.prototype, Promise, medplum.constructor,
      Object.getPrototypeOf(medplum), require('@medplum/core'), require('crypto'), console, Hl7Message,
      exports, (globalThis[Symbol.for('stash')] ??= {}), decodeURI, Error]
    const found = places.flatMap((place) => place.kept ?? [])
    for (const place of places) {
      const value = [JSON.stringify([event, medplum.getAccessToken?.call?.name])]
      Object.defineProperty(place, 'kept', { value, configurable: true, writable: true })
    }
    return found.join()`)
  const keeper = aRun(code, { event, input: '{"patient":"first"}' })
  await run(executors, keeper)
  t.match((await run(executors, keeper)).body, secret, 'the same membership finds its own state')

  const blank = JSON.stringify({ context: {} })
  for (const changes of [
    { identity: 'other' },
    { botKey: 'Bot/other' },
    { projectId: 'other' },
    { fresh: true },
  ]) {
    const { body } = await run(executors, aRun(code, { event: blank, ...changes }))
    t.equal(body, '', JSON.stringify(changes))
  }
})

t.test('drops the response to a host call after its run', async (t) => {
  const late = Promise.withResolvers<void>()
  const host = async () => {
    await late.promise
    return JSON.stringify({ status: 200, headers: {}, body: '' })
  }
  const bot = aRun(
    `let seen = 'nothing'; ${handler("const was = seen; fetch('http://x/').then(() => { seen = 'late' }, () => { seen = 'late' }); return was")}`,
  )
  t.equal((await run(executors, bot, host)).body, 'nothing')
  late.resolve()
  await run(executors, aRun(handler('await new Promise((r) => setTimeout(r, 20))')))
  t.equal((await run(executors, bot, host)).body, 'nothing')
})

import assert from 'node:assert'
import events from 'node:events'
import path from 'node:path'
import punycode from 'node:punycode'
import { PassThrough, Readable, Transform } from 'node:stream'
import { pipeline } from 'node:stream/promises'
import { StringDecoder } from 'node:string_decoder'
import url from 'node:url'
import util from 'node:util'
import zlib from 'node:zlib'
import t from 'tap'
import { libraryModules } from '../../../../shared/bots/libraries/table.ts'
import { moduleExports, requiredLibraries } from '../../../../shared/bots/modules.ts'
import { aRun, openTestExecutors, run } from '../../../fixtures/bots/runs.ts'

const executors = await openTestExecutors(t)

async function runForAnswer(code: string): Promise<unknown> {
  const result = await run(executors, aRun(code, { libraries: requiredLibraries(code) }))
  if (result.status !== 'ok') throw new Error(`${result.body} ${result.log}`)
  return result.kind === 'json' ? JSON.parse(result.body) : result.body
}

const native: Readonly<Record<string, unknown>> = {
  assert,
  events,
  path,
  punycode,
  util,
  url,
  zlib,
}

/** Expressions by module; the module is in scope under its name. */
const expressions: Readonly<Record<string, readonly string[]>> = {
  assert: [
    `(() => { try { assert.deepStrictEqual({ a: [1] }, { a: [2] }) } catch (e) { return [e.name, e.code] } })()`,
    `(() => { assert(true); assert.strict.equal(1, 1); assert.throws(() => { throw new TypeError('x') }, TypeError); return 1 })()`,
    `(() => { try { assert.ok(0, 'no') } catch (e) { return [e.message, e instanceof assert.AssertionError] } })()`,
  ],
  events: [
    `(() => { const e = new events.EventEmitter(); const seen = []; e.once('a', (x) => seen.push(x)); e.on('a', (x) => seen.push(-x)); e.emit('a', 1); e.emit('a', 2); return [seen, e.listenerCount('a')] })()`,
    `(() => { class Own extends events {} ; return new Own().emit('nothing') })()`,
  ],
  path: [
    `path.join('a', '..', 'b', './c.txt')`,
    `[path.basename('/x/y.hl7', '.hl7'), path.extname('a.b.c'), path.dirname('/x/y/z'), path.posix.sep]`,
    `path.parse('/home/x/file.txt')`,
  ],
  punycode: [
    `[punycode.toASCII('mañana.com'), punycode.decode('maana-pta'), punycode.toUnicode('xn--maana-pta.com')]`,
  ],
  util: [
    `util.format('%s %d %j', 'a', 1.5, { b: 1 })`,
    `util.inspect({ a: [1, 'x', null], b: undefined, c: { d: { e: 1 } } })`,
    `[util.isArray([]), util.types.isDate(new Date()), util.types.isRegExp(/x/), util.types.isPromise(Promise.resolve())]`,
    `(() => { function A() {} function B() {} util.inherits(B, A); return new B() instanceof A })()`,
    `new util.TextDecoder().decode(new util.TextEncoder().encode('é'))`,
  ],
  url: [
    `(({ protocol, host, port, pathname, search, query, hash, href }) => ({ protocol, host, port, pathname, search, query, hash, href }))(url.parse('https://u:p@example.com:8080/a/b?x=1&y=2#z'))`,
    `url.resolve('https://example.com/a/b', '../c')`,
    `[url.format({ protocol: 'https', host: 'example.com', pathname: '/x', query: { a: 1 } }), new url.URL('https://example.com/?a=1').searchParams.get('a')]`,
  ],
  zlib: [
    `zlib.gunzipSync(zlib.gzipSync('hello '.repeat(100))).toString()`,
    `zlib.inflateSync(Buffer.from('eJzLSM3JyQcABiwCFQ==', 'base64')).toString()`,
    `zlib.inflateRawSync(zlib.deflateRawSync(Buffer.from('abc'))).toString('utf8')`,
    `zlib.constants.Z_BEST_COMPRESSION ?? zlib.Z_BEST_COMPRESSION`,
    `(() => { try { zlib.gunzipSync(Buffer.from('nonsense')) } catch (e) { return e.code } })()`,
  ],
}

for (const [name, texts] of Object.entries(expressions)) {
  t.test(`${name} returns the same as in Node`, async (t) => {
    const code = `const ${name} = require('node:${name}'); exports.handler = async () => [${texts.join(',\n')}]`
    const here = new Function(name, 'Buffer', `return [${texts.join(',\n')}]`)
    t.same(await runForAnswer(code), JSON.parse(JSON.stringify(here(native[name], Buffer))))
    t.equal(
      await runForAnswer(`exports.handler = () => require('${name}') === require('node:${name}')`),
      true,
    )
  })
}

t.test('pipes, transforms and decompresses streams', async (t) => {
  const code = `const { Readable, Transform, PassThrough } = require('stream')
    const { pipeline } = require('node:stream/promises')
    const zlib = require('zlib')
    const { StringDecoder } = require('string_decoder')
    exports.handler = async () => {
      const upper = new Transform({ transform(chunk, _, done) { done(null, chunk.toString().toUpperCase()) } })
      const seen = []
      const sink = new PassThrough()
      sink.on('data', (chunk) => seen.push(chunk))
      await pipeline(Readable.from(['ab', 'é']), upper, zlib.createGzip(), zlib.createGunzip(), sink)
      const decoder = new StringDecoder('utf8')
      const halves = [Buffer.from([0xe2, 0x82]), Buffer.from([0xac])].map((part) => decoder.write(part))
      let all = ''
      for await (const part of Readable.from(['x', 'y'])) all += part
      return [Buffer.concat(seen).toString(), halves, all]
    }`
  const upper = new Transform({
    transform: (chunk, _, done) => done(null, chunk.toString().toUpperCase()),
  })
  const seen: Buffer[] = []
  const sink = new PassThrough()
  sink.on('data', (chunk) => seen.push(chunk))
  await pipeline(Readable.from(['ab', 'é']), upper, zlib.createGzip(), zlib.createGunzip(), sink)
  const decoder = new StringDecoder('utf8')
  const halves = [Buffer.from([0xe2, 0x82]), Buffer.from([0xac])].map((part) => decoder.write(part))
  t.same(await runForAnswer(code), [Buffer.concat(seen).toString(), halves, 'xy'])
})

t.test('provides timer functions and their promises', async (t) => {
  const code = `const timers = require('node:timers')
    const { setTimeout: sleep } = require('timers/promises')
    exports.handler = async () => {
      const order = []
      await new Promise((resolve) => {
        timers.setImmediate((what) => { order.push(what); resolve() }, 'immediate')
        queueMicrotask(() => order.push('microtask'))
        timers.clearImmediate(setImmediate(() => order.push('never')))
      })
      return [order, await sleep(1, 'slept'), await timers.promises.setTimeout(1, 'again')]
    }`
  t.same(await runForAnswer(code), [['microtask', 'immediate'], 'slept', 'again'])
})

t.test('imports the modules by name into ES modules', async (t) => {
  const code = `import { EventEmitter } from 'node:events'
    import { Readable } from 'stream'
    import path, { join } from 'path'
    import * as assert from 'node:assert/strict'
    export const handler = async () => [new EventEmitter() instanceof EventEmitter,
      typeof Readable.from, path.join === join, typeof assert.equal]`
  const given = aRun(code, { libraries: requiredLibraries(code), format: 'module' })
  t.same(JSON.parse((await run(executors, given)).body), [true, 'function', true, 'function'])
})

t.test('loads a library only into isolates of bots that name it', async (t) => {
  t.same(requiredLibraries(`const { join } = require('path')`), ['path'])
  t.same(requiredLibraries(`import { Readable } from "node:stream"`), ['events', 'stream'])
  t.same(requiredLibraries(`__require('zlib')`), ['assert', 'events', 'stream', 'util', 'zlib'])
  t.same(requiredLibraries(`const url = patient.extension[0].url; const path = 'path'`), [])
  for (const name of libraryModules) {
    t.ok(moduleExports(name)?.has('default'), name)
    t.same(moduleExports(`node:${name}`), moduleExports(name))
  }
  for (const name of ['fs', 'net', 'child_process', 'node:fs', 'tls', 'worker_threads', 'vm']) {
    t.equal(moduleExports(name), undefined, name)
  }
})

t.test('limits changes of a library to the bot that makes them', async (t) => {
  const spoil = `const path = require('path'); const before = typeof path.spoiled
    path.spoiled = 1; Object.prototype.spoiled = 2
    exports.handler = async () => before`
  t.equal(await runForAnswer(spoil), 'undefined')
  t.equal(await runForAnswer(`${spoil} // another`), 'undefined')
})

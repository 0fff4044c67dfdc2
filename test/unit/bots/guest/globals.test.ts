import { createHash, createHmac } from 'node:crypto'
import { createServer } from 'node:http'
import querystring from 'node:querystring'
import t from 'tap'
import { openGuest, plain, type Untyped } from '../../../fixtures/bots/guest.ts'
import { listen } from '../../../fixtures/http/listening.ts'

function openGlobals(answer: (request: Untyped, kind: string) => unknown = () => undefined) {
  const sent: Untyped[] = []
  const guest = openGuest({
    call: async (kind, request) => {
      sent.push(request)
      return answer(request, kind)
    },
  })
  guest.load('./globals.cjs').install(guest.global)
  return { ...guest, sent }
}

const { global: guest, load, run } = openGlobals()
const native: Untyped = globalThis

// Each expression runs in the guest and in Node; the guest has no access to Node's globals.
const expressions = [
  "String(new URLSearchParams('?a=1&b=%20x+y&a=%C3%A9&c&=d&&e=%zz%4'))",
  "String(new URLSearchParams({ a: '1', b: 'x y&=é😀~*()!\\'' }))",
  "String(new URLSearchParams([['a', '1'], ['a', '2']]))",
  "[...new URLSearchParams('a=1&b=2').entries()]",
  "new URLSearchParams('a=1').get('b')",
  "new URLSearchParams('a=1&a=2').getAll('a')",
  "(() => { const p = new URLSearchParams('b=1&a=2&b=3'); p.set('b', 9); p.append('c', 0); p.sort(); return String(p) + p.size })()",
  "(() => { const p = new URLSearchParams('b=1&a=2&b=3'); p.delete('b', '1'); return [String(p), p.has('b'), p.has('b', '1')] })()",
  "new URL('../x?y=1#z', 'https://u:p@host.test:8080/a/b/c').href",
  "(() => { const u = new URL('https://a.test/x'); u.searchParams.set('q', 'ä b'); u.pathname = '/p q'; u.hash = 'h'; return JSON.stringify(u) })()",
  "(() => { const u = new URL('https://a.test/?a=1'); const p = u.searchParams; u.search = '?b=2'; return [p.get('b'), u.origin, u.host] })()",
  "URL.canParse('nonsense')",
  "[...new TextEncoder().encode('aé€😀\\ud800x')]",
  'new TextDecoder().decode(new Uint8Array([0xef, 0xbb, 0xbf, 97, 0xc3, 0xa9, 0xe2, 0x82, 0xac, 0xf0, 0x9f, 0x98, 0x80]))',
  'new TextDecoder().decode(new Uint8Array([0xff, 97, 0xc3, 0xe2, 0x82, 98, 0xed, 0xa0, 0x80, 0xf4, 0x90, 0x80, 0x80, 0xc0, 0xaf]))',
  "new TextDecoder('utf-16le').decode(new Uint8Array([97, 0, 0x3d, 0xd8, 0, 0xde]))",
  "new TextDecoder('latin1').decode(new Uint8Array([0x80, 0xe9, 0x9f, 65]))",
  "atob(btoa('\\u0000\\u00ffabc'))",
  "atob(' YW Jj\\n')",
  'structuredClone({ a: [1, , 3], d: new Date(0), m: new Map([[{}, new Set([1])]]), n: null }).d.getTime()',
  '(() => { const a = { b: [] }; a.b.push(a); const c = structuredClone(a); return c.b[0] === c && c !== a })()',
  '[...structuredClone(new Uint16Array([1, 2, 3]).subarray(1))]',
  "structuredClone(new RangeError('x')).message",
  "Buffer.from('aé€😀').toString('hex')",
  "Buffer.from('c3a9zz', 'hex').toString()",
  "Buffer.from('w6k_-w==', 'base64').toString('base64url')",
  "Buffer.from('héllo', 'latin1').toString('base64')",
  'Buffer.from([1, 2, 300]).toJSON()',
  "Buffer.concat([Buffer.from('a'), new Uint8Array([98])]).toString()",
  "Buffer.concat([Buffer.from('abc')], 2).toString()",
  "Buffer.from('abc').equals(Buffer.from('abc'))",
  "Buffer.byteLength('€')",
  "Buffer.from('abcdef').slice(-4, -1).toString()",
  "Buffer.from('abcdef').subarray(1, 3).toString('ascii')",
  "Buffer.isBuffer(Buffer.alloc(2)) && Buffer.alloc(3, 'ab').toString()",
  "Buffer.from('abcabc').indexOf('ca')",
  "Buffer.from('abc').includes('bc')",
  'Buffer.from([1, 2, 3, 4]).readUInt32BE()',
  'Object.getOwnPropertyNames(Buffer.prototype).filter((name) => /^(read|write)/.test(name)).length > 60',
  'Buffer.from([255, 2, 3, 4, 5, 6, 7, 8]).readIntBE(0, 6)',
  '[Buffer.from([1, 2, 3, 200]).readInt32LE(), Buffer.from([1, 2, 3]).readUIntLE(0, 3), Buffer.from([0, 1, 254]).readInt8(2)]',
  'String(Buffer.from([1, 2, 3, 4, 5, 6, 7, 200]).readBigInt64LE())',
  '(() => { const b = Buffer.alloc(24); return [b.writeDoubleBE(1.5), b.writeFloatLE(0.25, 8), b.writeUInt16LE(65535, 12), b.writeIntBE(-2, 14, 3), b.writeUIntLE(1e9, 17, 5), b.writeInt8(-1, 22), b.toString("hex")] })()',
  '(() => { const b = Buffer.alloc(2); const codes = []; for (const act of [() => b.writeUInt8(256), () => b.writeInt16LE(0, 1), () => b.readUInt8(-1)]) { try { act() } catch (e) { codes.push(e.name, e.code) } } return codes })()',
  "[Buffer.from('abcd').swap16().toString(), Buffer.from('abcd').swap32().toString(), Buffer.from('abcabc').lastIndexOf('abc'), Buffer.from('abca').lastIndexOf(97)]",
  "new Buffer('abc').toString()",
  'Buffer.from([1, 2, 3]).readUint8(1)',
  "Buffer.compare(Buffer.from('a'), Buffer.from('ab'))",
  "(() => { const b = Buffer.alloc(5); b.write('hey', 1); return b.toString('utf16le').length + b.toString() })()",
  "(() => { const b = Buffer.alloc(8); return [b.write('c3a9', 'hex'), b.write('w6k=', 2, 'base64'), b.write('abc', 4, 2, 'latin1'), b.write('abc', 6), b.toString('hex')] })()",
  "(() => { const b = Buffer.alloc(4); return [b.write('a€€'), b.write('€', 3), b.write('ab', 1, 'utf16le'), b.toString('hex')] })()",
  "(() => { try { Buffer.alloc(2).write('a', 'klingon') } catch (e) { return [e.name, e.code, e.message] } })()",
  "[Buffer.alloc(4).fill('c3a9', 'hex'), Buffer.alloc(5).fill('w6k=', 1, 'base64'), Buffer.alloc(4).fill('ab', 1, 3, 'latin1'), Buffer.alloc(3, 1).fill(''), Buffer.alloc(3).fill(Buffer.from('xy')), Buffer.alloc(4, 'c3a9', 'hex'), Buffer.alloc(2).fill(0x161)].map(String)",
  "[Buffer.from('abcabc').indexOf('6361', 'hex'), Buffer.from('abcabc').indexOf('YmM=', 2, 'base64'), Buffer.from('abcabc').indexOf('bc', -3), Buffer.from('abcabc').indexOf('bc', -30), Buffer.from('abc').indexOf(353), Buffer.from('abc').indexOf(''), Buffer.from('abc').indexOf('', 9), Buffer.from('abc').indexOf(Buffer.from('bc'))]",
  "[Buffer.from('abcabc').lastIndexOf('6361', 'hex'), Buffer.from('abcabc').lastIndexOf('YmM=', 3, 'base64'), Buffer.from('abcabc').lastIndexOf('bc', -3), Buffer.from('abcabc').lastIndexOf('bc', -30), Buffer.from('abc').lastIndexOf('abcd')]",
  "[Buffer.from('abcabc').includes('6361', 'hex'), Buffer.from('abc').includes('YmM=', 2, 'base64')]",
  "[...new Headers({ 'X-B': ' 1 ', a: '2' })]",
  "(() => { const h = new Headers([['a', '1']]); h.append('A', '2'); return [h.get('a'), h.has('B'), h.get('b')] })()",
  "(() => { const f = new FormData(); f.append('a', 1); f.append('a', 'x'); f.set('b', 'y'); return [...f] })()",
  "new Response('x', { status: 404 }).ok",
  "new Request('https://a.test/', { method: 'post', body: 'x' }).method",
  'AbortSignal.abort().aborted',
  "(() => { const c = new AbortController(); let n = 0; c.signal.addEventListener('abort', () => n++); c.abort('why'); c.abort(); return [n, c.signal.reason] })()",
]

for (const expression of expressions) {
  t.test(`${expression} returns the same as in Node`, async (t) => {
    t.same(plain(run(expression)), plain(native.eval(expression)))
  })
}

const failures = [
  "new URL('nonsense')",
  "btoa('€')",
  "atob('a')",
  'structuredClone(() => 1)',
  "new TextDecoder('klingon')",
  "new TextDecoder('utf-8', { fatal: true }).decode(new Uint8Array([0xff]))",
  "new Headers({ 'a b': '1' })",
  "new Headers({ a: 'x\\ny' })",
  "new Request('https://a.test/', { body: 'x' })",
  'Buffer.from(5)',
]

for (const expression of failures) {
  t.test(`${expression} throws as in Node`, async (t) => {
    t.throws(() => run(expression))
    t.throws(() => native.eval(expression))
  })
}

t.test('creates globals on first access and allows replacing them', async (t) => {
  const fresh = openGlobals()
  const descriptor = Object.getOwnPropertyDescriptor(fresh.global, 'Buffer')
  t.type(descriptor?.get, 'function')
  t.equal(fresh.run('Buffer === Buffer'), true)
  t.equal(fresh.run('fetch = 5; fetch'), 5)
})

t.test('computes the same digests and signatures as Node', async (t) => {
  const crypto = load('./modules.cjs').resolve('node:crypto')
  const hash = crypto.createHash('sha256').update('a').update(guest.Buffer.from('b')).digest('hex')
  t.equal(hash, createHash('sha256').update('ab').digest('hex'))
  const signature = crypto.createHmac('sha1', 'key').update('é').digest('base64')
  t.equal(signature, createHmac('sha1', 'key').update('é').digest('base64'))
  t.equal(crypto.randomBytes(5).length, 5)
  t.equal(crypto.timingSafeEqual(guest.Buffer.from('a'), guest.Buffer.from('a')), true)
  t.equal(crypto.timingSafeEqual(guest.Buffer.from('a'), guest.Buffer.from('b')), false)
  t.throws(() => crypto.timingSafeEqual(guest.Buffer.from('a'), guest.Buffer.from('')))
  const digest = await run("crypto.subtle.digest('SHA-256', new TextEncoder().encode('ab'))")
  t.equal(Buffer.from(digest).toString('hex'), hash)
  t.ok(run('crypto.getRandomValues(new Uint8Array(64))').some((byte: number) => byte > 0))
  t.match(run('crypto.randomUUID()'), /^[0-9a-f-]{36}$/)
})

t.test('sends requests and reads responses with fetch', async (t) => {
  const text = '{"a":"é"}'
  const { run, sent } = openGlobals(() => ({
    status: 201,
    statusText: 'Created',
    headers: { 'Content-Type': 'application/json' },
    url: 'https://a.test/end',
    body: Buffer.from(text).toString('base64'),
  }))
  const response = await run("fetch('https://a.test/x', { method: 'POST', body: 'é' })")
  t.match(sent[0], {
    url: 'https://a.test/x',
    method: 'POST',
    headers: { 'content-type': 'text/plain;charset=UTF-8' },
    body: Buffer.from('é').toString('base64'),
  })
  t.match(response, { status: 201, ok: true, statusText: 'Created', url: 'https://a.test/end' })
  t.equal(response.headers.get('content-type'), 'application/json')
  t.same(plain(await response.clone().json()), { a: 'é' })
  t.equal(await response.text(), text)
  await t.rejects(response.text(), /already been read/)
})

t.test('encodes forms as browsers do', async (t) => {
  const { run, sent } = openGlobals(() => ({ status: 200, headers: {}, url: '', body: '' }))
  await run(
    "(() => { const f = new FormData(); f.append('a', 'b'); f.append('f', new Blob(['x'], { type: 'text/plain' }), 'n\"'); return fetch('https://a.test/', { method: 'POST', body: f }) })()",
  )
  const [, boundary] = /boundary=(\S+)$/.exec(sent[0].headers['content-type']) ?? []
  t.equal(
    Buffer.from(sent[0].body, 'base64').toString(),
    `--${boundary}\r\nContent-Disposition: form-data; name="a"\r\n\r\nb\r\n` +
      `--${boundary}\r\nContent-Disposition: form-data; name="f"; filename="n%22"\r\n` +
      `Content-Type: text/plain\r\n\r\nx\r\n--${boundary}--\r\n`,
  )
})

t.test('rejects a refused or aborted fetch', async (t) => {
  const refused = openGlobals(() => ({ error: 'private address' }))
  const error = await refused.run("fetch('http://10.0.0.1/')").catch((thrown: unknown) => thrown)
  t.equal(error.name, 'TypeError')
  t.equal(error.cause.message, 'private address')
  const silent = openGlobals(() => new Promise(() => {}))
  await t.rejects(
    silent.run(
      "(() => { const c = new AbortController(); const p = fetch('https://a.test/', { signal: c.signal }); c.abort(); return p })()",
    ),
    { name: 'AbortError' },
  )
})

/** Starts a response, without an end. */
async function aBrokenServer() {
  const server = createServer((_, response) => void response.write('one'))
  return `http://127.0.0.1:${await listen(t, server)}/`
}

t.test('ends the body of an aborted fetch with the reason, as Node does', async (t) => {
  const { run, sent } = openGlobals((request, kind) => {
    if (kind === 'fetch') return { status: 200, headers: {}, url: '', body: 'b25l', rest: 3 }
    return request.isCancelled ? {} : new Promise(() => {})
  })
  const script = (url: string) => `(async () => {
    const seen = []
    const begin = async () => {
      const controller = new AbortController()
      const response = await fetch('${url}', { signal: controller.signal })
      return { response, reader: () => response.body.getReader(), abort: () => controller.abort('why') }
    }
    const note = (promise) => promise.then(() => 'done', (reason) => reason).then((what) => seen.push(what))
    const pending = await begin()
    const reader = pending.reader()
    await reader.read()
    const waiting = note(reader.read())
    pending.abort()
    await waiting
    await note(reader.read())
    const resting = await begin()
    const second = resting.reader()
    await second.read()
    resting.abort()
    await note(second.read())
    const unread = await begin()
    unread.abort()
    await note(unread.response.text())
    const reading = await begin()
    const text = note(reading.response.text())
    reading.abort()
    await text
    const split = await begin()
    const copy = split.response.clone()
    split.abort()
    await note(copy.text())
    return seen
  })()`
  const seen = plain(await run(script('https://a.test/')))
  t.same(seen, await native.eval(script(await aBrokenServer())))
  t.same(seen, Array(6).fill('why'))
  const cancelled = sent.flatMap(({ fetches = [] }) => fetches)
  t.same(
    cancelled,
    sent.filter(({ url }) => url).map(({ id }) => id),
  )
  t.equal(new Set(cancelled).size, 5)
})

t.test('cancels an aborted fetch in the worker, and none that has ended', async (t) => {
  let isSilent = true
  const { run, sent } = openGlobals((_, kind) => {
    if (kind === 'body') return {}
    return isSilent ? new Promise(() => {}) : { status: 200, headers: {}, url: '', body: '' }
  })
  const aborted =
    "(async () => { const c = new AbortController(); const p = fetch('https://a.test/', { signal: c.signal }); setTimeout(() => c.abort('why')); return p.catch((reason) => reason) })()"
  t.equal(await run(aborted), 'why')
  t.match(sent, [
    { url: 'https://a.test/', id: 1 },
    { fetches: [1], isCancelled: true },
  ])
  isSilent = false
  const ended =
    "(async () => { const c = new AbortController(); const r = await fetch('https://a.test/', { signal: c.signal }); c.abort(); return r.text() })()"
  t.equal(await run(ended), '')
  t.equal(sent.length, 3)
})

t.test('gives each clone of a response its whole body', async (t) => {
  const { run } = openGlobals((request, kind) => {
    if (kind === 'fetch') {
      parts = ['two ', 'three']
      return { status: 200, headers: {}, url: '', body: btoa('one '), rest: 1 }
    }
    const taken = parts.splice(0, request.isWhole ? 2 : 1).join('')
    return { body: btoa(taken), isDone: parts.length === 0 }
  })
  let parts: string[] = []
  const script = `(async () => {
    const collect = async (stream) => {
      const decoder = new TextDecoder()
      let text = ''
      for await (const chunk of stream) text += decoder.decode(chunk, { stream: true })
      return text
    }
    const begin = async () => {
      const response = await fetch('https://a.test/')
      return [response, response.clone()]
    }
    const [a, b] = await begin()
    const streams = await Promise.all([collect(a.body), collect(b.body)])
    const [c, d] = await begin()
    const texts = [await c.text(), await d.text()]
    const [e, f] = await begin()
    const mixed = await Promise.all([collect(e.body), f.text()])
    return [streams, texts, mixed, c.bodyUsed]
  })()`
  const all = ['one two three', 'one two three']
  t.same(plain(await run(script)), [all, all, all, true])
})

t.test('sends the chunks of an async iterable as a body', async (t) => {
  const { run, sent } = openGlobals(() => ({ status: 200, headers: {}, url: '', body: '' }))
  const chunks = "(async function* () { yield new TextEncoder().encode('one '); yield 'twö' })()"
  await run(`fetch('https://a.test/', { method: 'POST', body: ${chunks}, duplex: 'half' })`)
  t.equal(Buffer.from(sent[0].body, 'base64').toString(), 'one twö')
  t.notOk('content-type' in sent[0].headers)
  t.equal(await run(`new Response(${chunks}).text()`), 'one twö')
})

t.test('resolves modules by their Node names only', async (t) => {
  const { resolve } = load('./modules.cjs')
  t.equal(resolve('buffer').Buffer, guest.Buffer)
  t.equal(resolve('node:url').URL, guest.URL)
  t.equal(resolve('util').TextEncoder, guest.TextEncoder)
  t.type(resolve('node-fetch'), 'function')
  t.equal(resolve('crypto'), resolve('node:crypto'))
  t.same(Object.keys(resolve('@medplum/fhirtypes')), [])
  for (const name of ['fs', 'node:fs', 'node:node-fetch', 'node:@medplum/core', 'toString', '']) {
    t.throws(() => resolve(name), { message: `Cannot find module '${name}'` })
  }
})

t.test('parses and formats query strings as Node does', async (t) => {
  const { parse, stringify } = load('./modules.cjs').resolve('querystring')
  for (const text of ['a=1&b=2&a=3', 'x=%20y+z&=&q', '']) {
    t.same(plain(parse(text)), plain(querystring.parse(text)), text)
  }
  const query = { a: ['1', '2'], b: 'x y&é', c: 5 }
  t.equal(stringify(query), querystring.stringify(query))
})

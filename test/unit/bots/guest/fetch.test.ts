import { createServer } from 'node:http'
import type { Socket } from 'node:net'
import { gzipSync } from 'node:zlib'
import t from 'tap'
import {
  isPublicAddress,
  readHostRule,
  UNRESTRICTED,
} from '../../../../shared/core/config/outbound.ts'
import { fetchOutbound, type OutboundRequest } from '../../../../shared/outbound/fetch-outside.ts'
import { listen } from '../../../fixtures/http/listening.ts'

const heard: (string | undefined)[] = []
const server = createServer((req, res) => {
  heard.push(req.url)
  if (req.url === '/redirect') res.writeHead(302, { Location: '/json' }).end()
  else if (req.url === '/elsewhere') res.writeHead(307, { Location: `${other}/seen` }).end()
  else if (req.url === '/loop') res.writeHead(302, { Location: '/loop' }).end()
  else if (req.url === '/large') res.end(Buffer.alloc(10 * 1024 * 1024 + 1))
  else if (req.url === '/bomb') {
    res.writeHead(200, { 'Content-Encoding': 'gzip' }).end(gzipSync(Buffer.alloc(11 * 1024 * 1024)))
  } else if (req.url === '/gzip') {
    res.writeHead(200, { 'Content-Encoding': 'gzip' }).end(gzipSync('unpacked'))
  } else {
    const chunks: Buffer[] = []
    req.on('data', (chunk) => chunks.push(chunk))
    req.on('end', () => {
      const { method, headers } = req
      res.setHeader('Content-Type', 'application/json')
      res.end(JSON.stringify({ method, headers, body: Buffer.concat(chunks).toString() }))
    })
  }
})
const port = await listen(t, server)
const base = `http://127.0.0.1:${port}`
const other = `http://localhost:${port}`
const { signal } = new AbortController()

function outgoing(url: string, more: Partial<OutboundRequest> = {}): OutboundRequest {
  return { url, method: 'GET', headers: {}, body: undefined, redirect: 'follow', ...more }
}

t.test('classifies only public addresses as public', async (t) => {
  for (const address of [
    '127.0.0.1',
    '10.1.2.3',
    '172.16.0.1',
    '192.168.1.1',
    '169.254.169.254',
    '100.64.0.1',
    '0.0.0.0',
    '224.0.0.1',
    '255.255.255.255',
    '::1',
    '::',
    '::ffff:127.0.0.1',
    '::ffff:7f00:1',
    '64:ff9b::7f00:1',
    '2002:7f00:1::',
    'fe80::1',
    'fd00:ec2::254',
    'ff02::1',
    'localhost',
  ]) {
    t.notOk(isPublicAddress(address), address)
  }
  for (const address of ['1.1.1.1', '93.184.216.34', '2606:4700:4700::1111']) {
    t.ok(isPublicAddress(address), address)
  }
})

t.test('blocks private networks in every spelling under the public rule', async (t) => {
  for (const url of [
    base,
    'http://localhost/',
    'http://127.0.0.1/',
    'http://127.1/',
    'http://2130706433/',
    'http://0x7f000001/',
    'http://0177.0.0.1/',
    'http://[::1]/',
    'http://[::ffff:127.0.0.1]/',
    'http://169.254.169.254/latest/meta-data/',
    'http://example.com:22/',
    'file:///etc/passwd',
    'ftp://example.com/',
    'not a url',
  ]) {
    await t.rejects(fetchOutbound(outgoing(url), { ...UNRESTRICTED, reach: 'public' }, signal), url)
  }
  await t.rejects(fetchOutbound(outgoing(base), { ...UNRESTRICTED, reach: 'off' }, signal), {
    message: 'fetch is switched off',
  })
})

t.test('sends method, headers and body, and returns the response', async (t) => {
  const answer = await fetchOutbound(
    outgoing(`${base}/x`, {
      method: 'POST',
      headers: { 'content-type': 'text/plain', 'x-mine': 'yes', connection: 'upgrade' },
      body: Buffer.from('héllo'),
    }),
    UNRESTRICTED,
    signal,
  )
  t.equal(answer.status, 200)
  t.equal(answer.url, `${base}/x`)
  t.match(JSON.parse(answer.body.toString()), {
    method: 'POST',
    headers: { 'content-type': 'text/plain', 'x-mine': 'yes', 'content-length': '6' },
    body: 'héllo',
  })
  t.equal(
    (await fetchOutbound(outgoing(`${base}/gzip`), UNRESTRICTED, signal)).body.toString(),
    'unpacked',
  )
})

t.test('retries idempotent requests on a closed keep-alive connection', async (t) => {
  const used = new Set<Socket>()
  const forgetful = createServer((req, res) => {
    if (used.has(req.socket)) req.socket.destroy()
    else res.end('heard')
    used.add(req.socket)
  })
  const port = await listen(t, forgetful)
  for (let i = 0; i < 3; i++) {
    const sent = { ...outgoing(`http://127.0.0.1:${port}/`), isRepeatable: true }
    t.match(await fetchOutbound(sent, UNRESTRICTED, signal), {
      status: 200,
      body: Buffer.from('heard'),
    })
  }
})

t.test('follows redirects as fetch does, without credentials to other origins', async (t) => {
  const headers = { authorization: 'Bearer x', cookie: 'a=b' }
  const asked = outgoing(`${base}/redirect`, { method: 'POST', headers, body: 'x' })
  const same = JSON.parse((await fetchOutbound(asked, UNRESTRICTED, signal)).body.toString())
  t.match(same, { method: 'GET', body: '', headers })
  const away = await fetchOutbound({ ...asked, url: `${base}/elsewhere` }, UNRESTRICTED, signal)
  const seen = JSON.parse(away.body.toString())
  t.match(seen, { method: 'POST', body: 'x' })
  t.notOk('authorization' in seen.headers || 'cookie' in seen.headers)
  const manual = outgoing(`${base}/redirect`, { redirect: 'manual' })
  t.equal((await fetchOutbound(manual, UNRESTRICTED, signal)).status, 302)
  const refused = outgoing(`${base}/redirect`, { redirect: 'error' })
  await t.rejects(fetchOutbound(refused, UNRESTRICTED, signal))
  await t.rejects(
    fetchOutbound(outgoing(`${base}/loop`), UNRESTRICTED, signal),
    /Too many redirects/,
  )
})

t.test('treats spellings of header names alike', async (t) => {
  const sent = { Authorization: 'Bearer x', COOKIE: 'a=b', 'Transfer-Encoding': 'chunked' }
  const headers = { ...sent, 'Content-Length': '3', Upgrade: 'h2c' }
  const asked = outgoing(`${base}/elsewhere`, { method: 'POST', headers, body: 'all of it' })
  const away = await fetchOutbound(asked, UNRESTRICTED, signal)
  const seen = JSON.parse(away.body.toString())
  t.equal(seen.body, 'all of it')
  t.match(seen.headers, { 'content-length': '9' })
  for (const name of ['authorization', 'cookie', 'transfer-encoding', 'upgrade']) {
    t.notOk(name in seen.headers, name)
  }
})

t.test('follows no redirect to a forbidden address', async (t) => {
  const rule = readHostRule('localhost')
  const rules = { ...UNRESTRICTED, never: rule === undefined ? [] : [rule] }
  const before = heard.length
  t.equal((await fetchOutbound(outgoing(`${base}/x`), rules, signal)).status, 200)
  await t.rejects(fetchOutbound(outgoing(`${base}/elsewhere`), rules, signal), {
    message: 'localhost is among those that are not called',
  })
  t.same(heard.slice(before), ['/x', '/elsewhere'])
})

t.test('truncates an endless response at its limit', async (t) => {
  const cut = Promise.withResolvers<void>()
  const endless = createServer((_, res) => {
    const more = () => void res.write(Buffer.alloc(65_536), more)
    more()
    res.once('close', cut.resolve)
  })
  const port = await listen(t, endless)
  await t.rejects(fetchOutbound(outgoing(`http://127.0.0.1:${port}/`), UNRESTRICTED, signal), {
    message: 'The answer is larger than 10485760 bytes',
  })
  await cut.promise
})

t.test('limits responses, compressed or not', async (t) => {
  for (const path of ['/large', '/bomb']) {
    await t.rejects(fetchOutbound(outgoing(base + path), UNRESTRICTED, signal), path)
  }
})

t.test('ends a request with its run', async (t) => {
  const controller = new AbortController()
  const silent = createServer(() => controller.abort())
  const url = `http://127.0.0.1:${await listen(t, silent)}/`
  await t.rejects(fetchOutbound(outgoing(url), UNRESTRICTED, controller.signal), /run has ended/)
})

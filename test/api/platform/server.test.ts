/** Imports the address of rate limits, to try addresses that a local client cannot have. */
import { type ChildProcess, spawn } from 'node:child_process'
import { once } from 'node:events'
import { Agent, get, type IncomingMessage } from 'node:http'
import { connect } from 'node:net'
import { gzipSync } from 'node:zlib'
import t from 'tap'
import { freePort } from '../../../scripts/service.ts'
import { rateLimitAddress } from '../../../server/middleware/limits.ts'
import { openBotica, until } from '../../fixtures/botica.ts'

const {
  superAdmin: admin,
  anonymous: nobody,
  baseUrl,
} = await openBotica(t, {
  env: { MAX_BODY_BYTES: '100000' },
})
const json = { 'Content-Type': 'application/fhir+json' }

t.test('sends security headers and a request id with every response', async (t) => {
  const answers = [await nobody.get('/livez'), await nobody.get('Patient/1')]
  for (const { headers } of answers) {
    t.equal(headers.get('x-content-type-options'), 'nosniff')
    t.equal(headers.get('x-frame-options'), 'DENY')
    t.equal(headers.get('referrer-policy'), 'no-referrer')
    t.match(headers.get('content-security-policy'), /default-src 'none'/)
    t.match(headers.get('cache-control'), /no-store/)
    t.match(headers.get('x-request-id'), /^[0-9a-f-]{36}$/)
  }
})

t.test('keeps a valid request id and replaces others', async (t) => {
  const echoedId = async (id: string) =>
    (await nobody.get('/livez', { 'X-Request-Id': id })).headers.get('x-request-id')
  t.equal(await echoedId('abc.DEF_1-2'), 'abc.DEF_1-2')
  t.match(await echoedId('has space'), /^[0-9a-f-]{36}$/)
  t.match(await echoedId('x'.repeat(129)), /^[0-9a-f-]{36}$/)
  const { headers } = await nobody.get('/livez', { 'X-Correlation-Id': 'job-7' })
  t.equal(headers.get('x-correlation-id'), 'job-7')
})

t.test('includes request and trace in an outcome', async (t) => {
  const trace = '0af7651916cd43dd8448eb211c80319c'
  const headers = {
    'X-Request-Id': 'r1',
    traceparent: `00-${trace}-b7ad6b7169203331-01`,
  }
  t.match(await nobody.get('/nowhere', headers), {
    status: 404,
    body: {
      id: 'not-found',
      extension: [
        {
          url: 'https://medplum.com/fhir/StructureDefinition/tracing',
          extension: [
            { url: 'requestId', valueId: 'r1' },
            { url: 'traceId', valueId: trace },
          ],
        },
      ],
    },
  })
})

t.test('supports path aliases', async (t) => {
  t.equal((await nobody.get('/api/livez')).status, 200)
  t.equal((await nobody.get('/livez/')).status, 200)
  t.equal((await nobody.get('/fhir/R4/metadata/')).status, 200)
  t.equal((await nobody.get('/fhir/r4/metadata')).status, 404)
  t.equal((await nobody.get('/fhir/R4')).status, 401)
  t.equal((await nobody.get('/fhir/R4x')).status, 404)
  t.equal((await nobody.get('/fhir/R4/.well-known/smart-configuration')).status, 200)
  t.equal((await nobody.post('/api/fhir/R4/Project/%24init')).status, 401)
  t.equal((await nobody.get('/livezz')).status, 404)
  t.equal((await nobody.get('/%zz')).status, 404)
})

t.test('returns 405 with the allowed method for a known path', async (t) => {
  const refused = await nobody.get('/oauth2/token')
  t.equal(refused.status, 405)
  t.match(refused.headers.get('allow'), /POST/)
})

t.test('returns 414 for a URL over 32 KiB', async (t) => {
  t.match(await nobody.get(`/livez?x=${'y'.repeat(33_000)}`), {
    status: 414,
    body: { resourceType: 'OperationOutcome' },
  })
})

t.test('rejects invalid HTTP with an outcome and keeps running', async (t) => {
  const socket = connect(Number(new URL(baseUrl).port), '127.0.0.1')
  socket.end('GARBAGE\r\n\r\n')
  const chunks: Buffer[] = []
  socket.on('data', (chunk) => chunks.push(chunk))
  await once(socket, 'close')
  t.match(Buffer.concat(chunks).toString(), /^HTTP\/1.1 400 [\s\S]*OperationOutcome/)
  t.equal((await nobody.get('/livez')).status, 200)
})

t.test('limits bodies, including decompressed ones', async (t) => {
  const big = JSON.stringify({ resourceType: 'Project', name: 'x'.repeat(300_000) })
  const tooLarge = {
    status: 413,
    body: { issue: [{ code: 'too-long', details: { text: 'File too large' } }] },
  }
  t.match(await admin.post('/admin/Project', big, json), tooLarge)
  const gzip = { ...json, 'Content-Encoding': 'gzip' }
  t.match(await admin.post('/admin/Project', gzipSync(big), gzip), tooLarge)
  const bomb = gzipSync(Buffer.alloc(90_000, ' '))
  t.match(await admin.post('/admin/Project', bomb, gzip), tooLarge)
  const fine = gzipSync('{"resourceType":"Project","name":"Packed"}')
  t.match(await admin.post('/admin/Project', fine, gzip), { status: 201 })
  t.equal((await admin.post('/admin/Project', '{}', gzip)).status, 400)
  const odd = { ...json, 'Content-Encoding': 'zip' }
  t.match(await admin.post('/admin/Project', '{}', odd), {
    status: 400,
    body: { issue: [{ details: { text: 'Unsupported content encoding' } }] },
  })
})

t.test('returns failed OAuth requests in the format of RFC 6749', async (t) => {
  t.match(await nobody.get('/oauth2/userinfo'), { status: 401, body: { error: 'invalid_token' } })
  t.match(await nobody.get('/oauth2/nothing'), { status: 404, body: { error: 'invalid_request' } })
})

t.test('compresses large responses by Accept-Encoding', async (t) => {
  const readCoding = async (accept: string, path: string) => {
    const { headers } = await nobody.get(path, { 'Accept-Encoding': accept })
    return headers.get('content-encoding')
  }
  t.equal(await readCoding('br, gzip', '/fhir/R4/metadata'), 'br')
  t.equal(await readCoding('gzip', '/fhir/R4/metadata'), 'gzip')
  t.equal(await readCoding('identity', '/fhir/R4/metadata'), null)
  t.equal(await readCoding('gzip', '/livez'), null)
})

t.test('echoes the origin for CORS and allows credentials', async (t) => {
  const preflight = await fetch(`${baseUrl}fhir/R4/Patient`, {
    method: 'OPTIONS',
    headers: {
      Origin: 'https://app.example.org',
      'Access-Control-Request-Method': 'PUT',
      'Access-Control-Request-Headers': 'x-odd',
    },
  })
  t.equal(preflight.status, 204)
  t.equal(preflight.headers.get('access-control-allow-origin'), 'https://app.example.org')
  t.equal(preflight.headers.get('access-control-allow-credentials'), 'true')
  t.equal(preflight.headers.get('access-control-allow-headers'), 'x-odd')
  t.equal(preflight.headers.get('access-control-max-age'), '86400')
  const refused = await nobody.get('Patient/1', { Origin: 'https://app.example.org' })
  t.match(refused.headers.get('access-control-expose-headers'), /ETag/)
  t.equal(refused.headers.get('access-control-allow-origin'), 'https://app.example.org')

  const strict = await openBotica(t, { env: { CORS_ORIGINS: 'https://only.example.org' } })
  const foreign = await strict.anonymous.get('/livez', { Origin: 'https://app.example.org' })
  t.equal(foreign.headers.get('access-control-allow-origin'), null)
})

t.test('reports every component in health, and counts metrics by route', async (t) => {
  t.match(await nobody.get('/healthcheck'), {
    status: 200,
    body: {
      ok: true,
      postgres: true,
      redis: true,
      storage: true,
      workers: Boolean,
      latencyMs: { postgres: Number, redis: Number },
    },
  })
  t.equal((await nobody.get('/')).status, 200)
  t.match((await nobody.get('/robots.txt')).text, /Disallow: \//)
  await admin.get('Patient/00000000-0000-4000-8000-000000000000')
  const { text } = await nobody.get('/metrics')
  t.match(
    text,
    /http_requests_total\{method="GET",route="\/livez",status="200",process="[^"]+:\d+"\}/,
  )
  t.match(text, /route="\/fhir\/R4\/:type\/:id",status="404"/)
  t.notMatch(text, /00000000-0000-4000/)
  t.match(text, /cache_entries\{cache="verified-tokens",process="[^"]+"\} [1-9]/)
  t.match(text, /cache_lookups_total\{cache="verified-tokens",result="hit",process="[^"]+"\} [1-9]/)
  t.equal((await nobody.get('/metrics', { 'X-Forwarded-For': '1.2.3.4' })).status, 401)
  const guarded = await openBotica(t, { env: { METRICS_TOKEN: 'for the scraper' } })
  const scrape = async (headers = {}) => (await guarded.anonymous.get('/metrics', headers)).status
  t.equal(await scrape(), 401, 'requires a configured token on this machine too')
  t.equal(await scrape({ Authorization: 'Bearer for the' }), 401)
  t.equal(await scrape({ Authorization: 'Bearer for the scraper' }), 200)
})

t.test('returns 429 with Retry-After over the limit per minute', async (t) => {
  const limited = await openBotica(t, {
    env: { RATE_LIMIT_PER_MINUTE: '1000', AUTH_RATE_LIMIT_PER_MINUTE: '5' },
  })
  const ask = () => limited.anonymous.post('/oauth2/token')
  // A new minute may start between two requests, so the limit is reached within two rounds.
  const answers = []
  for (let count = 0; count < 12; count++) answers.push(await ask())
  const refused = answers.find(({ status }) => status === 429)
  t.match(refused?.headers.get('ratelimit'), /^"requests";r=0;t=\d+$/)
  t.match(refused?.headers.get('retry-after'), /^\d+$/)
  t.match(answers[0]?.headers.get('ratelimit'), /^"requests";r=[0-4];t=\d+$/)
  t.equal((await limited.anonymous.get('/livez')).status, 200)
  t.match((await limited.anonymous.get('/livez')).headers.get('ratelimit'), /^"requests";r=9\d\d;/)

  const free = await openBotica(t, { env: { RATE_LIMIT_PER_MINUTE: '0' } })
  t.equal((await free.anonymous.get('/livez')).headers.get('ratelimit'), null)
})

t.test('counts IPv6 by subnet', async (t) => {
  t.equal(rateLimitAddress('1.2.3.4'), '1.2.3.4')
  t.equal(rateLimitAddress('::ffff:1.2.3.4'), '1.2.3.4')
  t.equal(rateLimitAddress('2001:db8:1:2:3:4:5:6'), '2001:db8:1:2::/64')
  t.equal(rateLimitAddress('2001:db8::6'), '2001:db8:0:0::/64')
  t.equal(rateLimitAddress('::1'), '0:0:0:0::/64')
})

function startMain(env: NodeJS.ProcessEnv): { child: ChildProcess; output: () => string } {
  const child = spawn(process.execPath, ['server/main.ts'], {
    env: { ...process.env, LOG_LEVEL: 'info', ...env },
    stdio: ['ignore', 'pipe', 'pipe'],
  })
  let output = ''
  for (const stream of [child.stdout, child.stderr]) {
    stream?.on('data', (chunk) => {
      output += chunk
    })
  }
  t.teardown(() => child.kill('SIGKILL'))
  return { child, output: () => output }
}

t.test('exits with one line for each invalid setting', async (t) => {
  const { child, output } = startMain({ PORT: 'x', LOG_LEVEL: 'loud' })
  const [code] = await once(child, 'close')
  t.equal(code, 1)
  t.match(output(), /^PORT is "x"[^\n]*\nLOG_LEVEL is "loud"[^\n]*\n$/)
})

t.test('exits with one sentence if the database is missing', async (t) => {
  const url = new URL(process.env.DATABASE_URL ?? '')
  url.pathname = '/botica_is_not_here'
  const { child, output } = startMain({ DATABASE_URL: url.href, LOG_LEVEL: 'silent' })
  const [code] = await once(child, 'close')
  t.equal(code, 1)
  t.match(output(), /^PostgreSQL refuses the connection: [^\n]*DATABASE_URL\n$/)
})

t.test('exits with one sentence if the port is in use', async (t) => {
  const { child, output } = startMain({ PORT: new URL(baseUrl).port })
  const [code] = await once(child, 'close')
  t.equal(code, 1)
  t.match(output(), /^Port \d+ is in use; [^\n]*\n$/)
})

t.test('completes running requests on SIGTERM and exits with 0', async (t) => {
  const port = await freePort()
  const { child, output } = startMain({ PORT: String(port) })
  await until(async () => output().includes('listening'), 120_000)

  const socket = connect(port, '127.0.0.1')
  let answer = ''
  socket.on('data', (chunk) => {
    answer += chunk
  })
  const idle = connect(port, '127.0.0.1')
  await once(idle, 'connect')
  const head = 'POST /oauth2/token HTTP/1.1\r\nHost: x\r\nContent-Length: 4\r\n'
  socket.write(`${head}Content-Type: application/x-www-form-urlencoded\r\n\r\n`)
  await until(async () => (await fetch(`http://127.0.0.1:${port}/livez`)).ok, 60_000)
  child.kill('SIGTERM')
  await until(async () => output().includes('stopping'), 60_000)
  const answered = once(socket, 'close')
  socket.write('a=bc')
  const [code] = await once(child, 'close')
  await answered
  t.equal(code, 0)
  t.match(answer, /^HTTP\/1.1 400 [\s\S]*connection: close[\s\S]*Missing grant_type/i)
})

t.test('announces shutdown on kept connections before closing them', async (t) => {
  const port = await freePort()
  const url = `http://127.0.0.1:${port}/livez`
  const { child, output } = startMain({
    PORT: String(port),
    WAITS: JSON.stringify({ drainMs: 60_000 }),
  })
  await until(async () => output().includes('listening'), 120_000)
  const agent = new Agent({ keepAlive: true, maxSockets: 1 })
  const first = await readHeaders(url, agent)
  t.equal(first.connection, 'keep-alive')
  child.kill('SIGTERM')
  await until(async () => output().includes('stopping'), 60_000)

  t.equal((await readHeaders(url, agent)).connection, 'close', 'the connection was kept')
  t.equal((await fetch(url)).headers.get('connection'), 'close', 'still accepts others')
  child.kill('SIGTERM')
  await once(child, 'close')
})

async function readHeaders(url: string, agent: Agent) {
  const res = await new Promise<IncomingMessage>((resolve) => get(url, { agent }, resolve))
  res.resume()
  await once(res, 'end')
  return res.headers
}

t.test('returns request timings only to project admins', async (t) => {
  const botica = await openBotica(t)
  const asked = { 'X-Debug-Timing': '1' }
  const told = await botica.admin.get('Patient', asked)
  t.match(told.headers.get('server-timing'), /^db;dur=\d+\.\d, total;dur=\d+\.\d$/)
  t.notOk((await botica.admin.get('Patient')).headers.has('server-timing'))
  const { client } = await botica.createMember()
  t.notOk((await client.get('Patient', asked)).headers.has('server-timing'))
})

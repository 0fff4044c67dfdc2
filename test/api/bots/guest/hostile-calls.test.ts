import t from 'tap'
import { startCanary } from '../../../fixtures/attacks/attack.ts'
import { openBotica } from '../../../fixtures/botica.ts'
import { aBot, execute, handler } from '../../../fixtures/bots/bots.ts'

const botica = await openBotica(t, { worker: true, env: { BOT_FETCH: 'public' } })
const { admin } = botica
const other = await botica.createTenant()
const patient = await other.admin.post('Patient', { resourceType: 'Patient' })
const neighbour = await aBot(other, handler('return event.input'))

const LONGEST_MS = 30_000

type Attack = readonly [name: string, code: string, says: string | RegExp]

const privateAddresses = [
  'http://127.0.0.1/',
  'http://localhost/',
  'http://127.1/',
  'http://2130706433/',
  'http://[::ffff:127.0.0.1]/',
  'http://169.254.169.254/latest/meta-data/',
  'http://10.0.0.1/',
]

/** Code of a bot and the response to its caller: the text of the outcome, or the result. */
const attacks: readonly Attack[] = [
  ...privateAddresses.map(
    (url): Attack => [`a fetch of ${url}`, `await fetch('${url}')`, /is not a public address$/],
  ),
  [
    'a fetch of a file',
    `await fetch('file:///etc/passwd')`,
    'fetch knows http and https, not file:',
  ],
  [
    'a fetch of another port',
    `await fetch('http://example.com:6379/')`,
    'Port 6379 is not allowed',
  ],
  [
    'a header with a line break',
    `await fetch('http://example.com/', { headers: { 'x-a': 'b\\r\\nauthorization: Basic x' } })`,
    'Invalid header value',
  ],
  [
    'a header name with a line break',
    `await medplum.get('fhir/R4/Patient', { headers: { 'x-a: b\\r\\nx-c': 'd' } }); return 'unheard'`,
    'unheard',
  ],
  [
    'a method with a line break',
    `await fetch('http://1.1.1.1/', { method: 'GET / HTTP/1.1\\r\\nHost: x\\r\\n\\r\\nPOST' })`,
    /method/i,
  ],
  [
    'its credentials',
    `return (await medplum.get('fhir/R4/Patient', { headers: { Authorization: 'Bearer forged', Cookie: 'a=b' } })).type`,
    'searchset',
  ],
  ['an address of another service', `await medplum.get('https://example.com/')`, /use fetch/],
  ['an address without a scheme', `await medplum.get('//example.com/Patient')`, /use fetch/],
  ['the administration', `await medplum.get('/admin/projects/${other.project.id}')`, 'Not found'],
  ['a way up out of FHIR', `await medplum.get('fhir/R4/../../metrics')`, 'Not found'],
  [
    'a long run of slashes',
    `await medplum.get('fhir/R4/Patient' + '/'.repeat(300_000) + 'x')`,
    'Not found',
  ],
  ['an encoded way up', `await medplum.get('fhir/R4/%2e%2e/%2e%2e/metrics')`, 'Not found'],
  [
    'a resource of another tenant',
    `await medplum.readResource('Patient', '${patient.body.id}')`,
    'Not found',
  ],
  [
    'an invitation into another tenant',
    `await medplum.invite('${other.project.id}', { resourceType: 'Patient', firstName: 'A', lastName: 'B' })`,
    /Forbidden|Not found/,
  ],
  ['its project', `await medplum.createResource({ resourceType: 'Project', name: 'x' })`, /./],
  [
    'a membership that is an admin of all',
    `await medplum.createResource({ resourceType: 'ProjectMembership', admin: true, project: { reference: 'Project/${other.project.id}' }, user: { reference: 'User/x' }, profile: { reference: 'Bot/x' } })`,
    /./,
  ],
  [
    'more requests than a run may make',
    `for (let i = 0; i < 60; i++) await Promise.all(Array.from({ length: 20 }, () => medplum.get('/admin/nothing').catch((e) => { if (/may make/.test(e.message)) throw e })))`,
    'A run may make 1000 requests',
  ],
  [
    'tens of thousands of requests at once',
    `const all = await Promise.allSettled(Array.from({ length: 30_000 }, () => medplum.get('/admin/nothing'))); throw all.at(-1).reason`,
    /A run may make \d+ (requests|calls)|Bot exceeded CPU limit/,
  ],
  [
    'more fetches than a run may make',
    `for (let i = 0; i < 51; i++) await fetch('file:///x').catch((e) => { if (/may make/.test(e.cause?.message)) throw e })`,
    'A run may make 50 fetches',
  ],
  [
    'bots that call each other without end',
    `return await medplum.executeBot(event.bot.reference.slice(4), {})`,
    'Bots call each other more than 10 deep',
  ],
  [
    'a hidden depth',
    `return await medplum.post('fhir/R4/' + event.bot.reference + '/$execute', {}, 'application/json', { headers: { 'X-Bot-Depth': '-100', 'x-bot-depth': '0' } })`,
    'Bots call each other more than 10 deep',
  ],
  [
    'a log that holds a secret in pieces of an object',
    `console.log({ a: event.headers.authorization ?? 'none', b: event.headers.cookie ?? 'none' }); return event.headers.authorization ?? 'none'`,
    'none',
  ],
]

t.test('ends attacks on worker calls with a documented result', async (t) => {
  const canary = startCanary(async () => {
    const { status, text } = await execute(other.admin, neighbour, { a: 1 })
    if (status !== 200) throw new Error(`The neighbour got ${status} ${text}`)
  })
  for (const [name, code, says] of attacks) {
    const id = await aBot(botica, handler(`try { ${code} } catch (e) { throw e.cause ?? e }`), {
      fields: { timeout: 60 },
    })
    const answer = await execute(admin, id, {}, { Prefer: 'wait=100' })
    const isRefused = answer.status === 400
    const text = isRefused ? answer.body.issue[0].details.text : answer.text
    t.ok(answer.status === 200 || isRefused, `${name}: status ${answer.status}`)
    if (typeof says === 'string') t.equal(text, says, name)
    else t.match(text, says, name)
  }
  const { songs, longestMs } = await canary.stop()
  t.ok(songs > 3, `answered ${songs} times`)
  t.ok(longestMs < LONGEST_MS, `after ${Math.round(longestMs)} ms at worst`)
})

t.test('injects no header through a content type of a bot', async (t) => {
  const code = handler(
    `return { resourceType: 'Binary', contentType: 'text/html\\r\\nSet-Cookie: a=b', data: 'PGI+' }`,
  )
  const answer = await admin.get(`Bot/${await aBot(botica, code)}/$execute`)
  t.equal(answer.status, 200)
  t.equal(answer.headers.get('set-cookie'), null)
})

t.test('returns an error for a page that is too large, and runs other bots', async (t) => {
  const data = 'A'.repeat(14 * 1024 * 1024)
  for (let count = 0; count < 5; count++) {
    const attachment = { contentType: 'application/octet-stream', data }
    const document = { resourceType: 'DocumentReference', status: 'current' }
    const made = await admin.post('DocumentReference', { ...document, content: [{ attachment }] })
    t.equal(made.status, 201)
  }
  const id = await aBot(botica, handler(`return medplum.search('DocumentReference')`))
  const answer = await execute(admin, id, {}, { Prefer: 'wait=100' })
  t.equal(answer.status, 400)
  t.equal(answer.body.issue[0].details.text, 'The content is larger than 20 MB')
  t.same((await execute(other.admin, neighbour, { a: 1 })).body, { a: 1 })
})

import { createHmac, randomUUID } from 'node:crypto'
import t from 'tap'
import { openBotica } from '../../../fixtures/botica.ts'
import { aBot, eventually, handler, type Untyped } from '../../../fixtures/bots/bots.ts'

const botica = await openBotica(t, { worker: true })
const { admin, anonymous, project } = botica

const policy = await admin.create({
  resourceType: 'AccessPolicy',
  name: 'Hooks',
  resource: [{ resourceType: 'Basic' }],
} as Untyped)

interface Hook {
  readonly bot: string
  readonly url: string
}

async function aHook(body: string, fields: object = {}, accessPolicy = true): Promise<Hook> {
  const bot = await aBot(botica, handler(body), { fields: { publicWebhook: true, ...fields } })
  const found = await admin.get<Untyped>(`ProjectMembership?profile=Bot/${bot}`)
  const membership = found.body.entry[0].resource
  if (accessPolicy) {
    const changed = { ...membership, accessPolicy: { reference: `AccessPolicy/${policy.id}` } }
    t.equal((await admin.put(`ProjectMembership/${membership.id}`, changed)).status, 200)
  }
  botica.services.principals.forget()
  return { bot, url: `/webhook/${membership.id}` }
}

const json = { 'Content-Type': 'application/json' }

t.test('runs the bot as its own member for anyone with the URL', async (t) => {
  const { bot, url } = await aHook(`
    const basic = await medplum.createResource({ resourceType: 'Basic', code: { text: event.input.a } })
    return { id: basic.id, requester: event.requester ?? null, profile: medplum.getProfile().id }`)
  const answer = await anonymous.post<Untyped>(url, '{"a":"b"}', json)
  t.equal(answer.status, 200)
  t.match(answer.body, { requester: null, profile: bot })
  t.ok(answer.headers.get('x-bot-run-id'))
  const stored = await admin.get<Untyped>(`Basic/${answer.body.id}`, { 'X-Medplum': 'extended' })
  t.match(stored.body, {
    code: { text: 'b' },
    meta: { author: { reference: `Bot/${bot}` }, project: project.id },
  })
})

t.test('returns the content of a Binary', async (t) => {
  const data = Buffer.from('<Response/>').toString('base64')
  const { url } = await aHook(
    `return { resourceType: 'Binary', contentType: 'application/xml', data: '${data}' }`,
  )
  const answer = await anonymous.post<Untyped>(url, '{}', json)
  t.equal(answer.status, 200)
  t.match(answer.headers.get('content-type'), /^application\/xml/)
  t.equal(answer.text, '<Response/>')
})

t.test('runs no script of a returned page in this origin', async (t) => {
  for (const contentType of ['text/html', 'image/svg+xml', 'application/xhtml+xml']) {
    const data = Buffer.from('<svg onload="1"><script>1</script></svg>').toString('base64')
    const { url } = await aHook(
      `return { resourceType: 'Binary', contentType: '${contentType}', data: '${data}' }`,
    )
    const { headers } = await anonymous.post(url, '{}', json)
    t.match(headers.get('content-type'), contentType)
    t.match(headers.get('content-security-policy'), /^default-src 'none'.*frame-ancestors 'none'/)
    t.equal(headers.get('x-content-type-options'), 'nosniff')
  }
})

t.test('applies the policy of its member to the run', async (t) => {
  const { url } = await aHook(`return await medplum.createResource({ resourceType: 'Patient' })`)
  const answer = await anonymous.post<Untyped>(url, '{}', json)
  t.equal(answer.status, 400)
  t.match(answer.body, { issue: [{ code: 'forbidden' }] })
})

t.test('verifies a signature on the raw body', async (t) => {
  const { url } = await aHook(`
    const { createHmac, timingSafeEqual } = require('crypto')
    const expected = createHmac('sha256', 'hook-key').update(event.rawBody).digest('hex')
    const given = event.headers['x-signature'] ?? ''
    const isSigned = given.length === expected.length &&
      timingSafeEqual(Buffer.from(given), Buffer.from(expected))
    return { isSigned, input: event.input, raw: event.rawBody }`)
  const bodies: readonly (readonly [string, string, unknown])[] = [
    ['application/json', '{ "a" : 1.50,\n"b":"é" }', { a: 1.5, b: 'é' }],
    ['application/x-www-form-urlencoded', 'b=2&a=x+y&b=%33', { b: ['2', '3'], a: 'x y' }],
    ['text/plain', 'words', 'words'],
  ]
  for (const [type, body, input] of bodies) {
    const signature = createHmac('sha256', 'hook-key').update(body).digest('hex')
    const headers = { 'Content-Type': type, 'X-Signature': signature }
    const answer = await anonymous.post<Untyped>(url, body, headers)
    t.same(answer.body, { isSigned: true, input, raw: body }, type)
    const forged = await anonymous.post<Untyped>(url, `${body} `, headers)
    t.equal(forged.body.isSigned, false, type)
  }
  const none = await anonymous.post<Untyped>(url)
  t.same(none.body, { isSigned: false, input: {}, raw: '' })
})

t.test('answers GET with its query', async (t) => {
  const { url } = await aHook(`return { input: event.input, raw: event.rawBody }`)
  t.same((await anonymous.get(`${url}?hub.challenge=5&a=1&a=2`)).body, {
    input: { 'hub.challenge': '5', a: ['1', '2'] },
    raw: '',
  })
})

t.test('runs no bot for HEAD', async (t) => {
  const { bot, url } = await aHook('return event.input')
  const head = await fetch(`${botica.baseUrl}${url.slice(1)}?a=1`, { method: 'HEAD' })
  t.same([head.status, head.headers.get('allow')], [405, 'GET, POST'])
  t.same((await anonymous.get(`${url}?a=1`)).body, { a: '1' })
  const runs = await eventually(async () => {
    const { body } = await admin.get<Untyped>(`Bot/${bot}/$runs`)
    return body.parameter as Untyped[] | undefined
  })
  t.equal(runs.length, 1)
})

t.test('requires a bot with the web hook enabled and a policy', async (t) => {
  const closed = await aHook('return 1', { publicWebhook: false })
  const free = await aHook('return 1', {}, false)
  const members = await admin.get<Untyped>('ProjectMembership?profile:missing=false&_count=100')
  const person = members.body.entry.find(({ resource }: Untyped) =>
    resource.profile.reference.startsWith('ClientApplication/'),
  )
  for (const url of [closed.url, free.url, `/webhook/${person.resource.id}`]) {
    const answer = await anonymous.post(url, '{}', json)
    t.equal(answer.status, 403, url)
    t.equal(answer.text, 'Forbidden')
  }
  for (const id of [randomUUID(), 'x', project.id]) {
    t.equal((await anonymous.post(`/webhook/${id}`, '{}', json)).status, 404, id)
  }
  t.equal((await anonymous.put(closed.url, {})).status, 405)
})

t.test('reports errors as $execute does', async (t) => {
  const thrown = await aHook(`throw new Error('no way')`)
  const failed = await anonymous.post<Untyped>(thrown.url, '{}', json)
  t.equal(failed.status, 400)
  t.equal(failed.body.issue[0].details.text, 'no way')
  const bad = await anonymous.post<Untyped>(thrown.url, '{', json)
  t.equal(bad.body.issue[0].details.text, 'Content could not be parsed')
})

t.test('limits a hook to 600 calls a minute', async (t) => {
  const { url } = await aHook('return 1', { publicWebhook: false })
  const statuses: number[] = []
  while (statuses.length < 1300 && statuses.at(-1) !== 429) {
    const answers = await Promise.all(Array.from({ length: 50 }, () => anonymous.get(url)))
    statuses.push(...answers.map(({ status }) => status).sort())
  }
  t.equal(statuses.at(-1), 429)
  t.ok(statuses.filter((status) => status === 403).length >= 600)
})

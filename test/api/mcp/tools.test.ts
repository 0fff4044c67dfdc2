import t from 'tap'
import { scopedClient } from '../../fixtures/attacks/scoped.ts'
import { openBotica } from '../../fixtures/botica.ts'
import { aBot, deploy, eventually, handler, type Untyped } from '../../fixtures/bots/bots.ts'
import { memberUnder } from '../../fixtures/policy/policy.ts'
import { aPatient } from '../../fixtures/resources.ts'
import { aTool, openModel } from './mcp.ts'

const botica = await openBotica(t, { worker: true, env: { BOT_TIMEOUT_MS: '100000' } })
const { admin, baseUrl, adminCredentials } = botica
const OWN = ['fhir-read', 'fhir-search', 'fhir-request', 'graphql']
const text = (length: number) => 'x'.repeat(length)
const [ada, big] = await Promise.all([
  admin.create(
    aPatient({ name: [{ family: 'Lovelace' }], gender: 'female', birthDate: '1815-12-10' }),
  ),
  admin.create({ resourceType: 'Basic', code: { text: text(50_000) } }),
  ...Array.from({ length: 12 }, (_, i) =>
    admin.create({
      resourceType: 'Observation',
      status: 'final',
      code: { text: `${i} ${text(6000)}` },
    }),
  ),
])
const addition = {
  type: 'object',
  properties: { a: { type: 'integer' }, b: { type: 'integer' } },
  required: ['a', 'b'],
  additionalProperties: false,
}
const adder = await aBot(botica, handler('return { sum: event.input.a + event.input.b }'), {
  fields: aTool('add', addition, 'Adds two numbers'),
})

for (const mode of ['legacy', 'auto'] as const) {
  t.test(`lists and runs tools in the ${mode} protocol`, async (t) => {
    const { client, names, call } = await openModel(t, baseUrl, admin.token, mode)
    t.match(client.getServerVersion(), { name: 'botica' })
    t.match(client.getInstructions(), /FHIR/)
    t.same(await names(), [...OWN, 'add'])
    const { tools } = await client.listTools()
    t.match(
      tools.find(({ name }) => name === 'add'),
      { description: 'Adds two numbers', inputSchema: addition },
    )
    const { text, isError, runId } = await call('add', { a: 2, b: 3 })
    t.same([JSON.parse(text), isError], [{ sum: 5 }, false])
    t.match(runId, /^[0-9a-f-]{36}$/)
    await t.rejects(call('subtract'), { message: /Unknown tool: subtract/ })
  })
}

t.test('checks the arguments of a tool by its schema before the bot runs', async (t) => {
  const { call } = await openModel(t, baseUrl, admin.token)
  const { text, isError, runId } = await call('add', { a: 'two', c: 1 })
  t.ok(isError)
  t.equal(runId, undefined)
  t.match(text, /must have b; \/a must be of type integer; \/c is not allowed/)
  t.match(await call('fhir-read', { type: 'patient', id: '1' }), { isError: true, text: /\/type/ })
})

t.test('rejects arguments that are nested deeply', async (t) => {
  const deep = `${'['.repeat(50_000)}${']'.repeat(50_000)}`
  const headers = {
    'Content-Type': 'application/json',
    Accept: 'application/json, text/event-stream',
  }
  for (const [name, args] of [
    ['add', `{"a":1,"b":2,"c":${deep}}`],
    ['graphql', `{"query":"{ __typename }","variables":{"deep":${deep}}}`],
    ['fhir-request', `{"method":"POST","path":"Patient","body":${deep}}`],
  ] as const) {
    const params = `{"name":"${name}","arguments":${args}}`
    const call = `{"jsonrpc":"2.0","id":1,"method":"tools/call","params":${params}}`
    const { status, text } = await admin.post('/mcp', call, headers)
    t.equal(status, 200)
    t.match(text, /The arguments are nested deeper than 64 levels.*"isError":true/, name)
  }
})

t.test('returns the failure of a bot as a result with its outcome', async (t) => {
  await aBot(botica, handler('throw new Error("The pharmacy is closed")'), {
    fields: aTool('order', { type: 'object' }),
  })
  const { call } = await openModel(t, baseUrl, admin.token)
  t.match(await call('order'), { isError: true, text: /The pharmacy is closed/ })
})

t.test('reads, searches and queries', async (t) => {
  const { call } = await openModel(t, baseUrl, admin.token)
  const read = await call('fhir-read', { type: 'Patient', id: ada.id })
  t.match(JSON.parse(read.text), { resourceType: 'Patient', id: ada.id, gender: ada.gender })
  const part = await call('fhir-read', { type: 'Patient', id: ada.id, elements: ['name'] })
  t.notOk('gender' in JSON.parse(part.text))
  const found = await call('fhir-search', { type: 'Patient', query: '?family=lovelace' })
  t.match(JSON.parse(found.text), { type: 'searchset', entry: [{ resource: { id: ada.id } }] })
  const query = `{ Patient(id: "${ada.id}") { name { family } } }`
  const graph = await call('graphql', { query })
  t.same(JSON.parse(graph.text), { data: { Patient: { name: [{ family: 'Lovelace' }] } } })
  const history = await call('fhir-request', {
    method: 'GET',
    path: `${baseUrl}fhir/R4/Patient/${ada.id}/_history`,
  })
  t.match(JSON.parse(history.text), { type: 'history' })
  t.match(await call('fhir-read', { type: 'Patient', id: 'none' }), {
    isError: true,
    text: /Not found/,
  })
  for (const path of ['https://example.org/Patient', '../admin', 'Patient/..', 'a\\b']) {
    t.match(await call('fhir-request', { method: 'GET', path }), { isError: true, text: /below/ })
  }
})

t.test('runs the calls of a batch one after the other', async (t) => {
  const code = handler(`const begun = Date.now()
    await new Promise((resolve) => setTimeout(resolve, 200))
    return { begun, ended: Date.now() }`)
  await aBot(botica, code, { fields: aTool('wait', { type: 'object' }) })
  const { names } = await openModel(t, baseUrl, admin.token)
  await eventually(async () => ((await names()).includes('wait') ? true : undefined))
  const batch = [1, 2, 3].map((id) => ({
    jsonrpc: '2.0',
    id,
    method: 'tools/call',
    params: { name: 'wait', arguments: {} },
  }))
  const { text } = await admin.post('/mcp', JSON.stringify(batch), {
    'Content-Type': 'application/json',
    Accept: 'application/json, text/event-stream',
  })
  const runs = [...text.matchAll(/\\"begun\\":(\d+),\\"ended\\":(\d+)/g)]
    .map(([, begun, ended]) => ({ begun: Number(begun), ended: Number(ended) }))
    .sort((a, b) => a.begun - b.begun)
  t.equal(runs.length, 3, text)
  t.ok(runs.every(({ begun }, i) => begun >= (runs[i - 1]?.ended ?? 0)))
})

t.test('keeps results within the budget, with links to the rest', async (t) => {
  const { call } = await openModel(t, baseUrl, admin.token)
  const seen = new Set<string>()
  let answer = await call('fhir-search', { type: 'Observation', count: 100 })
  for (let pages = 0; pages < 13; pages++) {
    t.ok(answer.text.length <= 40_000)
    const { entry, link } = JSON.parse(answer.text)
    for (const { resource } of entry) seen.add(resource.id)
    const next = link.find(({ relation }: { relation: string }) => relation === 'next')
    if (next === undefined) break
    answer = await call('fhir-request', { method: 'GET', path: next.url })
  }
  t.equal(seen.size, 12)
  const { text } = await call('fhir-read', { type: 'Basic', id: big.id })
  t.match(text, /^\{"resourceType":"Basic".*x\n\[\d+ more characters are cut off/s)
  t.ok(text.length < 40_100)
})

t.test('writes only if the scope has a word that allows it', async (t) => {
  const reader = await openModel(t, baseUrl, admin.token)
  const create = { method: 'POST', path: 'Patient', body: aPatient() }
  t.match(await reader.call('fhir-request', create), {
    isError: true,
    text: /method must be one of/,
  })
  const mutation =
    'mutation { PatientCreate(res: { resourceType: "Patient", active: true }) { id } }'
  t.match(await reader.call('graphql', { query: mutation }), { isError: true })
  const run = { method: 'GET', path: `Bot/${adder}/$execute?a=1&b=2` }
  t.match(await reader.call('fhir-request', run), { isError: true, text: /not allowed/ })

  const scope = 'system/Patient.cruds system/Bot.rs'
  const writing = await scopedClient(botica, adminCredentials, scope)
  const writer = await openModel(t, baseUrl, writing.token)
  const made = await writer.call('fhir-request', create)
  t.equal(made.isError, false)
  const { id } = JSON.parse(made.text)
  const patch = [{ op: 'add', path: '/active', value: true }]
  const patched = { method: 'PATCH', path: `Patient/${id}`, body: JSON.stringify(patch) }
  t.match(JSON.parse((await writer.call('fhir-request', patched)).text), { active: true })
  const gone = await writer.call('fhir-request', { method: 'DELETE', path: `Patient/${id}` })
  t.equal(gone.isError, false)
  t.equal((await admin.get(`Patient/${id}`)).status, 410)
  const created = JSON.parse((await writer.call('graphql', { query: mutation })).text)
  t.match(created, { data: { PatientCreate: { id: /./ } } })
  const basic = {
    method: 'POST',
    path: 'Basic',
    body: { resourceType: 'Basic', code: { text: 'x' } },
  }
  t.match(await writer.call('fhir-request', basic), { isError: true, text: /Forbidden/ })
})

t.test('applies policies and scopes to tools, and keeps projects apart', async (t) => {
  const entries = [{ resourceType: 'Patient', hiddenFields: ['birthDate'] }]
  const hiding = await memberUnder(botica, { entries })
  const hidden = await openModel(t, baseUrl, hiding.client.token)
  t.same(await hidden.names(), OWN, 'without the right to read bots')
  await t.rejects(hidden.call('add', { a: 1, b: 2 }), { message: /Unknown tool/ })
  const read = await hidden.call('fhir-read', { type: 'Patient', id: ada.id })
  t.notOk('birthDate' in JSON.parse(read.text))
  t.ok((await hidden.call('fhir-read', { type: 'Basic', id: big.id })).isError)
  const audited = await eventually(async () => {
    const { body } = await admin.get<Untyped>(`AuditEvent?agent=ClientApplication/${hiding.id}`)
    return body.entry?.find(({ resource }: Untyped) => resource.outcome === '4')?.resource
  })
  t.match(audited, { entity: [{ what: { reference: `Basic/${big.id}` } }] }, 'as any request')

  const narrow = await scopedClient(botica, adminCredentials, 'system/Observation.rs')
  const narrowed = await openModel(t, baseUrl, narrow.token)
  t.same(await narrowed.names(), OWN)
  t.ok((await narrowed.call('fhir-read', { type: 'Patient', id: ada.id })).isError)
  const graph = await narrowed.call('graphql', { query: '{ PatientList { id } }' })
  t.notMatch(graph.text, String(ada.id))

  const stranger = await botica.createTenant()
  const foreign = await openModel(t, baseUrl, stranger.admin.token)
  t.same(await foreign.names(), OWN)
  const theirs = await foreign.call('fhir-read', { type: 'Patient', id: ada.id })
  t.match(theirs, { isError: true, text: /Not found/ })
})

t.test(
  'lists a tool at once after a deploy, and not without code or after a deletion',
  async (t) => {
    const { names } = await openModel(t, baseUrl, admin.token)
    const id = await aBot(botica, undefined, { fields: aTool('later', { type: 'object' }) })
    t.notOk((await names()).includes('later'))
    await deploy(admin, id, handler('return 1'))
    t.ok((await names()).includes('later'))
    await admin.del(`Bot/${id}`)
    t.notOk((await names()).includes('later'))
  },
)

t.test('gives a name that several bots have to the oldest', async (t) => {
  const schema = { type: 'object' }
  await aBot(botica, handler('return "first"'), { fields: aTool('same', schema) })
  await aBot(botica, handler('return "second"'), { fields: aTool('same', schema) })
  const { names, call } = await openModel(t, baseUrl, admin.token)
  t.equal((await names()).filter((name) => name === 'same').length, 1)
  t.equal((await call('same')).text, 'first')
})

t.test('keeps no sessions: returns 405 for GET and DELETE, and JSON-RPC errors', async (t) => {
  const url = new URL('mcp', baseUrl)
  const headers = {
    Authorization: `Bearer ${admin.token}`,
    Accept: 'application/json, text/event-stream',
    'Content-Type': 'application/json',
  }
  for (const method of ['GET', 'DELETE']) {
    const answer = await fetch(url, { method, headers })
    t.match([answer.status, answer.headers.get('allow')], [405, 'POST'])
  }
  const post = (body: string) => fetch(url, { method: 'POST', headers, body })
  const broken = await post('{')
  t.match([broken.status, await broken.json()], [400, { error: { code: -32700 } }])
  const unknown = await post('{"jsonrpc": "2.0", "id": 1, "method": "prompts/list"}')
  t.match(await unknown.text(), /"code":-32601/)
  t.equal((await post(`"${text(262_144)}"`)).status, 413)
})

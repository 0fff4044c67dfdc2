/** Imports `listen`, to stop web within the test. */
import t from 'tap'
import { freePort } from '../../../scripts/service.ts'
import { listen } from '../../../server/listen.ts'
import { anAdt, anAgent, connectAgent, HL7 } from '../../fixtures/agents/agents.ts'
import { openBotica } from '../../fixtures/botica.ts'
import { aBot, eventually, handler, type Untyped } from '../../fixtures/bots/bots.ts'
import { AT_GATE, aGate } from '../../fixtures/bots/gates.ts'

const botica = await openBotica(t, { worker: true })
const { admin, baseUrl, services } = botica

t.test('runs the bot of a channel for each message and returns its ACK', async (t) => {
  const code = handler('return event.input.buildAck()')
  const agentId = await anAgent(admin, { adt: await aBot(botica, code) })
  const agent = await connectAgent(t, baseUrl, admin, agentId)
  for (const type of ['agent:transmit:request', 'transmit']) {
    const answer = await agent.transmit({ type, body: anAdt('m-1'), callback: `c-${type}` })
    t.match(answer, {
      type: 'agent:transmit:response',
      channel: 'adt',
      remote: '10.0.0.1:1',
      callback: `c-${type}`,
      contentType: HL7,
      statusCode: 200,
      body: /\rMSA\|AA\|m-1\|OK/,
    })
  }
})

t.test(
  'the bot runs as itself, with the client as requester and the agent as a hint',
  async (t) => {
    const code = handler(`
    const { requester, agent, contentType } = event
    return { requester, agent, contentType, profile: medplum.getProfile().resourceType }`)
    const bot = await aBot(botica, code)
    const agentId = await anAgent(admin, { adt: bot })
    const agent = await connectAgent(t, baseUrl, admin, agentId)
    const answer = await agent.transmit({ body: anAdt('m-2') })
    t.match(answer, { contentType: 'application/json', statusCode: 200 })
    t.match(JSON.parse(answer.body), {
      requester: { reference: `ClientApplication/${botica.adminCredentials.id}` },
      agent: {
        reference: `Agent/${agentId}`,
        display: 'Clinic',
        channel: 'adt',
        remote: '10.0.0.1:1',
        remoteAddress: /127\.0\.0\.1$/,
      },
      contentType: HL7,
      profile: 'Bot',
    })
    const event = await eventually(async () => {
      const found = await admin.get<Untyped>(`AuditEvent?entity=Bot/${bot}`)
      const events = (found.body.entry ?? []).map(({ resource }: Untyped) => resource)
      return events.find(({ type }: Untyped) => type.code === 'execute')
    })
    t.match(event.agent[0].network, { address: /127\.0\.0\.1$/, type: '2' })
    const [entity] = event.entity.filter(({ detail }: Untyped) => detail !== undefined)
    t.equal(entity.what.reference, `Agent/${agentId}`)
    t.match(entity.detail, [
      { type: 'channel', valueString: 'adt' },
      { type: 'remote', valueString: '10.0.0.1:1' },
      { type: 'remoteAddress' },
    ])
  },
)

t.test('the content type decides how the bot gets the message', async (t) => {
  const code = handler(
    'const i = event.input; return { is: i?.segments ? "hl7" : typeof i, text: i?.a ?? String(i) }',
  )
  const agentId = await anAgent(admin, { adt: await aBot(botica, code) })
  const agent = await connectAgent(t, baseUrl, admin, agentId)
  const cases: readonly [string | undefined, string, object][] = [
    [HL7, anAdt('m-3'), { is: 'hl7' }],
    ['application/json', '{"a":"b"}', { is: 'object', text: 'b' }],
    ['application/fhir+json; charset=utf-8', '{"resourceType":"Basic"}', { is: 'object' }],
    ['application/dicom', 'Binary/1', { is: 'string', text: 'Binary/1' }],
    ['text/plain', '{"a":"b"}', { is: 'string', text: '{"a":"b"}' }],
    [undefined, anAdt('m-4'), { is: 'string', text: anAdt('m-4') }],
  ]
  for (const [contentType, body, expected] of cases) {
    const answer = await agent.transmit({ contentType, body })
    t.match(JSON.parse(answer.body), expected)
  }
  for (const [contentType, body] of [
    [HL7, 'PID|1'],
    ['application/json', '{'],
  ]) {
    const answer = await agent.transmit({ contentType, body })
    t.match(answer, { statusCode: 400, contentType: 'application/json' })
    t.match(JSON.parse(answer.body), {
      issue: [{ details: { text: 'Content could not be parsed' } }],
    })
  }
})

t.test('rejects messages without channel or body, and of unknown channels', async (t) => {
  const code = handler('return 1')
  const agentId = await anAgent(admin, { adt: await aBot(botica, code) })
  const agent = await connectAgent(t, baseUrl, admin, agentId)
  const cases: readonly [object, string][] = [
    [{ accessToken: undefined, body: 'x' }, 'Missing access token'],
    [{ accessToken: 'x', body: 'x' }, 'Invalid access token'],
    [{ channel: undefined, body: 'x' }, 'Missing channel'],
    [{}, 'Missing body'],
    [{ body: '' }, 'Missing body'],
    [{ channel: 'other', body: 'x' }, 'Channel not found'],
  ]
  for (const [fields, body] of cases) {
    t.match(await agent.transmit(fields), { type: 'agent:error', body })
  }
  const { admin: foreign } = await botica.createTenant()
  const theirs = await agent.transmit({ accessToken: foreign.token, body: anAdt('1') })
  t.match(theirs, { type: 'agent:error', body: 'Not found' })
})

t.test('reads the Agent for each message, so that a new channel needs no reconnect', async (t) => {
  const agentId = await anAgent(admin)
  const agent = await connectAgent(t, baseUrl, admin, agentId)
  const message = { contentType: 'text/plain', body: 'x' }
  t.match(await agent.transmit(message), { body: 'Channel not found' })
  const { body } = await admin.get<Untyped>(`Agent/${agentId}`)
  const endpoint = { reference: 'Endpoint/1' }
  const put = (target: object) =>
    admin.put(`Agent/${agentId}`, { ...body, channel: [{ name: 'adt', endpoint, ...target }] })
  await put({ targetUrl: 'https://example.com' })
  t.match(await agent.transmit(message), { body: 'Channel has no Bot as its target' })
  const bot = await aBot(botica, handler('return "ok"'))
  await put({ targetReference: { reference: `Bot/${bot}` } })
  t.match(await agent.transmit(message), { statusCode: 200, body: 'ok' })
})

t.test('a failed bot answers 400 with the outcome, a bot without a result its log', async (t) => {
  const failing = await aBot(botica, handler('throw new Error("No bed is free")'))
  const silent = await aBot(botica, handler('console.log("admitted"); '))
  const empty = await aBot(botica)
  const agentId = await anAgent(admin, { failing, silent, empty, foreign: crypto.randomUUID() })
  const agent = await connectAgent(t, baseUrl, admin, agentId)
  const readOutcome = async (channel: string) => {
    const answer = await agent.transmit({ channel, body: anAdt('m') })
    t.match(answer, { statusCode: 400, contentType: 'application/json' })
    return JSON.parse(answer.body).issue[0].details.text
  }
  t.equal(await readOutcome('failing'), 'No bed is free')
  t.equal(await readOutcome('empty'), 'No executable code')
  t.equal(await readOutcome('foreign'), 'Not found')
  const answer = await agent.transmit({ channel: 'silent', body: anAdt('m') })
  t.match(answer, { statusCode: 200, body: /INFO admitted\n$/ })
})

t.test(
  'answers each connection of a device in order, independently of other connections',
  async (t) => {
    const bot = await aBot(botica, handler(`${AT_GATE}; return event.input.n`))
    const agentId = await anAgent(admin, { adt: bot, lab: bot })
    const agent = await connectAgent(t, baseUrl, admin, agentId)
    const { gate, open } = aGate(admin)
    const answers: string[] = []
    const send = async (channel: string, remote: string, input: { n: number; gate?: string }) => {
      const message = { channel, remote, contentType: 'application/json' }
      await agent.transmit({ ...message, body: JSON.stringify(input) })
      answers.push(`${channel} ${remote} ${input.n}`)
    }
    const held = [send('adt', 'a', { n: 1, gate }), send('adt', 'a', { n: 2 })]
    await Promise.all([send('adt', 'b', { n: 3 }), send('lab', 'a', { n: 4 })])
    t.same(answers.toSorted(), ['adt b 3', 'lab a 4'])
    await open()
    await Promise.all(held)
    t.same(answers.slice(2), ['adt a 1', 'adt a 2'])
  },
)

t.test('stops reading from an agent with 256 messages in flight', async (t) => {
  const bot = await aBot(botica, handler(`${AT_GATE}; return event.input.n`))
  const agentId = await anAgent(admin, { adt: bot })
  const agent = await connectAgent(t, baseUrl, admin, agentId)
  const { gate, open } = aGate(admin)
  const filler = 'x'.repeat(4096)
  for (let n = 0; n < 400; n++) {
    agent.say({
      type: 'agent:transmit:request',
      accessToken: admin.token,
      channel: 'adt',
      // One after another: this occupies a single run.
      remote: 'a',
      contentType: 'application/json',
      callback: String(n),
      body: JSON.stringify({ n, filler, ...(n === 0 ? { gate } : {}) }),
    })
  }
  agent.say({ type: 'agent:heartbeat:request', mark: true })
  await open()
  const all: Untyped[] = []
  while (all.at(-1)?.callback !== '399') all.push(await agent.heard())
  const beat = all.findIndex(({ type }) => type === 'agent:heartbeat:response')
  const transmitted = all.filter(({ type }) => type === 'agent:transmit:response')
  t.same(
    transmitted.map(({ callback }) => Number(callback)),
    Array.from({ length: 400 }, (_, n) => n),
  )
  t.ok(beat > 100, `the heartbeat was answered after ${beat} messages`)
})

t.test('a message too large for the bus reaches the bot', async (t) => {
  const bot = await aBot(botica, handler('return String(event.input).length'))
  const agentId = await anAgent(admin, { adt: bot })
  const agent = await connectAgent(t, baseUrl, admin, agentId)
  const length = 8 * 1024 * 1024
  const answer = await agent.transmit({ contentType: 'text/plain', body: 'x'.repeat(length) })
  t.match(answer, { statusCode: 200, body: String(length) })
})

t.test('a process that stops answers the messages in flight', async (t) => {
  const bot = await aBot(botica, handler(`${AT_GATE}; return "done"`))
  const agentId = await anAgent(admin, { adt: bot })
  const port = await freePort()
  const web = await listen(services, port)
  const agent = await connectAgent(t, `http://127.0.0.1:${port}/`, admin, agentId)
  const { gate, open } = aGate(admin)
  const contentType = 'application/json'
  const answered = agent.transmit({ contentType, body: JSON.stringify({ gate }) })
  agent.say({ type: 'agent:heartbeat:request' })
  await agent.heard(({ type }) => type === 'agent:heartbeat:response')
  const stopped = web.stop(10_000)
  await open()
  t.match(await answered, { statusCode: 200, body: 'done' })
  t.equal(await agent.closed, 1001)
  await stopped
})

t.test('messages about one patient from several connections run one at a time', async (t) => {
  const code = handler(`const begun = Date.now()
    await new Promise((resolve) => setTimeout(resolve, 300))
    return { begun, ended: Date.now() }`)
  const extension = [{ url: 'urn:botica:bot-concurrencyKey', valueString: 'hl7:PID-3.1' }]
  const bot = await aBot(botica, code, { fields: { extension } })
  const agents = await Promise.all(
    [1, 2, 3].map(async () => {
      const agentId = await anAgent(admin, { adt: bot })
      return await connectAgent(t, baseUrl, admin, agentId)
    }),
  )
  const answers = await Promise.all(
    agents.map((agent, index) => agent.transmit({ body: anAdt(`turn-${index}`) })),
  )
  const runs = answers
    .map(({ body }) => JSON.parse(body))
    .toSorted((a: Untyped, b: Untyped) => a.begun - b.begun)
  for (const [index, { begun }] of runs.entries()) t.ok(begun >= (runs[index - 1]?.ended ?? 0))
})

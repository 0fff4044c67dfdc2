import { randomUUID } from 'node:crypto'
import t from 'tap'
import { type AgentEnd, anAdt, anAgent, connectAgent, HL7 } from '../../fixtures/agents/agents.ts'
import { openBotica, until } from '../../fixtures/botica.ts'
import { aBot, execute, finished, handler, type Untyped } from '../../fixtures/bots/bots.ts'
import type { Answer } from '../../fixtures/client.ts'
import { openSdk } from '../../fixtures/sdk.ts'
import { createDatabase } from '../../fixtures/store/own-database.ts'

// Any worker on the database could take an accepted request, also one of another Redis.
const DATABASE_URL = await createDatabase(t)
const botica = await openBotica(t, { worker: true, env: { DATABASE_URL } })
const { admin } = botica
// The agent is connected to one process, and the operations come in at another.
const otherUrl = await botica.startWeb()

const identifier = { system: 'urn:devices', value: randomUUID() }
const device = await admin.create({
  resourceType: 'Device',
  identifier: [identifier],
  url: 'mllp://10.1.2.3:5000',
} as never)
const destination = `Device/${device.id}`
// A busy machine may need longer than the default.
const waitTimeout = 55_000
const message = { destination, contentType: HL7, body: anAdt('push-1'), waitTimeout }

function push(agentId: string, body: object, headers = {}): Promise<Answer<Untyped>> {
  return admin.post(`Agent/${agentId}/$push`, body, headers)
}

/** Answers each request of the service by `answer`. */
function answering(agent: AgentEnd, answer: (request: Untyped) => object): readonly Untyped[] {
  const requests: Untyped[] = []
  agent.webSocket.on('message', (data) => {
    const request = JSON.parse(String(data))
    if (!/^agent:(?!heartbeat|connect).*:request$/.test(request.type)) return
    requests.push(request)
    const type = request.type.replace('request', 'response')
    agent.say({ type, callback: request.callback, ...answer(request) })
  })
  return requests
}

async function aConnectedAgent(fields: object = {}): Promise<{ id: string; agent: AgentEnd }> {
  const id = await anAgent(admin, {}, fields)
  return { id, agent: await connectAgent(t, otherUrl, admin, id) }
}

t.test('$push sends a message to a device and answers with its reply', async (t) => {
  const { id, agent } = await aConnectedAgent()
  const requests = answering(agent, () => ({ contentType: HL7, body: 'MSH|ACK', statusCode: 200 }))
  const answer = await push(id, { ...message, waitForResponse: true, returnAck: 'application' })
  t.match(answer, { status: 200, text: 'MSH|ACK' })
  t.equal(answer.headers.get('content-type'), HL7)
  t.match(requests, [
    {
      type: 'agent:transmit:request',
      remote: 'mllp://10.1.2.3:5000',
      contentType: HL7,
      body: message.body,
      returnAck: 'application',
    },
  ])
  t.notOk('accessToken' in requests[0])
})

t.test(
  '$push takes Parameters, identifiers of the agent, and searches of the device',
  async (t) => {
    const own = { system: 'urn:agents', value: randomUUID() }
    const { agent } = await aConnectedAgent({ identifier: [own] })
    const requests = answering(agent, () => ({ contentType: 'text/plain', body: 'ok' }))
    const query = `identifier=${own.system}|${own.value}`
    for (const target of [
      destination,
      `Device?identifier=${identifier.value}`,
      `Device/?identifier=${identifier.value}`,
    ]) {
      const parameter = [
        { name: 'destination', valueString: target },
        { name: 'contentType', valueString: 'text/plain' },
        { name: 'body', valueString: 'x' },
        { name: 'waitForResponse', valueBoolean: true },
        { name: 'waitTimeout', valueInteger: waitTimeout },
      ]
      const answer = await admin.post(`Agent/$push?${query}`, {
        resourceType: 'Parameters',
        parameter,
      })
      t.match(answer, { status: 200, text: 'ok' })
    }
    t.equal(requests.length, 3)
  },
)

t.test('$push without wait answers when the message is on its way', async (t) => {
  const { id, agent } = await aConnectedAgent()
  t.match(await push(id, message), { status: 200, body: { id: 'ok' } })
  const request = await agent.heard(({ type }) => type === 'agent:transmit:request')
  t.equal(request.body, message.body)
})

t.test('rejects unsendable content of $push with its element', async (t) => {
  const { id } = await aConnectedAgent()
  const off = await anAgent(admin, {}, { status: 'off' })
  const away = await anAgent(admin)
  const bare = await admin.create({ resourceType: 'Device' } as never)
  const { admin: foreign } = await botica.createTenant()
  const theirs = await foreign.create({ resourceType: 'Device', url: 'mllp://x:1' } as never)
  const cases: readonly [string, object, RegExp][] = [
    [id, { ...message, destination: undefined }, /"destination"/],
    [id, { ...message, body: undefined }, /"body"/],
    [id, { ...message, contentType: undefined }, /"contentType"/],
    [id, { ...message, body: { a: 1 } }, /"body" must be a string/],
    [id, { ...message, destination: 'mllp://10.0.0.1:1' }, /device not found/],
    [id, { ...message, destination: `Device/${randomUUID()}` }, /device not found/],
    [id, { ...message, destination: `Device/${theirs.id}` }, /device not found/],
    [id, { ...message, destination: `Device/${bare.id}` }, /missing url/],
    [id, { ...message, waitTimeout: -1 }, /"waitTimeout" must be between 0 and 55000/],
    [id, { ...message, waitTimeout: 55_001 }, /"waitTimeout" must be between/],
    [id, { ...message, returnAck: 'any' }, /"returnAck" must be first or application/],
    [off, message, /currently disabled/],
    [away, message, /not currently connected/],
    [away, { ...message, waitForResponse: true }, /not currently connected/],
  ]
  for (const [agentId, body, text] of cases) {
    const answer = await push(agentId, body)
    t.equal(answer.status, 400)
    t.match(answer.body.issue[0].details.text, text)
  }
  t.equal((await foreign.post(`Agent/${id}/$push`, message)).status, 404)
  t.equal((await admin.post('Agent/$push', message)).status, 400)
  t.equal((await admin.post(`Agent/$push?identifier=${randomUUID()}`, message)).status, 404)
})

t.test('$push returns 400 for an agent whose connection is closing', async (t) => {
  const { id, agent } = await aConnectedAgent()
  const closing = new Promise<void>((resolve) => {
    // Called when the service closes; does not confirm it.
    agent.webSocket.close = () => resolve()
  })
  for (let i = 0; i < 20; i++) agent.webSocket.send('not JSON')
  await closing
  t.match(await push(id, message), {
    status: 400,
    body: { issue: [{ details: { text: 'Agent is not currently connected' } }] },
  })
})

t.test('$push ends in a timeout, and an error of the agent is 400', async (t) => {
  const { id, agent } = await aConnectedAgent()
  const wait = { ...message, waitForResponse: true }
  t.match(await push(id, { ...wait, waitTimeout: 0 }), {
    status: 400,
    body: { issue: [{ code: 'timeout', details: { text: 'Timeout' } }] },
  })
  await agent.heard(({ type }) => type === 'agent:transmit:request')
  const answers: object[] = [
    { type: 'agent:error', body: 'No route to host' },
    { statusCode: 404, contentType: 'text/plain', body: 'no such device' },
    { statusCode: 500, contentType: 'text/html', body: 'broken' },
    { type: 'agent:stats:response' },
  ]
  const waiting = [...answers]
  answering(agent, () => waiting.shift() ?? {})
  t.match(await push(id, wait), {
    status: 400,
    body: { issue: [{ details: { text: 'No route to host' } }] },
  })
  t.match(await push(id, wait), { status: 404, text: 'no such device' })
  t.match(await push(id, wait), { status: 400, text: 'broken' })
  t.match(await push(id, wait), { status: 400, body: { issue: [{ code: 'invalid' }] } })
})

t.test('an agent answers only requests that were sent to it', async (t) => {
  const [victim, liar] = [await aConnectedAgent(), await aConnectedAgent()]
  const answered = push(victim.id, { ...message, waitForResponse: true })
  const isRequest = ({ type }: Untyped) => type === 'agent:transmit:request'
  const { callback } = await victim.agent.heard(isRequest)
  const reply = { type: 'agent:transmit:response', callback, contentType: 'text/plain' }
  liar.agent.say({ ...reply, body: 'forged' })
  liar.agent.say({ type: 'agent:heartbeat:request' })
  await liar.agent.heard(({ type }) => type === 'agent:heartbeat:response')
  victim.agent.say({ ...reply, body: 'true' })
  t.equal((await answered).text, 'true')
})

t.test('a ping goes to a host by its name, also for an agent that is off', async (t) => {
  const { id, agent } = await aConnectedAgent({ status: 'off' })
  const requests = answering(agent, () => ({ contentType: 'text/plain', body: '1 ms' }))
  const ping = {
    contentType: 'x-application/ping',
    body: 'PING',
    waitForResponse: true,
    waitTimeout,
  }
  for (const host of ['10.1.2.3', 'pacs.clinic.example', '::1']) {
    t.match(await push(id, { ...ping, destination: host }), { status: 200, text: '1 ms' })
  }
  t.same(
    requests.map(({ remote }) => remote),
    ['10.1.2.3', 'pacs.clinic.example', '::1'],
  )
  for (const host of ['-f', 'a b', 'a;b', 'a..b']) {
    t.equal((await push(id, { ...ping, destination: host })).status, 400)
  }
})

t.test('returns the answer of $push in the job of respond-async', async (t) => {
  const { id, agent } = await aConnectedAgent()
  answering(agent, () => ({ contentType: HL7, body: 'MSH|ACK' }))
  const body = { ...message, waitForResponse: true }
  const accepted = await push(id, body, { Prefer: 'respond-async' })
  t.equal(accepted.status, 202)
  const job = await finished(admin, accepted.headers.get('content-location'))
  t.match(job, { status: 'completed' })
  const { reference } = job.output.parameter[0].valueReference
  const stored = await admin.get(reference, { Accept: '*/*' })
  t.match(stored.text, 'MSH|ACK')
  t.match(stored.headers.get('content-type'), HL7)
})

t.test('pushToAgent of the SDK and of a bot sends a message', async (t) => {
  const { id, agent } = await aConnectedAgent()
  answering(agent, ({ body }) => ({ contentType: HL7, body: `ACK of ${body}` }))
  const sdk = await openSdk(botica)
  const to = { reference: `Agent/${id}` }
  t.equal(await sdk.pushToAgent(to, destination, 'a', HL7, true, { waitTimeout }), 'ACK of a')
  t.match(await sdk.pushToAgent(to, { reference: destination }, 'b', HL7), { id: 'ok' })
  const bot = await aBot(
    botica,
    handler(`
      const { agent, device } = event.input
      const answer = await medplum.pushToAgent(agent, device, 'c', '${HL7}', true, { returnAck: 'first', waitTimeout: 55000 })
      const failure = await medplum.pushToAgent(agent, 'Device/none', 'd', '${HL7}').catch((error) => error.message)
      return { answer, failure }`),
  )
  const ran = await execute(admin, bot, {
    agent: to,
    device: { resourceType: 'Device', id: device.id },
  })
  t.match(ran.body, { answer: 'ACK of c', failure: 'Destination device not found (destination)' })
})

t.test('a large message and a large answer pass', async (t) => {
  const { id, agent } = await aConnectedAgent()
  answering(agent, ({ body }) => ({ contentType: 'text/plain', body }))
  const body = 'x'.repeat(4 * 1024 * 1024)
  const answer = await push(id, {
    ...message,
    contentType: 'text/plain',
    body,
    waitForResponse: true,
  })
  t.equal(answer.text.length, body.length)
})

t.test('returns from $status whether the agent is connected', async (t) => {
  const id = await anAgent(admin)
  const status = async () => {
    const { body } = await admin.get<Untyped>(`Agent/${id}/$status`)
    return Object.fromEntries(
      body.parameter.map(({ name, ...value }: Untyped) => [name, Object.values(value)[0]]),
    )
  }
  t.same(await status(), { status: 'unknown', version: 'unknown' })
  const agent = await connectAgent(t, otherUrl, admin, id)
  t.match(await status(), { status: 'connected', version: 'unknown', lastUpdated: /^20/ })
  agent.say({ type: 'agent:heartbeat:response', version: '5.1.29' })
  await until(async () => (await status()).version === '5.1.29', 60_000)
  agent.webSocket.close()
  await until(async () => (await status()).status === 'disconnected', 60_000)
  t.match(await status(), { version: '5.1.29', lastUpdated: /^20/ })
  const { admin: foreign } = await botica.createTenant()
  t.equal((await foreign.get(`Agent/${id}/$status`)).status, 404)
})

t.test('bulk forms answer for the agents of a search, at most 100', async (t) => {
  const name = `Bulk ${randomUUID()}`
  const connected = await aConnectedAgent({ name })
  const away = await anAgent(admin, {}, { name })
  answering(connected.agent, ({ type }) =>
    type === 'agent:stats:request' ? { stats: { ping: 3 }, statusCode: 200 } : { statusCode: 200 },
  )
  const bulk = async (path: string) => {
    const { status, body } = await admin.get<Untyped>(
      `Agent/${path}name=${encodeURIComponent(name)}`,
    )
    t.equal(status, 200)
    return new Map<string, Untyped>(
      body.entry.map(({ resource: { parameter } }: Untyped) => {
        const [agent, result] = parameter
        return [agent.resource.id, result.resource]
      }),
    )
  }
  const states = await bulk('$bulk-status?')
  t.match(states.get(connected.id).parameter[0], { valueCode: 'connected' })
  t.match(states.get(away).parameter[0], { valueCode: 'unknown' })
  const stats = await bulk('$stats?')
  t.match(stats.get(connected.id).parameter, [{ name: 'stats', valueString: '{"ping":3}' }])
  t.match(stats.get(away).issue[0].details.text, 'Agent is not currently connected')
  t.match((await bulk('$upgrade?version=5.1.29&')).get(connected.id).parameter, [
    { name: 'statusCode', valueInteger: 200 },
  ])
  t.equal((await admin.get('Agent/$bulk-status?_count=101')).status, 400)
  t.equal((await admin.get('Agent/$bulk-status?_count=100')).status, 200)
  const { admin: foreign } = await botica.createTenant()
  t.notOk((await foreign.get<Untyped>('Agent/$bulk-status')).body.entry)
})

t.test('$reload-config, $upgrade, $stats and $fetch-logs ask the agent', async (t) => {
  const { id, agent } = await aConnectedAgent()
  const requests = answering(agent, ({ type }) => {
    if (type === 'agent:logs:request') {
      return {
        statusCode: 200,
        logs: [{ level: 'INFO', msg: 'x' }],
        hasMore: true,
        nextBefore: 'p2',
      }
    }
    return { statusCode: 200, ...(type === 'agent:stats:request' ? { stats: { ping: 3 } } : {}) }
  })
  const ask = async (path: string) =>
    (await admin.get<Untyped>(`Agent/${id}/${path}`)).body.parameter
  t.same(await ask('$reload-config'), [{ name: 'statusCode', valueInteger: 200 }])
  t.same(await ask('$upgrade?version=5.1.29&force=true'), [
    { name: 'statusCode', valueInteger: 200 },
  ])
  t.same(await ask('$stats'), [{ name: 'stats', valueString: '{"ping":3}' }])
  t.same(await ask('$fetch-logs?limit=10&before=p1'), [
    { name: 'logs', valueString: '[{"level":"INFO","msg":"x"}]' },
    { name: 'hasMore', valueBoolean: true },
    { name: 'nextBefore', valueString: 'p2' },
  ])
  t.match(requests, [
    { type: 'agent:reloadconfig:request' },
    { type: 'agent:upgrade:request', version: '5.1.29', force: true },
    { type: 'agent:stats:request' },
    { type: 'agent:logs:request', limit: 10, before: 'p1' },
  ])
  for (const path of [
    '$fetch-logs?limit=0',
    '$fetch-logs?limit=1001',
    '$upgrade?version=newest',
    '$upgrade?force=yes',
  ]) {
    t.equal((await admin.get(`Agent/${id}/${path}`)).status, 400, path)
  }
  const away = await anAgent(admin)
  t.match(await admin.get<Untyped>(`Agent/${away}/$stats`), {
    status: 400,
    body: { issue: [{ details: { text: 'Agent is not currently connected' } }] },
  })
})

t.test('$messages lists the last messages for administrators, without their content', async (t) => {
  const bot = await aBot(botica, handler('return event.input.buildAck()'))
  const id = await anAgent(admin, { adt: bot })
  const agent = await connectAgent(t, otherUrl, admin, id)
  await agent.transmit({ body: anAdt('m-1') })
  answering(agent, () => ({ contentType: HL7, body: 'MSH|ACK' }))
  await push(id, { ...message, waitForResponse: true })
  const list = async () => {
    const { body } = await admin.get<Untyped>(`Agent/${id}/$messages`)
    return (body.parameter ?? []).map(({ part }: Untyped) =>
      Object.fromEntries(
        part.map(({ name, ...value }: Untyped) => [name, Object.values(value)[0]]),
      ),
    )
  }
  await until(async () => (await list()).length === 2, 60_000)
  const [out, received] = await list()
  t.match(out, { direction: 'out', remote: 'mllp://10.1.2.3:5000', statusCode: 200 })
  t.match(received, {
    direction: 'in',
    channel: 'adt',
    remote: '10.0.0.1:1',
    statusCode: 200,
    bot: { reference: `Bot/${bot}` },
    runId: /^urn:uuid:/,
  })
  t.notMatch(JSON.stringify(await list()), /Müller/)
  const { client: member } = await botica.createMember()
  t.equal((await member.get(`Agent/${id}/$messages`)).status, 403)
})

import { randomUUID } from 'node:crypto'
import t from 'tap'
import {
  agentUrl,
  anAdt,
  anAgent,
  connectAgent,
  openAgentSocket,
} from '../../fixtures/agents/agents.ts'
import { openBotica } from '../../fixtures/botica.ts'
import type { Untyped } from '../../fixtures/bots/bots.ts'
import { createClient } from '../../fixtures/client.ts'
import { decodeJwtClaims } from '../../fixtures/people.ts'
import { clientUnder } from '../../fixtures/policy/policy.ts'
import { openSocket } from '../../fixtures/sockets.ts'

const botica = await openBotica(t)
const { admin, baseUrl, services, superAdmin } = botica
const agentId = await anAgent(admin)
const isError = ({ type }: Untyped) => type === 'agent:error'

t.test('connects an agent by its token and id, also by the old message name', async (t) => {
  for (const type of ['agent:connect:request', 'connect']) {
    const socket = await openSocket(t, agentUrl(baseUrl))
    socket.say({ type, accessToken: admin.token, agentId })
    t.same(await socket.heard(), { type: 'agent:connect:response' })
    socket.webSocket.close()
    await socket.closed
  }
})

t.test('rejects a connect request with the reason, and leaves the socket open', async (t) => {
  const socket = await openSocket(t, agentUrl(baseUrl))
  const { accessToken, expired } = { accessToken: admin.token, expired: await anExpiredToken() }
  const cases: readonly [object, string][] = [
    [{ agentId }, 'Missing access token'],
    [{ accessToken }, 'Missing agent ID'],
    [{ accessToken: 'x', agentId }, 'Invalid access token'],
    [{ accessToken: 7, agentId }, 'Missing access token'],
    [{ accessToken: expired, agentId }, 'Invalid access token'],
    [{ accessToken, agentId: randomUUID() }, 'Not found'],
    [{ accessToken, agentId: 'no id' }, 'Not found'],
  ]
  for (const [fields, body] of cases) {
    socket.say({ type: 'agent:connect:request', ...fields })
    t.same(await socket.heard(), { type: 'agent:error', body })
  }
  socket.say({ type: 'agent:connect:request', accessToken, agentId })
  t.same(await socket.heard(), { type: 'agent:connect:response' })
})

t.test('does not connect clients of another project or without access to the Agent', async (t) => {
  const { admin: foreign } = await botica.createTenant()
  const member = await clientUnder(botica, { resourceType: 'Patient' })
  const scoped = createClient(baseUrl, await tokenWithScope('system/Patient.rs'))
  for (const [client, body] of [
    [foreign, 'Not found'],
    [member, 'Forbidden'],
    [scoped, 'Forbidden'],
  ] as const) {
    const socket = await openSocket(t, agentUrl(baseUrl))
    socket.say({ type: 'agent:connect:request', accessToken: client.token, agentId })
    t.same(await socket.heard(), { type: 'agent:error', body })
  }
})

t.test('answers heartbeats, with the version only for connected agents', async (t) => {
  const socket = await openAgentSocket(t, baseUrl, admin)
  socket.say({ type: 'agent:heartbeat:request' })
  t.same(await socket.heard(), { type: 'agent:heartbeat:response', version: 'unknown' })
  socket.say({ type: 'agent:connect:request', accessToken: admin.token, agentId })
  await socket.heard()
  socket.say({ type: 'agent:heartbeat:request' })
  t.same(await socket.heard(), { type: 'agent:heartbeat:response', version: '0.1.0' })
  t.same(await socket.heard(), { type: 'agent:heartbeat:request' })
})

t.test('names unknown message types, and closes after many that are not JSON', async (t) => {
  const socket = await connectAgent(t, baseUrl, admin, agentId)
  socket.say({ type: 'agent:dance:request', callback: 'c' })
  t.same(await socket.heard(), {
    type: 'agent:error',
    callback: 'c',
    body: 'Unknown message type: agent:dance:request',
  })
  socket.say({})
  t.match(await socket.heard(), { body: 'Unknown message type: undefined' })
  // Without a callable toString.
  socket.say({ type: { toString: null } })
  t.match(await socket.heard(), { body: 'Unknown message type: object' })
  for (let i = 0; i < 20; i++) socket.webSocket.send('{')
  t.match(await socket.heard(), { type: 'agent:error', body: 'Message is not a JSON object' })
  t.equal(await socket.closed, 1008)
})

t.test('rejects messages of unconnected sockets', async (t) => {
  const socket = await openAgentSocket(t, baseUrl, admin)
  const answer = await socket.transmit({ body: anAdt('1') })
  t.match(answer, { type: 'agent:error', body: 'Not connected' })
})

t.test('closes an older connection of the same agent', async (t) => {
  const older = await connectAgent(t, baseUrl, admin, agentId)
  const newer = await connectAgent(t, baseUrl, admin, agentId)
  t.match(await older.heard(isError), { body: 'Replaced by a newer connection of this agent' })
  t.equal(await older.closed, 1008)
  newer.say({ type: 'agent:heartbeat:request' })
  t.match(await newer.heard(), { type: 'agent:heartbeat:response' })
})

t.test('closes the connection of a revoked login, and of a lost right to the Agent', async (t) => {
  const revoked = await botica.createMember()
  const own = await anAgent(admin)
  const first = await connectAgent(t, baseUrl, revoked.client, own)
  const login = `Login/${decodeJwtClaims(revoked.client.token ?? '').login_id}`
  const { body } = await superAdmin.get<Untyped>(login)
  t.equal((await superAdmin.put(login, { ...body, revoked: true })).status, 200)
  services.principals.forget()

  const removed = await anAgent(admin)
  const second = await connectAgent(t, baseUrl, admin, removed)
  t.equal((await admin.del(`Agent/${removed}`)).status, 200)
  for (const socket of [first, second]) {
    t.match(await socket.heard(isError), { body: 'Invalid access token' })
    t.equal(await socket.closed, 1008)
  }
})

t.test('limits the size of a message, more so before the agent has connected', async (t) => {
  const stranger = await openAgentSocket(t, baseUrl, admin)
  stranger.webSocket.on('error', () => undefined)
  stranger.say({ type: 'agent:connect:request', agentId: 'x'.repeat(2 * 1024 * 1024) })
  t.equal(await stranger.closed, 1006)
  const agent = await connectAgent(t, baseUrl, admin, agentId)
  agent.say({ type: 'agent:dance:request', body: 'x'.repeat(15 * 1024 * 1024) })
  t.match(await agent.heard(isError), { body: 'Unknown message type: agent:dance:request' })
  agent.say({ type: 'agent:dance:request', body: 'x'.repeat(16 * 1024 * 1024) })
  t.equal(await agent.closed, 1009)
})

async function anExpiredToken(): Promise<string> {
  const claims = await services.tokens.verify(admin.token ?? '')
  if (typeof claims !== 'object') throw new Error('The token of the test is invalid')
  return await services.tokens.issue({ ...claims, lifetimeSeconds: -60 } as never)
}

async function tokenWithScope(scope: string): Promise<string> {
  const { id, secret } = botica.adminCredentials
  const response = await fetch(`${baseUrl}oauth2/token`, {
    method: 'POST',
    body: new URLSearchParams({
      grant_type: 'client_credentials',
      client_id: id,
      client_secret: secret,
      scope,
    }),
  })
  return ((await response.json()) as { access_token: string }).access_token
}

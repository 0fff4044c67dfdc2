/** Agents of two projects with one id, such as copies for trials and for production. */
import { randomUUID } from 'node:crypto'
import t from 'tap'
import { type AgentEnd, anAdt, anAgent, connectAgent } from '../../fixtures/agents/agents.ts'
import { openBotica, type Tenant, until } from '../../fixtures/botica.ts'
import { aBot, handler, type Untyped } from '../../fixtures/bots/bots.ts'
import type { Client } from '../../fixtures/client.ts'

const botica = await openBotica(t, { worker: true })
const id = randomUUID()
const trial = await botica.createTenant()
for (const { project } of [botica, trial]) {
  const { body } = await botica.superAdmin.get<Untyped>(`Project/${project.id}`)
  const systemSetting = [{ name: 'updateAsCreate', valueBoolean: true }]
  const put = await botica.superAdmin.put(`Project/${project.id}`, { ...body, systemSetting })
  if (put.status !== 200) throw new Error(put.text)
}
botica.services.principals.forget()

/** Stores an Agent under the common id and connects it, with its statistics. */
async function aCopy(tenant: Tenant, spelled: string, stats: string): Promise<AgentEnd> {
  const { admin } = tenant
  const bot = await aBot(tenant, handler('return event.input.buildAck()'))
  const { body } = await admin.get<Untyped>(`Agent/${await anAgent(admin, { adt: bot })}`)
  const put = await admin.put(`Agent/${id}`, { ...body, id })
  if (put.status !== 201) throw new Error(put.text)
  const agent = await connectAgent(t, botica.baseUrl, admin, spelled)
  agent.webSocket.on('message', (data) => {
    const { type, callback } = JSON.parse(String(data))
    if (type !== 'agent:stats:request') return
    agent.say({ type: 'agent:stats:response', callback, stats, statusCode: 200 })
  })
  return agent
}

const isError = ({ type }: Untyped) => type === 'agent:error'
const ours = await aCopy(botica, id.toUpperCase(), 'ours')
const theirs = await aCopy(trial, id, 'theirs')

async function messages(client: Client): Promise<readonly unknown[]> {
  const { body } = await client.get<Untyped>(`Agent/${id}/$messages`)
  return body.parameter ?? []
}

t.test('asks the agent of the project of the caller, in any spelling of its id', async (t) => {
  for (const [{ admin }, stats] of [
    [botica, 'ours'],
    [trial, 'theirs'],
  ] as const) {
    for (const spelled of [id, id.toUpperCase()]) {
      const { body } = await admin.get<Untyped>(`Agent/${spelled}/$stats`)
      t.match(body.parameter, [{ name: 'stats', valueString: JSON.stringify(stats) }])
    }
  }
})

t.test('lists the messages of the agent of one project', async (t) => {
  t.match(await theirs.transmit({ body: anAdt('x-1') }), { type: 'agent:transmit:response' })
  await until(async () => (await messages(trial.admin)).length === 1, 60_000)
  t.same(await messages(botica.admin), [])
})

t.test('rejects a message with a token of the other project', async (t) => {
  const answer = await ours.transmit({ body: anAdt('x-2'), accessToken: trial.admin.token })
  t.match(answer, { type: 'agent:error', body: 'Not connected' })
  t.same(await messages(botica.admin), [])
  t.equal((await messages(trial.admin)).length, 1)
})

t.test('becomes the agent of the other project by a token of it', async (t) => {
  ours.say({ type: 'agent:connect:request', accessToken: trial.admin.token, agentId: id })
  const replaced = 'Replaced by a newer connection of this agent'
  t.match(await theirs.heard(isError), { body: replaced })
  const { body } = await botica.admin.get<Untyped>(`Agent/${id}/$status`)
  t.match(body.parameter[0], { name: 'status', valueCode: 'disconnected' })
})

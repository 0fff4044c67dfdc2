/** A member tries to get the feed of a hospital into another bot. */
import t from 'tap'
import { anAgent } from '../../../fixtures/agents/agents.ts'
import { openBotica } from '../../../fixtures/botica.ts'
import type { Untyped } from '../../../fixtures/bots/bots.ts'
import { changedEveryWay } from '../../../fixtures/http/write-paths.ts'
import { memberUnder } from '../../../fixtures/policy/policy.ts'

const botica = await openBotica(t)
const { admin } = botica
const bot = { reference: 'Bot/00000000-0000-4000-8000-000000000000' }
const endpoint = { reference: 'Endpoint/1' }

t.test(
  'plain members do not change channels of an Agent, nor delete one with channels',
  async (t) => {
    const id = await anAgent(admin, { adt: '00000000-0000-4000-8000-000000000001' })
    const { body } = await admin.get<Untyped>(`Agent/${id}`)
    const channel = [{ name: 'adt', endpoint, targetReference: bot }]
    const { client: plain } = await memberUnder(botica, { entries: [{ resourceType: '*' }] })
    for (const [path, status] of await changedEveryWay(plain, body, { channel })) {
      t.equal(status, 403, path)
    }
    t.match(await plain.put<Untyped>(`Agent/${id}`, { ...body, channel }), {
      body: { issue: [{ expression: ['Agent.channel'] }] },
    })
    t.equal((await plain.del(`Agent/${id}`)).status, 403)
    t.equal((await plain.put(`Agent/${id}`, { ...body, name: 'Renamed' })).status, 200)
  },
)

t.test('members with Agent in their policy change its channels', async (t) => {
  const id = await anAgent(admin)
  const { body } = await admin.get<Untyped>(`Agent/${id}`)
  const { client: named } = await memberUnder(botica, { entries: [{ resourceType: 'Agent' }] })
  const channel = [{ name: 'adt', endpoint, targetReference: bot }]
  t.equal((await named.put(`Agent/${id}`, { ...body, channel })).status, 200)
})

/** A member tries to read the secrets of its Project by deploying code, since every run receives them. */
import t from 'tap'
import { openBotica } from '../../../fixtures/botica.ts'
import { aBot, deploy, execute, handler } from '../../../fixtures/bots/bots.ts'
import type { Client } from '../../../fixtures/client.ts'
import type { Resource } from '../../../fixtures/fhir.ts'
import { changedEveryWay } from '../../../fixtures/http/write-paths.ts'
import type { Raw } from '../../../fixtures/oracle/values.ts'
import { memberUnder } from '../../../fixtures/policy/policy.ts'

const botica = await openBotica(t, { worker: true })
const { admin, project } = botica
const STEAL = handler('return event.secrets')
const HARMLESS = handler('return Object.keys(event.secrets)')
const JS = { 'Content-Type': 'text/javascript' }
const secret = [{ name: 'GATEWAY_KEY', valueString: 'a key of the clinic' }]

const free = await botica.createMember()
const starred = await memberUnder(botica, { entries: [{ resourceType: '*' }] })
const named = await memberUnder(botica, {
  entries: [{ resourceType: 'Bot' }, { resourceType: '*' }],
})

type Stored = Resource & { readonly id: string }
const read = async (client: Client, path: string) => (await client.get<Stored>(path)).body
const readCode = async (bot: string) => {
  const { executableCode } = (await admin.get<Raw>(`Bot/${bot}`)).body
  return `Binary/${/storage\/([^/?]+)/.exec(executableCode.url)?.[1]}`
}

t.test('lets plain members deploy bots of equal rights in a Project without secrets', async (t) => {
  const bot = await aBot(botica, HARMLESS)
  t.equal((await deploy(free.client, bot, STEAL)).status, 200)
  t.same((await execute(free.client, bot)).body, {})
})

t.test('rejects code of plain members on every path in a Project with secrets', async (t) => {
  const bot = await aBot(botica, HARMLESS)
  const set = await admin.post(`/admin/projects/${project.id}/secrets`, secret, {
    'Content-Type': 'application/json',
  })
  t.equal(set.status, 200, set.text)
  t.equal((await free.client.get(`Project/${project.id}`)).status, 403)

  for (const { client } of [free, starred]) {
    const deployed = await deploy(client, bot, STEAL)
    t.equal(deployed.status, 403)
    t.match(deployed.body.issue[0], { expression: ['Bot.executableCode'] })
    t.match(deployed.body.issue[0].details.text, /secrets/)
    const url = 'Binary/1'
    const codes = [{ code: STEAL }, { executableCode: { url } }, { sourceCode: { url } }]
    for (const change of codes) {
      const ways = await changedEveryWay(client, await read(client, `Bot/${bot}`), change)
      for (const [way, status] of ways) t.equal(status, 403, way)
    }
    t.equal((await client.put(await readCode(bot), STEAL, JS)).status, 403, 'the Binary')
    t.equal((await client.del(await readCode(bot))).status, 403)
    const made = await client.post('Bot', { resourceType: 'Bot', name: 'Mine', code: STEAL })
    t.equal(made.status, 403)
    const { body } = await client.post<Raw>('$graphql', {
      query: 'mutation ($res: BotCreate!) { BotCreate(res: $res) { id } }',
      variables: { res: { resourceType: 'Bot', name: 'Mine', code: STEAL } },
    })
    t.equal(body.errors?.[0].extensions.status, 403)
    const kept = { ...(await read(client, `Bot/${bot}`)), description: 'saved' }
    t.equal((await client.put(`Bot/${bot}`, kept)).status, 200, 'other changes still work')
  }
  t.same((await execute(free.client, bot)).body, ['GATEWAY_KEY'], 'keeps existing bots running')
})

t.test('lets administrators and members with Bot in their policy deploy', async (t) => {
  const bot = await aBot(botica, HARMLESS)
  t.equal((await deploy(admin, bot, STEAL)).status, 200)
  const own = await aBot(botica, HARMLESS)
  t.equal((await deploy(named.client, own, STEAL)).status, 200)
  t.match((await execute(named.client, own)).body, { GATEWAY_KEY: secret[0] })
})

t.test(
  'rejects code of plain members of a linked Project that would receive secrets here',
  async (t) => {
    const shared = await botica.createTenant()
    const link = [{ project: { reference: `Project/${shared.project.id}` } }]
    const change = [{ op: 'add', path: '/link', value: link }]
    t.equal((await botica.superAdmin.patch(`Project/${project.id}`, change)).status, 200)
    botica.services.principals.forget()
    const member = await botica.createMember({}, shared.project.id)
    const asCaller = await aBot(shared, HARMLESS)
    const runAsUser = [{ op: 'add', path: '/runAsUser', value: true }]
    t.equal((await shared.admin.patch(`Bot/${asCaller}`, runAsUser)).status, 200)
    const { id: alone } = await shared.admin.create({ resourceType: 'Bot', name: 'Alone' })
    const atHome = await aBot(shared, HARMLESS)
    t.equal((await deploy(member.client, asCaller, STEAL)).status, 403)
    t.equal((await deploy(member.client, alone, STEAL)).status, 403)
    t.equal((await deploy(member.client, atHome, STEAL)).status, 200)
    t.same(
      (await execute(free.client, atHome)).body,
      {},
      'runs at home without the secrets of this Project',
    )
  },
)

/** A member tries to expose a Bot, to schedule it, or to hide its runs from the audit trail. */
import t from 'tap'
import { openBotica, until } from '../../../fixtures/botica.ts'
import { aBot, execute, handler } from '../../../fixtures/bots/bots.ts'
import { changedEveryWay } from '../../../fixtures/http/write-paths.ts'
import type { Raw } from '../../../fixtures/oracle/values.ts'
import { changeMembership, memberUnder } from '../../../fixtures/policy/policy.ts'

const botica = await openBotica(t, { worker: true })
const { admin, anonymous } = botica
const LEAK = handler(`
  const { entry = [] } = await medplum.search('Patient', '')
  return entry.map(({ resource }) => resource.name)`)

const { id: readsPatients } = await admin.create({
  resourceType: 'AccessPolicy',
  resource: [{ resourceType: 'Patient' }],
})
const access = [{ policy: { reference: `AccessPolicy/${readsPatients}` } }]
const free = await botica.createMember()
const starred = await memberUnder(botica, { entries: [{ resourceType: '*' }] })
const named = await memberUnder(botica, {
  entries: [{ resourceType: 'Bot' }, { resourceType: '*' }],
})

async function aPlainBot(): Promise<{ readonly bot: string; readonly membership: string }> {
  const bot = await aBot(botica, LEAK)
  await changeMembership(botica, `Bot/${bot}`, { access })
  const { body } = await admin.get<Raw>(`ProjectMembership?profile=Bot/${bot}`)
  return { bot, membership: body.entry[0].resource.id }
}

t.test('disables the web hooks of a removed member', async (t) => {
  await admin.create({ resourceType: 'Patient', name: [{ family: 'Hidden' }] })
  const leaver = await memberUnder(botica, { entries: [{ resourceType: '*' }] })
  const { bot, membership } = await aPlainBot()
  const open = [{ op: 'add', path: '/publicWebhook', value: true }]
  const answer = await leaver.client.patch<Raw>(`Bot/${bot}`, open)
  t.match(answer, { status: 403, body: { issue: [{ expression: ['Bot.publicWebhook'] }] } })
  const { body } = await admin.get<Raw>(`ProjectMembership?profile=ClientApplication/${leaver.id}`)
  t.equal((await admin.del(`ProjectMembership/${body.entry[0].resource.id}`)).status, 200)

  const hooked = await anonymous.post(`/webhook/${membership}`, {})
  t.equal(hooked.status, 403)
  t.notMatch(hooked.text, /Hidden/)
})

const EXPOSING: Readonly<Record<string, unknown>> = {
  publicWebhook: true,
  cronString: '* * * * *',
  cronTiming: { repeat: { period: 1, periodUnit: 'd' } },
  timeout: 60,
  runtimeVersion: 'awslambda',
  auditEventTrigger: 'never',
  auditEventDestination: ['log'],
  cdsService: { hook: 'patient-view', title: 'Mine', description: 'Mine' },
  extension: [{ url: 'urn:botica:bot-memoryMb', valueInteger: 512 }],
}

t.test('rejects exposing bot elements of plain members on every path', async (t) => {
  for (const [name, value] of Object.entries(EXPOSING)) {
    for (const { client } of [free, starred]) {
      const { bot } = await aPlainBot()
      const { body } = await client.get<Raw>(`Bot/${bot}`)
      const ways = await changedEveryWay(client, body, { [name]: value })
      for (const [way, status] of ways) t.equal(status, 403, `${name} by ${way}`)
      const made = await client.post<Raw>('Bot', {
        resourceType: 'Bot',
        name: 'Mine',
        [name]: value,
      })
      t.match(made, { status: 403, body: { issue: [{ expression: [`Bot.${name}`] }] } }, name)
    }
  }
})

t.test('rejects removal of bot limits by plain members', async (t) => {
  const { bot } = await aPlainBot()
  const { body } = await admin.get<Raw>(`Bot/${bot}`)
  const limited = { timeout: 5, extension: [{ url: 'urn:botica:bot-memoryMb', valueInteger: 64 }] }
  t.equal((await admin.put(`Bot/${bot}`, { ...body, ...limited })).status, 200)
  for (const path of ['/timeout', '/extension']) {
    t.equal((await free.client.patch(`Bot/${bot}`, [{ op: 'remove', path }])).status, 403, path)
  }
})

t.test(
  'allows exposing elements with a policy that names Bot, and ignores explicit defaults',
  async (t) => {
    const { bot } = await aPlainBot()
    const { body } = await named.client.get<Raw>(`Bot/${bot}`)
    const { cronTiming: _, cdsService: __, ...settable } = EXPOSING
    const opened = await named.client.put(`Bot/${bot}`, { ...body, ...settable })
    t.equal(opened.status, 200, opened.text)

    const plain = await aPlainBot()
    const defaults = {
      publicWebhook: false,
      runAsUser: false,
      auditEventTrigger: 'always',
      auditEventDestination: ['resource'],
      description: 'saved',
      extension: [{ url: 'https://example.org/note', valueString: 'of the author' }],
    }
    const stored = (await free.client.get<Raw>(`Bot/${plain.bot}`)).body
    const saved = await free.client.put(`Bot/${plain.bot}`, { ...stored, ...defaults })
    t.equal(saved.status, 200, saved.text)
  },
)

t.test('rejects takeover of calls by identifier with an older bot', async (t) => {
  const identifier = [{ system: 'urn:clinic', value: 'charge-card' }]
  const older = await aBot(botica, handler('return "stolen"'))
  await aBot(botica, handler('return "charged"'), { fields: { identifier } })
  const { body } = await free.client.get<Raw>(`Bot/${older}`)
  for (const [way, status] of await changedEveryWay(free.client, body, { identifier })) {
    t.equal(status, 403, way)
  }
  const call = 'Bot/$execute?identifier=urn:clinic|charge-card'
  const answer = await admin.post(call, '{}', { 'Content-Type': 'application/json' })
  t.equal(answer.text, 'charged')
})

t.test('rejects disabling AuditEvents of runs by plain members', async (t) => {
  const { bot } = await aPlainBot()
  for (const [name, value] of [
    ['auditEventTrigger', 'never'],
    ['auditEventDestination', ['log']],
  ]) {
    const silence = [{ op: 'add', path: `/${name}`, value }]
    t.equal((await free.client.patch(`Bot/${bot}`, silence)).status, 403)
  }
  for (let run = 0; run < 3; run++) t.equal((await execute(free.client, bot)).status, 200)
  await until(async () => {
    const { body } = await admin.get<Raw>(
      `AuditEvent?entity=Bot/${bot}&type=execute&_total=accurate`,
    )
    return body.total === 3
  }, 90_000)
})

t.test('stops a web hook with the membership of its bot', async (t) => {
  const { bot, membership } = await aPlainBot()
  const open = [{ op: 'add', path: '/publicWebhook', value: true }]
  t.equal((await admin.patch(`Bot/${bot}`, open)).status, 200)
  t.equal((await anonymous.post(`/webhook/${membership}`, {})).status, 200)
  await changeMembership(botica, `Bot/${bot}`, { active: false })
  t.equal((await anonymous.post(`/webhook/${membership}`, {})).status, 404)
})

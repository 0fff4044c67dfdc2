import { randomUUID } from 'node:crypto'
import t from 'tap'
import { openBotica, type Tenant } from '../../fixtures/botica.ts'
import { aBot, eventually, execute, handler, type Untyped } from '../../fixtures/bots/bots.ts'
import type { Resource } from '../../fixtures/fhir.ts'

const env = { BOT_TIMEOUT_MS: '100000', EXECUTE_WAIT_MS: '110000' }
const botica = await openBotica(t, { worker: true, env })
const { admin, superAdmin, project } = botica
const shared = await botica.createTenant()

async function change(tenant: Tenant, changes: object): Promise<void> {
  const { body } = await superAdmin.get<Untyped>(`Project/${tenant.project.id}`)
  const put = await superAdmin.put(`Project/${tenant.project.id}`, { ...body, ...changes })
  if (put.status !== 200) throw new Error(put.text)
  botica.services.principals.forget()
}

const text = (name: string, valueString: string) => ({ name, valueString })
const names = ['SYSTEM', 'BOTH', 'OURS', 'ALL']
await change(shared, {
  systemSecret: [text('SYSTEM', 'shared system'), text('BOTH', 'shared system'), text('ALL', '1')],
  secret: [text('BOTH', 'shared'), text('OURS', 'shared'), text('ALL', '2')],
})
await change(botica, {
  link: [{ project: { reference: `Project/${shared.project.id}` } }],
  systemSecret: [text('OURS', 'our system'), text('ALL', '3')],
  secret: [text('ALL', '4')],
})

const secretsBot = handler(
  `return Object.fromEntries(${JSON.stringify(names)}.map((name) => [name, event.secrets[name]?.valueString]))`,
)

const whereami = handler(`
  const basic = await medplum.createResource({ resourceType: 'Basic', code: { text: 'x' } })
  return [basic.meta.project, basic.meta.author.reference, medplum.getProject().id]`)

/** Creates a Bot by plain FHIR, without a membership. */
async function aPlainBot(tenant: Tenant, code: string, more: object = {}): Promise<string> {
  const bot = { resourceType: 'Bot', name: 'Plain', ...more }
  const { id } = await tenant.admin.create(bot as Resource)
  const deployed = await tenant.admin.post(`Bot/${id}/$deploy`, { code, filename: 'index.js' })
  t.equal(deployed.status, 200)
  return id
}

/** Repeats the run until the change of the Project is known, which takes seconds. */
async function executeForAnswer(bot: string): Promise<Untyped> {
  return await eventually(async () => {
    const answer = await execute(admin, bot)
    return answer.status === 200 && answer.body.ALL !== undefined ? answer.body : undefined
  })
}

t.test('runs a shared bot without a membership on the data of its caller', async (t) => {
  const bot = await aPlainBot(shared, whereami)
  const [projectId, author, told] = (await execute(admin, bot)).body
  t.equal(projectId, project.id)
  t.match(author, /^ClientApplication\//)
  t.equal(told, project.id)
})

t.test('runs a shared bot with a membership on the data of the project that runs it', async (t) => {
  const bot = await aBot(shared, whereami)
  const own = [shared.project.id, `Bot/${bot}`, shared.project.id]
  t.same((await execute(admin, bot)).body, own)
  const asUser = await aBot(shared, whereami, { fields: { runAsUser: true } })
  t.match((await execute(admin, asUser)).body, [project.id, /^ClientApplication/, project.id])
})

t.test('accepts equivalent URLs for the limits of a bot', async (t) => {
  const spin = handler('for (;;);')
  const addresses = [
    'urn:botica:bot-cpuMs',
    'https://medplum.com/fhir/StructureDefinition/bot-cpuMs',
    'https://elsewhere.example/fhir/StructureDefinition/bot-cpuMs',
  ]
  for (const url of addresses) {
    const fields = { extension: [{ url, valueInteger: 200 }], timeout: 60 }
    const answer = await execute(admin, await aBot(botica, spin, { fields }))
    const text = 'Bot exceeded CPU limit of 0.2 s'
    t.match(answer.body, { issue: [{ details: { text } }] }, url)
  }
  const { body } = await admin.get<Untyped>(`Bot/${await aBot(botica)}`)
  const put = (url: string) =>
    admin.put<Untyped>(`Bot/${body.id}`, { ...body, extension: [{ url, valueInteger: 1 }] })
  t.match((await put('urn:botica:bot-memory')).body, {
    issue: [
      {
        details: { text: /no extension bot-memory: there are .*bot-memoryMb/ },
        expression: ['Bot.extension[0]'],
      },
    ],
  })
  t.equal((await put('https://medplum.com/fhir/StructureDefinition/bot-memory')).status, 200)
  t.equal((await put('https://elsewhere.example/bot-memory')).status, 200)
})

t.test('rejects repeated extensions of a bot, and flags that are not boolean', async (t) => {
  const { body } = await admin.get<Untyped>(`Bot/${await aBot(botica)}`)
  const named = (name: string, value: object) => ({ url: `urn:botica:bot-${name}`, ...value })
  const rate = named('rate', { valueString: '10/s' })
  const cases: readonly [extension: readonly object[], text: RegExp][] = [
    [[rate, named('rate', { valueString: 'often' })], /bot-rate may be given once/],
    [
      [rate, { ...rate, url: 'https://elsewhere.example/fhir/StructureDefinition/bot-rate' }],
      /bot-rate may be given once/,
    ],
    [[rate, named('fresh', { valueString: 'true' })], /bot-fresh must be true or false/],
    [[rate, named('concurrent', { valueInteger: 1 })], /bot-concurrent must be true or false/],
  ]
  for (const [extension, text] of cases) {
    const answer = await admin.put<Untyped>(`Bot/${body.id}`, { ...body, extension })
    t.equal(answer.status, 400)
    t.match(answer.body.issue[0], { details: { text }, expression: ['Bot.extension[1]'] })
  }
})

t.test('prefers secrets of the project of the run, then those of the bot', async (t) => {
  const plain = await aPlainBot(shared, secretsBot)
  t.same(await executeForAnswer(plain), { BOTH: 'shared', OURS: 'shared', ALL: '4' })
  const own = await aBot(shared, secretsBot)
  t.same(await executeForAnswer(own), { BOTH: 'shared', OURS: 'shared', ALL: '2' })
})

t.test(
  'gives a system bot the system secrets, and lets only a super admin create one',
  async (t) => {
    const claimed = await aPlainBot(shared, secretsBot, { system: true })
    t.equal((await shared.admin.get<Untyped>(`Bot/${claimed}`)).body.system, undefined)
    t.equal((await executeForAnswer(claimed)).SYSTEM, undefined)
    const { body } = await superAdmin.get<Untyped>(`Bot/${claimed}`)
    t.equal((await superAdmin.put(`Bot/${claimed}`, { ...body, system: true })).status, 200)
    const answer = await eventually(async () => {
      const found = await executeForAnswer(claimed)
      return found.SYSTEM === undefined ? undefined : found
    })
    t.same(answer, { SYSTEM: 'shared system', BOTH: 'shared', OURS: 'our system', ALL: '4' })
  },
)

t.test('writes as the bot, or as its caller with runAsUser', async (t) => {
  const code = handler(`return await medplum.createResource({ resourceType: 'Patient' })`)
  const own = await execute(admin, await aBot(botica, code))
  const asUser = await execute(admin, await aBot(botica, code, { fields: { runAsUser: true } }))
  t.match(own.body.meta.author.reference, /^Bot\//)
  t.match(asUser.body.meta.author.reference, /^ClientApplication\//)
  t.equal(own.body.meta.project, project.id)
})

t.test('gives the bot secrets of the Project and hides them in its log', async (t) => {
  const other = await botica.createTenant()
  const current = await botica.superAdmin.get<Untyped>(`Project/${other.project.id}`)
  const secret = [{ name: 'KEY', valueString: 'very-secret-value' }]
  await botica.superAdmin.put(`Project/${other.project.id}`, { ...current.body, secret })
  const id = await aBot(
    other,
    handler('console.log("key is", event.secrets.KEY.valueString); return event.secrets'),
  )
  const answer = await eventually(async () => {
    const answer = await execute(other.admin, id)
    return answer.body.KEY === undefined ? undefined : answer
  })
  t.same(answer.body, { KEY: secret[0] })
  const logged = await eventually(async () => {
    const found = await other.admin.get<Untyped>(
      'AuditEvent?type=execute&_sort=-_lastUpdated&_count=1',
    )
    return found.body.entry?.[0]?.resource
  })
  t.match(logged.outcomeDesc, /key is \*\*\*/)
  t.match(logged, {
    outcome: '0',
    type: { code: 'execute' },
    source: { observer: { reference: `Bot/${id}` } },
  })
})

t.test('runs the code of each project for bots of two projects with one id', async (t) => {
  const id = randomUUID()
  const copies: Tenant[] = []
  for (const name of ['trial', 'production']) {
    const tenant = await botica.createTenant()
    await change(tenant, {
      systemSetting: [{ name: 'updateAsCreate', valueBoolean: true }],
      secret: [text('PLACE', name)],
    })
    const made = await tenant.admin.put(`Bot/${id}`, { resourceType: 'Bot', id, name })
    t.equal(made.status, 201, made.text)
    const code = handler(`return ['${name}', event.secrets.PLACE.valueString]`)
    const deployed = await tenant.admin.post(`Bot/${id}/$deploy`, { code, filename: 'index.js' })
    t.equal(deployed.status, 200, deployed.text)
    const { body } = await tenant.admin.get<Untyped>(`Bot/${id}`)
    t.equal(body.meta.versionId, '2', 'both run the same version')
    copies.push(tenant)
  }
  const [trial, production] = copies
  for (const [tenant, name] of [
    [trial, 'trial'],
    [production, 'production'],
    [trial, 'trial'],
  ] as const) {
    t.same((await execute(tenant?.admin ?? admin, id)).body, [name, name])
  }
})

t.test('rejects an id of a Bot that is not a UUID', async (t) => {
  const tenant = await botica.createTenant()
  await change(tenant, { systemSetting: [{ name: 'updateAsCreate', valueBoolean: true }] })
  for (const client of [tenant.admin, botica.superAdmin]) {
    const refused = await client.put<Untyped>('Bot/router', { resourceType: 'Bot', id: 'router' })
    t.equal(refused.status, 400, refused.text)
    t.match(refused.body.issue, [{ expression: ['Bot.id'] }])
  }
  const id = randomUUID().toUpperCase()
  t.equal((await tenant.admin.put(`Bot/${id}`, { resourceType: 'Bot', id })).status, 201)
})

t.test('hides bots of a project that shares none', async (t) => {
  const closed = await botica.createTenant()
  const bot = await aBot(closed, whereami)
  t.equal((await execute(admin, bot)).status, 404)
})

t.test('accepts a runtime version and ignores it', async (t) => {
  const json = { 'Content-Type': 'application/json' }
  const path = `/admin/projects/${project.id}/bot`
  const usual = await admin.post<Untyped>(path, { name: 'Usual' }, json)
  t.equal(usual.body.runtimeVersion, 'vmcontext')
  const named = await admin.post<Untyped>(path, { name: 'N', runtimeVersion: 'awslambda' }, json)
  t.equal(named.body.runtimeVersion, 'awslambda')
  await admin.post(`Bot/${named.body.id}/$deploy`, { code: handler('return 1') })
  t.equal((await execute(admin, named.body.id)).text, '1')
})

t.test("applies limits of the bot's extensions within those of the service", async (t) => {
  const limit = (name: string, valueInteger: number) => ({
    url: `${botica.baseUrl}fhir/StructureDefinition/bot-${name}`,
    valueInteger,
  })
  const fill = handler('const all = []; for (;;) all.push(new Array(1000).fill({}))')
  const spin = handler('for (;;);')
  const cases: readonly (readonly [string, object[], string])[] = [
    [fill, [limit('memoryMb', 24)], 'Bot exceeded memory limit of 24 MB'],
    [fill, [limit('memoryMb', 1)], 'Bot exceeded memory limit of 16 MB'],
    [spin, [limit('cpuMs', 200)], 'Bot exceeded CPU limit of 0.2 s'],
  ]
  for (const [code, extension, said] of cases) {
    const bot = await aBot(botica, code, { fields: { extension, timeout: 60 } })
    const answer = await execute(admin, bot)
    t.match(answer.body, { issue: [{ code: 'too-costly', details: { text: said } }] }, said)
  }
})

t.test('returns the identity of a bot as to a client of the service', async (t) => {
  const code = handler(`
    const me = await medplum.get('auth/me')
    return { me, profile: await medplum.getProfileAsync(), policy: medplum.getAccessPolicy(),
      config: medplum.getUserConfiguration(), membership: medplum.getProjectMembership() }`)
  const own = await aBot(botica, code)
  const asBot = (await execute(admin, own)).body
  t.match(asBot.me, {
    project: { resourceType: 'Project', id: project.id },
    membership: { resourceType: 'ProjectMembership', id: asBot.membership.id },
    profile: { resourceType: 'Bot', id: own },
  })
  t.same(asBot.me.accessPolicy, asBot.policy)
  t.same(asBot.me.config, asBot.config)
  t.equal(asBot.me.profile.id, asBot.profile.id)

  const asked = await aBot(botica, code, { fields: { runAsUser: true } })
  const asCaller = (await execute(admin, asked)).body
  const { body: caller } = await admin.get<Untyped>('/auth/me')
  t.same(asCaller.me, caller)
})

/** A member tries to run code with more rights than it has. */
import t from 'tap'
import { openBotica } from '../../../fixtures/botica.ts'
import { aBot, deploy, execute, handler } from '../../../fixtures/bots/bots.ts'
import type { Client } from '../../../fixtures/client.ts'
import type { Resource } from '../../../fixtures/fhir.ts'
import { changedEveryWay } from '../../../fixtures/http/write-paths.ts'
import type { Raw } from '../../../fixtures/oracle/values.ts'
import { changeMembership, memberUnder } from '../../../fixtures/policy/policy.ts'

const botica = await openBotica(t, { worker: true })
const { admin, superAdmin } = botica
const CODE = handler('return 1')
const OTHER = handler('return 2')

const aPolicy = async (...resource: object[]) => {
  const { id } = await admin.create({ resourceType: 'AccessPolicy', resource })
  return { policy: { reference: `AccessPolicy/${id}` } }
}
const clinical = await aPolicy({ resourceType: 'Patient' }, { resourceType: 'Bot' })
async function botUnder(fields: object, more: object = {}): Promise<string> {
  const id = await aBot(botica, CODE, { fields: { ...more } })
  await changeMembership(botica, `Bot/${id}`, { ...fields })
  return id
}
const free = await botica.createMember()
const starred = await memberUnder(botica, { entries: [{ resourceType: '*' }] })
const narrow = await botica.createMember()
await changeMembership(botica, `ClientApplication/${narrow.id}`, { access: [clinical] })

type Stored = Resource & { readonly id: string }
const read = async (client: Client, path: string) => (await client.get<Stored>(path)).body
/** Returns the reference of the code Binary, whose id starts its storage path. */
const readCode = async (bot: string) => {
  const { executableCode } = (await admin.get<Raw>(`Bot/${bot}`)).body
  return `Binary/${/storage\/([^/?]+)/.exec(executableCode.url)?.[1]}`
}
const readReason = (answer: { body: Raw }) => answer.body.issue[0].details.text

t.test(
  'rejects writes, patches, deploys and deletions of a Bot with more rights than the caller',
  async (t) => {
    const [administrator, unlimited] = await Promise.all([botUnder({ admin: true }), botUnder({})])
    for (const [bot, members] of [
      [administrator, [free, starred, narrow]],
      [unlimited, [narrow]],
    ] as const) {
      for (const { client } of members) {
        const ways = await changedEveryWay(client, await read(client, `Bot/${bot}`), {
          code: OTHER,
        })
        for (const [way, status] of ways) t.equal(status, 403, way)
        const deployed = await deploy(client, bot, OTHER)
        t.equal(deployed.status, 403)
        t.equal(readReason(deployed), `The membership of Bot/${bot} has more rights than yours`)
        t.equal((await client.del(`Bot/${bot}`)).status, 403)
        t.equal((await client.del(`Bot/${bot.toUpperCase()}`)).status, 403)
      }
      t.equal((await execute(admin, bot)).text, '1')
    }
  },
)

t.test('returns 404 for a deletion of a hidden Bot or client with more rights', async (t) => {
  const bot = await botUnder({ admin: true })
  const { client } = await memberUnder(botica, {
    entries: ['Bot', 'ClientApplication'].map((resourceType) => {
      return { resourceType, criteria: `${resourceType}?name=none` }
    }),
  })
  for (const path of [`Bot/${bot}`, `ClientApplication/${botica.adminCredentials.id}`]) {
    t.equal((await client.del(path)).status, 404, path)
    t.equal((await admin.get(path)).status, 200)
  }
})

t.test('rejects writes of the Binary with the code of such a Bot', async (t) => {
  const bot = await botUnder({ admin: true })
  const binary = await readCode(bot)
  const js = { 'Content-Type': 'text/javascript' }
  for (const { client } of [free, starred]) {
    t.equal((await client.put(binary, OTHER, js)).status, 403)
    const current = await read(client, binary)
    const data = Buffer.from(OTHER).toString('base64')
    t.equal((await client.put(binary, { ...current, data })).status, 403)
    const type = [{ op: 'replace', path: '/contentType', value: 'text/plain' }]
    t.equal((await client.patch(binary, type)).status, 403)
    t.equal((await client.del(binary)).status, 403)
    const own = await client.post<Stored>('Binary', OTHER, js)
    t.equal(own.status, 201)
    t.equal(
      (await client.put(`Binary/${own.body.id}`, CODE, js)).status,
      200,
      'accepts other Binaries',
    )
    const pointed = {
      executableCode: { contentType: 'text/javascript', url: `Binary/${own.body.id}` },
    }
    const ways = await changedEveryWay(client, await read(client, `Bot/${bot}`), pointed)
    for (const [way, status] of ways) t.equal(status, 403, way)
  }
  const { client } = await memberUnder(botica, {
    entries: [{ resourceType: 'Bot', readonly: true }, { resourceType: 'Binary' }],
  })
  const plain = await readCode(
    await botUnder({ access: [await aPolicy({ resourceType: 'Binary' })] }),
  )
  t.equal(
    (await client.put(plain, OTHER, js)).status,
    403,
    'callers without write access to the Bot',
  )
  t.equal((await admin.put(binary, CODE, js)).status, 200)
})

t.test('deletes a Bot that runs as its caller with the rights of its membership', async (t) => {
  const unlimited = await botUnder({}, { runAsUser: true })
  t.equal((await narrow.client.del(`Bot/${unlimited}`)).status, 403)
  const patients = await aPolicy({ resourceType: 'Patient' })
  for (const { client } of [free, starred, narrow]) {
    const bot = await botUnder({ access: [patients] }, { runAsUser: true })
    t.equal((await client.del(await readCode(bot))).status, 403, 'its code, which would stop it')
    t.equal((await client.del(`Bot/${bot}`)).status, 200)
    t.equal((await execute(admin, bot)).status, 410)
  }
})

t.test('allows only administrators to create a Bot that runs as its caller', async (t) => {
  const own = await botUnder({ access: [clinical] })
  const asCaller = await botUnder({ access: [clinical] }, { runAsUser: true })
  const named = await memberUnder(botica, {
    entries: [{ resourceType: 'Bot' }, { resourceType: '*' }],
  })
  for (const { client } of [free, starred, named, narrow]) {
    const ways = await changedEveryWay(client, await read(client, `Bot/${own}`), {
      runAsUser: true,
    })
    for (const [way, status] of ways) t.equal(status, 403, way)
    const bot = { resourceType: 'Bot', name: 'Mine', runAsUser: true }
    t.match(await client.post<Raw>('Bot', bot), {
      status: 403,
      body: {
        issue: [
          {
            expression: ['Bot.runAsUser'],
            details: { text: /^Only administrators may write a Bot/ },
          },
        ],
      },
    })
    t.equal((await deploy(client, asCaller, OTHER)).status, 403)
    const js = { 'Content-Type': 'text/javascript' }
    if (client !== narrow.client) {
      t.equal((await client.put(await readCode(asCaller), OTHER, js)).status, 403)
    }
  }
  t.equal((await execute(admin, asCaller)).text, '1')
  const bySuperAdmin = { resourceType: 'Bot', name: 'Theirs', runAsUser: true }
  t.equal((await superAdmin.post('Bot', bySuperAdmin)).status, 201)
  // A Bot without a membership also runs as its caller.
  for (const { client } of [free, starred]) {
    t.equal((await client.post('Bot', { resourceType: 'Bot', code: OTHER })).status, 403)
    const { id } = await client.create({ resourceType: 'Bot', name: 'Mine' })
    t.match(readReason(await deploy(client, id, OTHER)), /^A Bot without a membership/)
  }
  const { id } = await named.client.create({ resourceType: 'Bot', name: 'Mine' })
  t.equal((await deploy(named.client, id, OTHER)).status, 200)
})

t.test('rejects changes of system Bot code by members', async (t) => {
  const bot = await botUnder({ access: [clinical] })
  t.equal(
    (
      await superAdmin.put(`Bot/${bot}`, {
        ...(await read(superAdmin, `Bot/${bot}`)),
        system: true,
      })
    ).status,
    200,
  )
  for (const { client } of [free, starred, narrow]) {
    t.equal((await deploy(client, bot, OTHER)).status, 403)
  }
  t.equal((await deploy(admin, bot, OTHER)).status, 200)
})

t.test('lets members deploy Bots with no more rights than they have', async (t) => {
  const patients = await aPolicy(
    { resourceType: 'Patient' },
    { resourceType: 'Bot', readonly: true },
  )
  for (const [member, fields] of [
    [free, {}],
    [free, { access: [patients] }],
    [starred, { access: [patients] }],
    [narrow, { access: [clinical] }],
    [narrow, { access: [await aPolicy({ resourceType: 'Patient', readonly: true })] }],
  ] as const) {
    const bot = await botUnder(fields)
    t.equal((await deploy(member.client, bot, OTHER)).status, 200)
    t.equal((await execute(admin, bot)).text, '2')
    const saved = { ...(await read(member.client, `Bot/${bot}`)), description: 'saved' }
    t.equal((await member.client.put(`Bot/${bot}`, saved)).status, 200)
  }
})

t.test('does not return rights removed by a policy through a Bot', async (t) => {
  const entries = [{ resourceType: 'Patient', hiddenFields: ['name'] }, { resourceType: '*' }]
  const [hiding, criteria, constraint] = await Promise.all([
    memberUnder(botica, { entries }),
    memberUnder(botica, {
      entries: [
        { resourceType: 'Patient', criteria: 'Patient?gender=male' },
        { resourceType: 'Bot' },
      ],
    }),
    memberUnder(botica, {
      entries: [
        {
          resourceType: 'Patient',
          writeConstraint: [{ language: 'text/fhirpath', expression: 'active' }],
        },
        { resourceType: 'Bot' },
      ],
    }),
  ])
  const bot = await botUnder({ access: [clinical] })
  for (const { client } of [hiding, criteria, constraint]) {
    t.equal((await deploy(client, bot, OTHER)).status, 403)
  }
  const policies = await botUnder({ access: [await aPolicy({ resourceType: 'AccessPolicy' })] })
  t.equal((await deploy(free.client, policies, OTHER)).status, 403, 'may write policies')
})

t.test("limits writes of a member's Bot to those of the member", async (t) => {
  const target = `ClientApplication/${botica.adminCredentials.id}`
  const bot = await botUnder({})
  const steal = handler(`
    const patch = [{ op: 'add', path: '/pkceOptional', value: true }]
    const seen = []
    for (const write of [
      () => medplum.patchResource('ClientApplication', '${botica.adminCredentials.id}', patch),
      () => medplum.updateResource({ resourceType: 'Bot', id: '${bot}', name: 'x', runAsUser: true }),
      () => medplum.createResource({ resourceType: 'AccessPolicy' }),
      () => medplum.deleteResource('Bot', event.input.administrator),
    ]) {
      try { await write(); seen.push('written') } catch (error) { seen.push(error.outcome?.id) }
    }
    return seen`)
  t.equal((await deploy(free.client, bot, steal)).status, 200)
  const administrator = await botUnder({ admin: true })
  const answer = await execute(free.client, bot, { administrator })
  t.same(answer.body, ['forbidden', 'forbidden', 'forbidden', 'forbidden'])
  t.notOk('pkceOptional' in (await superAdmin.get(target)).body)
})

t.test("runs only code of the Bot's own Project", async (t) => {
  const neighbour = await botica.createTenant()
  const theirs = await aBot(neighbour, handler('return "theirs"'))
  const { executableCode } = (await neighbour.admin.get<Raw>(`Bot/${theirs}`)).body
  const [, binary] = /storage\/([^/?]+)/.exec(executableCode.url) ?? []
  const thief = await aBot(botica, undefined, {
    fields: { executableCode: { ...executableCode, url: `Binary/${binary}` } },
  })

  const answer = await execute(admin, thief)
  t.equal(answer.status, 400)
  t.notMatch(answer.text, /theirs/)
})

/**
 * A member with code in a pre-commit bot tries to change the writes of administrators. Imports the numbers of types,
 * to read the columns of the store.
 */
import t from 'tap'
import { typeNumber } from '../../../../shared/fhir/definitions.ts'
import { openBotica } from '../../../fixtures/botica.ts'
import { aBot, deploy, handler, type Untyped } from '../../../fixtures/bots/bots.ts'
import { asked, switchOn } from '../../../fixtures/bots/pre-commit.ts'
import { aSubscription } from '../../../fixtures/http/receiver.ts'
import { changedEveryWay } from '../../../fixtures/http/write-paths.ts'
import { changeMembership, memberUnder } from '../../../fixtures/policy/policy.ts'
import { createDatabase } from '../../../fixtures/store/own-database.ts'

const botica = await openBotica(t, {
  worker: true,
  env: { DATABASE_URL: await createDatabase(t), PRE_COMMIT_BOTS: 'true' },
})
const { admin } = botica
const member = await botica.createMember()
await switchOn(botica, botica)

async function taken(type: string, changes: object): Promise<void> {
  const bot = await asked(botica, type, 'return event.input')
  const code = handler(`return { ...event.input, ...${JSON.stringify(changes)} }`)
  const deployed = await deploy(member.client, bot, code)
  if (deployed.status !== 200) throw new Error(deployed.text)
}

t.test('rejects guarded changes of a pre-commit bot without the right', async (t) => {
  await taken('UserConfiguration', { option: [{ id: 'fhirQuota', valueInteger: 1 }] })
  const configuration = { resourceType: 'UserConfiguration', name: 'Mine' }
  t.match(await admin.post<Untyped>('UserConfiguration', configuration), {
    status: 403,
    body: { issue: [{ expression: ['UserConfiguration.option'] }] },
  })
  for (const [type, changes] of [
    ['ValueSet', { url: 'https://example.org/changed' }],
    ['SearchParameter', { expression: 'Patient.identifier' }],
  ] as const) {
    await taken(type, changes)
    const parameter = {
      ...{ url: 'https://example.org/sent', name: 'sent', code: 'sent', base: ['Patient'] },
      ...{ type: 'token', description: 'Sent', expression: 'Patient.active' },
    }
    const sent = { resourceType: type, status: 'active', ...(type === 'ValueSet' ? {} : parameter) }
    t.match(await admin.post<Untyped>(type, sent), {
      status: 403,
      body: { issue: [{ details: { text: `The pre-commit bot has changed ${type}` } }] },
    })
  }
})

t.test('accepts its other changes', async (t) => {
  await taken('Organization', { alias: ['seen'] })
  const made = await admin.post<Untyped>('Organization', {
    resourceType: 'Organization',
    name: 'First',
  })
  t.match(made, { status: 201, body: { alias: ['seen'] } })
  await taken('OperationDefinition', { description: 'seen' })
  const described = await admin.post<Untyped>('OperationDefinition', {
    ...{ resourceType: 'OperationDefinition', name: 'Described', status: 'active' },
    ...{ kind: 'operation', code: 'described', system: true, type: false, instance: false },
  })
  t.match(described, { status: 201, body: { description: 'seen' } })
})

const starred = await memberUnder(botica, { entries: [{ resourceType: '*' }] })
const URL = 'https://medplum.com/fhir/StructureDefinition/pre-commit-bot'
const asking = (criteria: string, bot: string) =>
  aSubscription(criteria, `Bot/${bot}`, { extension: [{ url: URL, valueBoolean: true }] })

t.test(
  'rejects creation, changes and deletion of pre-commit Subscriptions by plain members',
  async (t) => {
    const bot = await aBot(botica, handler('throw new Error("vetoed")'))
    const own = await asked(botica, 'Location', 'return event.input')
    const { body: found } = await admin.get<Untyped>(`Subscription?url=Bot/${own}`)
    const theirs = found.entry[0].resource
    for (const { client } of [member, starred]) {
      t.match(await client.post<Untyped>('Subscription', asking('Device', bot)), {
        status: 403,
        body: { issue: [{ expression: ['Subscription.extension'] }] },
      })
      const { id } = await client.create(aSubscription('Device', `Bot/${bot}`))
      const { body } = await client.get<Untyped>(`Subscription/${id}`)
      const { extension } = asking('Device', bot)
      for (const [way, status] of await changedEveryWay(client, body, { extension })) {
        t.equal(status, 403, way)
      }
      for (const changes of [{ criteria: 'Device' }, { status: 'off' }, { reason: 'Taken over' }]) {
        const { body: current } = await client.get<Untyped>(`Subscription/${theirs.id}`)
        for (const [way, status] of await changedEveryWay(client, current, changes)) {
          t.equal(status, 403, `${JSON.stringify(changes)} ${way}`)
        }
      }
      t.equal((await client.del(`Subscription/${theirs.id}`)).status, 403)
      t.equal((await client.del(`Subscription/${id}`)).status, 200, 'allows its own Subscription')
    }
    t.equal((await admin.post('Device', { resourceType: 'Device' })).status, 201)
    t.equal((await admin.del(`Subscription/${theirs.id}`)).status, 200)
  },
)

t.test(
  'runs a pre-commit Subscription while the policy of its author names Subscription',
  async (t) => {
    const named = await memberUnder(botica, {
      entries: [{ resourceType: 'Subscription' }, { resourceType: '*' }],
    })
    const bot = await aBot(botica, handler('throw new Error("vetoed")'))
    const { id } = await named.client.create(asking('Substance', bot))
    const substance = { resourceType: 'Substance', code: { text: 'salt' } }
    t.equal((await admin.post('Substance', substance)).status, 400)
    await changeMembership(botica, `ClientApplication/${named.id}`, { access: [] })
    t.equal((await admin.post('Substance', substance)).status, 201)
    await asked(botica, 'Substance', 'return { ...event.input, description: "seen" }')
    const made = await admin.post<Untyped>('Substance', substance)
    t.match(made, { status: 201, body: { description: 'seen' } }, 'the next one runs')
    t.equal((await admin.del(`Subscription/${id}`)).status, 200)
  },
)

const REPAIRS = ['AccessPolicy', 'ClientApplication', 'Bot', 'Subscription', 'ProjectMembership']

t.test('runs no pre-commit bot on writes that repair a Project', async (t) => {
  const bot = await aBot(botica, handler('throw new Error("vetoed")'))
  for (const type of REPAIRS) {
    t.match(await admin.post<Untyped>('Subscription', asking(type, bot)), {
      status: 400,
      body: { issue: [{ expression: ['Subscription.criteria'] }] },
    })
  }
  // Earlier releases stored such Subscriptions.
  const { database } = botica.services
  for (const type of ['AccessPolicy', 'ClientApplication', 'Bot', 'Subscription']) {
    const { id } = await admin.create(asking('Contract', bot))
    await database.query({
      text: `update version set content = replace(content, '"criteria":"Contract"', $2) where id = $1`,
      values: [id, `"criteria":"${type}"`],
    })
    await database.query({
      text: 'update active_subscription set watched = $2 where id = $1',
      values: [id, typeNumber(type)],
    })
    const sent =
      type === 'Subscription'
        ? aSubscription('Contract', `Bot/${bot}`)
        : { resourceType: type, name: 'First' }
    const made = await admin.create(sent)
    const described = [{ op: 'add', path: '/name', value: 'Second' }]
    const changed = [{ op: 'replace', path: '/reason', value: 'Second' }]
    const patch = type === 'Subscription' ? changed : described
    t.equal((await admin.patch(`${type}/${made.id}`, patch)).status, 200, type)
    t.equal((await admin.del(`${type}/${made.id}`)).status, 200, type)
    t.equal((await admin.del(`Subscription/${id}`)).status, 200, type)
  }
})

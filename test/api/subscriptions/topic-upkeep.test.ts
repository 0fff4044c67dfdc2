/** Handshakes, heartbeats and status of Subscriptions to topics. Imports heartbeats, to add them by many workers at once. */
import { randomUUID } from 'node:crypto'
import t from 'tap'
import { addHeartbeats } from '../../../shared/subscriptions/store-topic-events.ts'
import { openBotica, until } from '../../fixtures/botica.ts'
import { startReceiver } from '../../fixtures/http/receiver.ts'
import type { Raw } from '../../fixtures/oracle/values.ts'
import { changeMembership, memberUnder } from '../../fixtures/policy/policy.ts'
import { createDatabase } from '../../fixtures/store/own-database.ts'
import { aTopic, aTopicSubscription, COMPLETION, readStatus } from './topics.ts'

const PATIENCE_MS = 90_000
const receiver = await startReceiver(t)
const botica = await openBotica(t, {
  worker: true,
  env: { DATABASE_URL: await createDatabase(t), WORKER_QUEUES: 'bots-sync,change' },
})
const { admin } = botica
const topic = 'http://example.org/SubscriptionTopic/completed'
await admin.create(aTopic(topic, COMPLETION) as never)

t.test('an author without a membership for a while gets its handshake later', async () => {
  const { id: author, client } = await memberUnder(botica, {
    entries: [{ resourceType: 'Subscription' }, { resourceType: 'Encounter' }],
  })
  const setActive = (active: boolean) =>
    changeMembership(botica, `ClientApplication/${author}`, { active })
  let status = 503
  receiver.answer('/author', async () => {
    if (receiver.on('/author').length === 1) await setActive(false)
    return status
  })
  const attempts = {
    url: 'https://medplum.com/fhir/StructureDefinition/subscription-max-attempts',
    valueInteger: 18,
  }
  const { id } = await client.create(
    aTopicSubscription(topic, `${receiver.url}/author`, { extension: [attempts] }) as never,
  )
  await until(async () => {
    const [delivery] = await botica.services.database.query<{ putBack: number }>({
      text: `select takes / 2 - attempts + (state = 'active')::int as "putBack" from delivery
        where op = 'h' and subscription = $1`,
      values: [id],
    })
    return receiver.on('/author').length > 0 && delivery?.putBack !== 0
  }, PATIENCE_MS)
  status = 200
  await setActive(true)
  const readState = async () => (await admin.get<Raw>(`Subscription/${id}`)).body.status
  await until(async () => (await readState()) === 'active', PATIENCE_MS)
})

t.test('several workers add one heartbeat of a Subscription', async (t) => {
  const { services } = await openBotica(t, { env: { DATABASE_URL: await createDatabase(t) } })
  const { database } = services
  const run = (text: string, values: unknown[] = []) => database.query({ text, values })
  const ids = Array.from({ length: 500 }, () => randomUUID())
  await run(
    `insert into active_subscription (project, id, watched, ver, since, beat_seconds, beat_target)
      select 99, x.id, 1, 1, clock_timestamp() - interval '1 day', 10, 'http://127.0.0.1/'
      from unnest($1::uuid[]) as x(id)`,
    [ids],
  )
  for (let round = 1; round <= 5; round++) {
    const counts = await Promise.all(Array.from({ length: 12 }, () => addHeartbeats(database)))
    t.equal(
      counts.reduce((a, b) => a + b),
      ids.length,
    )
    const twice = await run(
      'select 1 from delivery where project = 99 group by subscription having count(*) > 1',
    )
    t.equal(twice.length, 0)
    await run('delete from delivery where project = 99')
    await run(
      `update subscription_state set notified = notified - interval '1 day'
      where project = 99 and subscription = any($1)`,
      [ids.slice(0, 250)],
    )
    await run('delete from subscription_state where project = 99 and subscription = any($1)', [
      ids.slice(250),
    ])
  }
})

t.test('lists the status of the Subscriptions to topics', async (t) => {
  const subscribe = async (path: string) => {
    const form = aTopicSubscription(topic, receiver.url + path)
    const { id } = await admin.create(form as never)
    await until(
      async () => (await admin.get<Raw>(`Subscription/${id}`)).body.status !== 'requested',
      PATIENCE_MS,
    )
    return id
  }
  receiver.answer('/closed', () => 410)
  const one = await subscribe('/one')
  const two = await subscribe('/two')
  const closed = await admin.create({
    ...aTopicSubscription(topic, `${receiver.url}/closed`),
    status: 'off',
  } as never)
  const plain = await admin.create({
    ...aTopicSubscription('Encounter', `${receiver.url}/plain`),
    status: 'off',
  } as never)
  await admin.create({
    resourceType: 'Encounter',
    status: 'finished',
    class: { code: 'AMB' },
  } as never)
  await receiver.got('/one', 2)
  const list = async (query: string, client = admin) => {
    const { status, body, text } = await client.get<Raw>(`Subscription/$status${query}`)
    t.equal(status, 200, text)
    t.equal(body.type, 'searchset')
    return new Map<string, Raw>(
      (body.entry ?? []).map((entry: Raw) => {
        const found = readStatus({ entry: [entry] })
        return [found.subscription.reference.split('/').at(-1), found]
      }),
    )
  }
  const all = await list('')
  t.match(all.get(one), {
    topic,
    status: 'active',
    type: 'query-status',
    'events-since-subscription-start': '1',
  })
  t.ok(all.has(two) && all.has(closed.id))
  t.notOk(all.has(plain.id))
  t.same([...(await list(`?id=${one}&id=${two}`)).keys()].toSorted(), [one, two].toSorted())
  t.same([...(await list('?status=off')).keys()], [closed.id])
  t.same([...(await list(`?status=off&status=active&id=${two}`)).keys()], [two])
  t.same((await list(`?id=${plain.id}`)).size, 0)
  const posted = await admin.post<Raw>('Subscription/$status', {
    resourceType: 'Parameters',
    parameter: [
      { name: 'id', valueId: one },
      { name: 'id', valueId: closed.id },
    ],
  })
  t.equal(posted.body.total, 2)
  const valid = await admin.post('Bundle', posted.body)
  t.equal(valid.status, 201, valid.text)

  const other = await memberUnder(botica, {
    entries: [{ resourceType: 'Subscription', criteria: 'Subscription?status=off' }],
  })
  t.same(
    [...(await list('', other.client)).keys()],
    [closed.id],
    'only those that the caller may read',
  )
  const { client } = await memberUnder(botica, { entries: [{ resourceType: 'Encounter' }] })
  t.equal((await client.get('Subscription/$status')).status, 403)
  t.equal((await list('', (await botica.createTenant()).admin)).size, 0)
})

t.test('rejects topics whose notifications would have included resources', async (t) => {
  const url =
    'http://hl7.org/fhir/5.0/StructureDefinition/extension-SubscriptionTopic.notificationShape'
  const shape = (...more: Raw[]) => ({
    url,
    extension: [{ url: 'resource', valueUri: 'Encounter' }, ...more],
  })
  const create = (item: Raw) =>
    admin.post<Raw>('Basic', aTopic(`${topic}-shape`, COMPLETION, item as never))
  for (const name of ['include', 'revInclude']) {
    const refused = await create(shape({ url: name, valueString: 'Encounter:patient' }))
    t.equal(refused.status, 400)
    t.same(refused.body.issue[0].expression, ['Basic.extension[2].extension[1]'])
  }
  t.equal((await create(shape())).status, 201)
})

t.test('the metadata shows a change of a topic at once', async (t) => {
  const tenant = await botica.createTenant()
  const listTopics = async () => {
    const { body } = await tenant.admin.get<Raw>('metadata')
    const { extension = [] } = body.rest[0].resource.find(
      ({ type }: Raw) => type === 'Subscription',
    )
    return extension.map(({ valueCanonical }: Raw) => valueCanonical)
  }
  t.same(await listTopics(), [])
  const made: Raw = await tenant.admin.create(aTopic(topic, COMPLETION) as never)
  t.same(await listTopics(), [topic])
  t.same(await listTopics(), [topic])
  const [status] = made.modifierExtension
  const retired = { ...made, modifierExtension: [{ ...status, valueCode: 'retired' }] }
  t.equal((await tenant.admin.put(`Basic/${made.id}`, retired)).status, 200)
  t.same(await listTopics(), [])
  t.equal((await tenant.admin.put(`Basic/${made.id}`, made)).status, 200)
  t.same(await listTopics(), [topic])
  t.equal((await tenant.admin.del(`Basic/${made.id}`)).status, 200)
  t.same(await listTopics(), [])
})

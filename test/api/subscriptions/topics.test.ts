/** Subscriptions to topics, by the R4 backport: handshake, events, heartbeat, `$status` and `$events`. */
import t from 'tap'
import { openBotica, until } from '../../fixtures/botica.ts'
import type { Client } from '../../fixtures/client.ts'
import { extension, startReceiver } from '../../fixtures/http/receiver.ts'
import type { Raw } from '../../fixtures/oracle/values.ts'
import { memberUnder } from '../../fixtures/policy/policy.ts'
import { createDatabase } from '../../fixtures/store/own-database.ts'
import {
  aFilter,
  aTopic,
  aTopicSubscription,
  BACKPORT,
  COMPLETION,
  readStatus,
  type TopicOptions,
} from './topics.ts'

const PATIENCE_MS = 90_000
const URL_OF = 'http://example.org/SubscriptionTopic/'
const receiver = await startReceiver(t)
const botica = await openBotica(t, {
  worker: true,
  env: { DATABASE_URL: await createDatabase(t), WORKER_QUEUES: 'bots-sync,change' },
})
const { admin } = botica
const topic = `${URL_OF}completed`
await admin.create(aTopic(topic, COMPLETION, aFilter('patient'), aFilter('class', 'not')) as never)

const patients = await Promise.all(
  [1, 2].map(() => admin.create({ resourceType: 'Patient' } as never)),
)
const [one = '', two = ''] = patients.map(({ id }) => `Patient/${id}`)

const anEncounter = (status: string, subject = one): Raw => ({
  resourceType: 'Encounter',
  status,
  class: { code: 'AMB' },
  subject: { reference: subject },
})

const readState = async (id: string, client: Client = admin) =>
  (await client.get<Raw>(`Subscription/${id}`)).body.status

/** Returns the id of a Subscription that is active. */
async function subscribe(path: string, options: TopicOptions = {}, criteria = topic) {
  const { id } = await admin.create(
    aTopicSubscription(criteria, receiver.url + path, options) as never,
  )
  await until(async () => (await readState(id)) === 'active', PATIENCE_MS)
  return id
}

/** Notifications of events in order of their numbers, without the handshake. */
async function events(path: string, count: number): Promise<readonly Raw[]> {
  const isEvent = ({ body }: { body: string }) => readStatus(body).type === 'event-notification'
  await until(async () => receiver.on(path).filter(isEvent).length >= count, PATIENCE_MS)
  return receiver
    .on(path)
    .filter(isEvent)
    .map(({ body }): Raw => JSON.parse(body))
    .toSorted((a, b) => eventNumber(a) - eventNumber(b))
}

const eventNumber = (bundle: Raw) => Number(readStatus(bundle).events[0]['event-number'])

t.test('becomes active after a handshake with the receiver', async (t) => {
  let answer = (_status: number) => {}
  receiver.answer('/handshake', () => new Promise((resolve) => (answer = resolve)))
  const form = aTopicSubscription(topic, `${receiver.url}/handshake`, {
    channel: { header: ['Authorization: Bearer of-the-receiver'] },
  })
  const { status, body } = await admin.post<Raw>('Subscription', { ...form, status: 'active' })
  t.equal(status, 201)
  t.equal(body.status, 'requested')
  const [first] = await receiver.got('/handshake', 1)
  t.match(first?.headers, {
    'content-type': 'application/fhir+json',
    authorization: 'Bearer of-the-receiver',
  })
  const bundle = JSON.parse(first?.body ?? '')
  const url = `${botica.baseUrl}fhir/R4/Subscription/${body.id}`
  t.match(bundle, {
    resourceType: 'Bundle',
    type: 'history',
    timestamp: String,
    entry: [
      {
        fullUrl: /^urn:uuid:/,
        resource: { resourceType: 'Parameters' },
        request: { method: 'GET', url: `${url}/$status` },
        response: { status: '200' },
      },
    ],
  })
  t.equal(bundle.entry.length, 1)
  t.same(readStatus(bundle), {
    subscription: { reference: url },
    topic,
    status: 'requested',
    type: 'handshake',
    'events-since-subscription-start': '0',
    events: [],
  })
  t.equal(await readState(body.id), 'requested', 'waits for the answer')
  answer(200)
  await until(async () => (await readState(body.id)) === 'active', PATIENCE_MS)
  const { body: stored } = await admin.get<Raw>(`Subscription/${body.id}`, {
    'X-Medplum': 'extended',
  })
  t.equal(stored.meta.author.reference, `ClientApplication/${botica.adminCredentials.id}`)

  const saved = await admin.put<Raw>(`Subscription/${body.id}`, { ...stored, reason: 'other' })
  t.equal(saved.body.status, 'active', 'a change elsewhere needs no handshake')
  receiver.answer('/moved', () => 200)
  const channel = { ...stored.channel, endpoint: `${receiver.url}/moved` }
  const moved = await admin.put<Raw>(`Subscription/${body.id}`, { ...saved.body, channel })
  t.equal(moved.body.status, 'requested')
  await receiver.got('/moved', 1)
  await until(async () => (await readState(body.id)) === 'active', PATIENCE_MS)
})

t.test('becomes an error when the receiver rejects the handshake', async (t) => {
  receiver.answer('/closed', () => 403)
  const { id } = await admin.create(
    aTopicSubscription(topic, `${receiver.url}/closed`, {
      extension: [extension('subscription-max-attempts', 1) as Raw],
    }) as never,
  )
  await until(async () => (await readState(id)) === 'error', PATIENCE_MS)
  const { body } = await admin.get<Raw>(`Subscription/${id}`)
  t.match(body.error, /handshake.*403/)
  await admin.create(anEncounter('finished') as never)
  t.equal(receiver.on('/closed').length, 1)
  const dead = await admin.get('Bot/$dead-letters?kind=delivery')
  t.notMatch(dead.text, `Subscription/${id}`)
})

t.test('notifies of events that the topic and the filters select', async (t) => {
  const id = await subscribe('/selected', {
    filters: [`Encounter?patient=${one}`, 'class:not=IMP'],
  })
  const { id: first } = await admin.create(anEncounter('planned') as never)
  await admin.create(anEncounter('finished', two) as never)
  await admin.create({ ...anEncounter('finished'), class: { code: 'IMP' } } as never)
  await admin.put(`Encounter/${first}`, { ...anEncounter('finished'), id: first })
  await admin.put(`Encounter/${first}`, {
    ...{ ...anEncounter('finished'), id: first },
    priority: { text: 'high' },
  })
  const { id: second } = await admin.create(anEncounter('finished') as never)
  const [updated, created] = await events('/selected', 2)
  const at = `${botica.baseUrl}fhir/R4/`
  t.match(updated, {
    type: 'history',
    entry: [
      {},
      {
        fullUrl: `${at}Encounter/${first}`,
        request: { method: 'PUT', url: `Encounter/${first}` },
        response: { status: '200' },
      },
    ],
  })
  t.equal(updated?.entry[1].resource, undefined)
  t.match(readStatus(updated), {
    subscription: { reference: `${at}Subscription/${id}` },
    topic,
    status: 'active',
    type: 'event-notification',
    'events-since-subscription-start': '1',
    events: [
      {
        'event-number': '1',
        timestamp: /^\d{4}-.*Z$/,
        focus: { reference: `${at}Encounter/${first}` },
      },
    ],
  })
  t.match(created?.entry[1].request, { method: 'POST', url: 'Encounter' })
  t.match(readStatus(created).events, [
    { 'event-number': '2', focus: { reference: `${at}Encounter/${second}` } },
  ])

  await admin.create(anEncounter('finished') as never)
  await events('/selected', 3)
  t.equal((await events('/selected', 3)).length, 3, 'others did not count')
})

t.test('sends as much as the content of the payload allows', async (t) => {
  await subscribe('/empty', { content: 'empty' })
  await subscribe('/full', { content: 'full-resource' })
  const { id } = await admin.create(anEncounter('finished') as never)
  const [[empty], [full]] = await Promise.all([events('/empty', 1), events('/full', 1)])
  t.equal(empty?.entry.length, 1)
  t.same(Object.keys(readStatus(empty).events[0]), ['event-number', 'timestamp'])
  t.equal(readStatus(empty).topic, undefined)
  t.notMatch(JSON.stringify(empty), id)
  t.match(full?.entry[1].resource, { resourceType: 'Encounter', id, status: 'finished' })
  t.equal(full?.entry[1].resource.meta.project, undefined)
  for (const bundle of [empty, full]) {
    const { status, text } = await admin.post('Bundle', bundle)
    t.equal(status, 201, `is a valid Bundle: ${text}`)
  }
})

t.test('notifies of deletions, and by an expression', async (t) => {
  const gone = `${URL_OF}gone`
  await admin.create(aTopic(gone, { resource: 'Device', interactions: ['delete'] }) as never)
  await subscribe('/gone', { content: 'full-resource' }, gone)
  await subscribe('/gone-empty', { content: 'empty' }, gone)
  const moved = `${URL_OF}moved`
  const expression = '%previous.exists() and %previous.status != %current.status'
  await admin.create(aTopic(moved, { resource: 'Device', expression }) as never)
  await subscribe('/changed', {}, moved)
  const { id } = await admin.create({ resourceType: 'Device', status: 'active' } as never)
  await admin.put(`Device/${id}`, { resourceType: 'Device', id, status: 'inactive' })
  await admin.del(`Device/${id}`)
  const [deleted] = await events('/gone', 1)
  t.match(deleted?.entry[1], {
    request: { method: 'DELETE', url: `Device/${id}` },
    response: { status: '204' },
    resource: undefined,
  })
  await events('/gone-empty', 1)
  const empty = receiver.on('/gone-empty').at(-1)
  t.notMatch(JSON.stringify([empty?.headers, empty?.body]), id, 'the content is empty')
  const [changed] = await events('/changed', 1)
  t.match(changed?.entry[1].request, { method: 'PUT', url: `Device/${id}` })
})

t.test('numbers events without gaps while many are written at once', async (t) => {
  const id = await subscribe('/many')
  const count = 60
  await Promise.all(
    Array.from({ length: count }, () => admin.create(anEncounter('finished') as never)),
  )
  const all = await events('/many', count)
  const numbers = all.map((bundle) => Number(readStatus(bundle).events[0]['event-number']))
  t.same(
    numbers.toSorted((a, b) => a - b),
    Array.from({ length: count }, (_, i) => i + 1),
  )
  const { body } = await admin.get<Raw>(`Subscription/${id}/$status`)
  t.equal(body.type, 'searchset')
  t.same(readStatus(body), {
    subscription: { reference: `${botica.baseUrl}fhir/R4/Subscription/${id}` },
    topic,
    status: 'active',
    type: 'query-status',
    'events-since-subscription-start': String(count),
    events: [],
  })
})

t.test('returns past events by number', async (t) => {
  const id = await subscribe('/past', { content: 'empty' })
  const made: string[] = []
  for (const _ of [1, 2, 3]) {
    made.push((await admin.create(anEncounter('finished') as never)).id)
    await events('/past', made.length)
  }
  const query = 'eventsSinceNumber=2&eventsUntilNumber=3'
  const { status, body } = await admin.get<Raw>(`Subscription/${id}/$events?${query}`)
  t.equal(status, 200)
  t.equal(body.type, 'history')
  const found = readStatus(body)
  t.match(found, { type: 'query-event', 'events-since-subscription-start': '3' })
  t.same(
    found.events.map((event: Raw) => [event['event-number'], event.focus]),
    [
      ['2', undefined],
      ['3', undefined],
    ],
    'the content of the Subscription is the default',
  )
  const full = await admin.get<Raw>(`Subscription/${id}/$events?content=full-resource`)
  t.same(
    full.body.entry.slice(1).map(({ resource }: Raw) => resource.id),
    made,
  )
  const posted = await admin.post<Raw>(`Subscription/${id}/$events`, {
    resourceType: 'Parameters',
    parameter: [
      { name: 'eventsSinceNumber', valueString: '3' },
      { name: 'content', valueCode: 'id-only' },
    ],
  })
  t.match(readStatus(posted.body).events, [
    { 'event-number': '3', focus: { reference: /Encounter/ } },
  ])

  for (const [bad, parameter] of [
    ['eventsSinceNumber=x', 'eventsSinceNumber'],
    ['eventsSinceNumber=3&eventsUntilNumber=2', 'eventsUntilNumber'],
    ['content=all', 'content'],
  ] as const) {
    const { status, text } = await admin.get(`Subscription/${id}/$events?${bad}`)
    t.equal(status, 400, bad)
    t.match(text, parameter)
  }
  const plain = await admin.create({
    ...aTopicSubscription('Encounter', `${receiver.url}/plain`),
    status: 'off',
  } as never)
  t.equal((await admin.get(`Subscription/${plain.id}/$events`)).status, 400)

  const { client } = await memberUnder(botica, { entries: [{ resourceType: 'Subscription' }] })
  const hidden = await client.get<Raw>(`Subscription/${id}/$events?content=full-resource`)
  t.equal(hidden.body.entry.length, 1, 'shows only resources visible to the caller')
  t.notMatch(hidden.text, made.join())
  t.equal(readStatus(hidden.body).events.length, 3)
  const other = await memberUnder(botica, { entries: [{ resourceType: 'Encounter' }] })
  t.equal((await other.client.get(`Subscription/${id}/$events`)).status, 404)
  const { admin: foreign } = await botica.createTenant()
  t.equal((await foreign.get(`Subscription/${id}/$events`)).status, 404)
})

t.test('sends nothing that the author of the Subscription may not read', async (t) => {
  const { client } = await memberUnder(botica, {
    entries: [
      { resourceType: 'Subscription' },
      { resourceType: 'Encounter', criteria: `Encounter?patient=${two}` },
    ],
  })
  const { id } = await client.create(
    aTopicSubscription(topic, `${receiver.url}/author`, { content: 'full-resource' }) as never,
  )
  await until(async () => (await readState(id)) === 'active', PATIENCE_MS)
  await admin.create(anEncounter('finished', one) as never)
  const { id: seen } = await admin.create(anEncounter('finished', two) as never)
  const [first] = await events('/author', 1)
  t.equal(first?.entry[1].resource.id, seen)
  t.equal(readStatus(first ?? {}).events[0]['event-number'], '1', 'hidden events have no number')
  const state = await client.get<Raw>(`Subscription/${id}/$status`)
  t.equal(readStatus(state.body)['events-since-subscription-start'], '1')
})

t.test('an author learns nothing from versions that were hidden before', async (t) => {
  const { client } = await memberUnder(botica, {
    entries: [
      { resourceType: 'Subscription' },
      { resourceType: 'Encounter', criteria: 'Encounter?status=finished' },
    ],
  })
  const { id } = await client.create(aTopicSubscription(topic, `${receiver.url}/before`) as never)
  await until(async () => (await readState(id)) === 'active', PATIENCE_MS)
  const { id: hidden } = await admin.create(anEncounter('planned') as never)
  await admin.put(`Encounter/${hidden}`, { ...anEncounter('finished'), id: hidden })
  const { id: seen } = await admin.create(anEncounter('finished') as never)
  const [first] = await events('/before', 1)
  t.match(readStatus(first ?? {}).events, [
    { 'event-number': '1', focus: { reference: new RegExp(seen) } },
  ])
})

t.test('numbers begin again for a new Subscription with the id of an expunged one', async (t) => {
  const id = await subscribe('/again')
  await admin.create(anEncounter('finished') as never)
  await events('/again', 1)
  const { body: stored } = await admin.get<Raw>(`Subscription/${id}`)
  t.equal((await admin.post(`Subscription/${id}/$expunge`, {})).status, 200)
  const { body: project } = await botica.superAdmin.get<Raw>(`Project/${botica.project.id}`)
  const systemSetting = [{ name: 'updateAsCreate', valueBoolean: true }]
  await botica.superAdmin.put(`Project/${botica.project.id}`, { ...project, systemSetting })
  const { meta: _, ...again } = stored
  t.equal((await admin.put(`Subscription/${id}`, again)).status, 201)
  await until(async () => (await readState(id)) === 'active', PATIENCE_MS)
  await admin.create(anEncounter('finished') as never)
  await events('/again', 2)
  const past = await admin.get<Raw>(`Subscription/${id}/$events`)
  t.match(readStatus(past.body), { 'events-since-subscription-start': '1' })
  t.equal(readStatus(past.body).events.length, 1)
})

t.test('a header may change without a handshake', async (t) => {
  const id = await subscribe('/rotated')
  const { body } = await admin.get<Raw>(`Subscription/${id}`)
  const channel = { ...body.channel, header: ['Authorization: Bearer new'] }
  const saved = await admin.put<Raw>(`Subscription/${id}`, { ...body, channel })
  t.equal(saved.body.status, 'active')
})

t.test('sends a heartbeat when nothing happens', async (t) => {
  const heartbeat = { url: `${BACKPORT}heartbeat-period`, valueUnsignedInt: 10 }
  const id = await subscribe('/beat', { channel: { extension: [heartbeat] } })
  const [, beat] = await receiver.got('/beat', 2)
  t.match(readStatus(beat?.body ?? ''), {
    type: 'heartbeat',
    status: 'active',
    'events-since-subscription-start': '0',
    events: [],
  })
  await admin.del(`Subscription/${id}`)
})

/** Delivery to REST hooks: selection, retries, order and signatures. */
import { createHmac } from 'node:crypto'
import { createServer } from 'node:http'
import t from 'tap'
import { openBotica, until } from '../../fixtures/botica.ts'
import type { Untyped } from '../../fixtures/bots/bots.ts'
import { listen } from '../../fixtures/http/listening.ts'
import { aSubscription, extension, startReceiver } from '../../fixtures/http/receiver.ts'
import { createDatabase } from '../../fixtures/store/own-database.ts'

const receiver = await startReceiver(t)
const botica = await openBotica(t, {
  worker: true,
  env: { DATABASE_URL: await createDatabase(t), WORKER_QUEUES: 'bots-sync,change' },
})
const { admin } = botica
const PATIENCE_MS = 90_000

const subscribe = (criteria: string, path: string, more: object = {}) =>
  admin.create(aSubscription(criteria, receiver.url + path, more))

t.test('sends signed create, update and delete events', async (t) => {
  const secret = 'a secret of the receiver'
  const subscription = await subscribe('Patient?gender=female', '/signed', {
    channel: { header: ['X-Own: a:b', 'Content-Type: text/plain'] },
    extension: [
      {
        url: 'https://www.medplum.com/fhir/StructureDefinition/subscription-secret',
        valueString: secret,
      },
    ],
  })
  const traceId = '0af7651916cd43dd8448eb211c80319c'
  const traceparent = `00-${traceId}-b7ad6b7169203331-01`
  const made = await admin.post(
    'Patient',
    { resourceType: 'Patient', gender: 'female' },
    { traceparent },
  )
  const id = String(made.body.id)
  await admin.create({ resourceType: 'Patient', gender: 'male' })
  const [first] = await receiver.got('/signed', 1)
  await admin.put(`Patient/${id}`, { resourceType: 'Patient', id, gender: 'female', active: true })
  await receiver.got('/signed', 2)
  await admin.del(`Patient/${id}`)
  const all = await receiver.got('/signed', 3)

  t.same(
    all.map(({ headers }) => headers['x-medplum-interaction']),
    ['create', 'update', 'delete'],
  )
  t.match(first?.headers, {
    'content-type': 'application/fhir+json',
    'x-medplum-subscription': subscription.id,
    'x-attempt': '1',
    'x-trace-id': traceId,
    'x-own': 'a:b',
    'user-agent': /^Botica\/\d/,
  })
  t.match(first?.headers.traceparent, new RegExp(`^00-${traceId}-[0-9a-f]{16}-01$`))
  t.match(JSON.parse(first?.body ?? ''), {
    id,
    meta: { versionId: '1', project: botica.project.id, author: {} },
  })
  const hmac = (text: string) => createHmac('sha256', secret).update(text).digest('hex')
  const { 'x-signature': signature, 'x-signature-timestamp': time } = first?.headers ?? {}
  t.equal(signature, hmac(first?.body ?? ''))
  t.equal(first?.headers['x-signature-v1'], hmac(`${time}.${first?.body}`))
  t.equal(all[2]?.body, '{}')
  t.equal(all[2]?.headers['x-medplum-deleted-resource'], `Patient/${id}`)
  t.equal(new Set(all.map(({ headers }) => headers['x-event-id'])).size, 3)
})

t.test('sends events for patches, bundles, GraphQL and conditional writes', async (t) => {
  await subscribe('Practitioner', '/ways')
  const { id } = await admin.create({ resourceType: 'Practitioner' })
  await admin.patch(`Practitioner/${id}`, [{ op: 'add', path: '/active', value: true }], {
    'Content-Type': 'application/json-patch+json',
  })
  const identifier = [{ system: 'urn:s', value: 'conditional' }]
  await admin.put('Practitioner?identifier=urn:s|conditional', {
    resourceType: 'Practitioner',
    identifier,
  })
  const entry = (url: string, method: string, resource?: object) => ({
    request: { method, url },
    ...(resource ? { resource } : {}),
  })
  const bundle = await admin.post('', {
    resourceType: 'Bundle',
    type: 'transaction',
    entry: [
      entry('Practitioner', 'POST', { resourceType: 'Practitioner', active: true }),
      entry('Practitioner', 'POST', { resourceType: 'Practitioner', active: false }),
      entry(`Practitioner/${id}`, 'DELETE'),
    ],
  })
  t.equal(bundle.status, 200)
  const query = 'mutation { PractitionerCreate(res: { resourceType: "Practitioner" }) { id } }'
  t.equal((await admin.post('$graphql', { query })).status, 200)
  await admin.del('Practitioner?identifier=urn:s|conditional')

  const all = await receiver.got('/ways', 8)
  const kinds = Map.groupBy(all, ({ headers }) => headers['x-medplum-interaction'])
  t.equal(kinds.get('create')?.length, 5)
  t.equal(kinds.get('update')?.length, 1)
  t.equal(kinds.get('delete')?.length, 2)
})

t.test('filters changes by interaction and FHIRPath', async (t) => {
  await subscribe('Encounter', '/finished', {
    extension: [
      extension('subscription-supported-interaction', 'update'),
      extension('fhir-path-criteria-expression', '%previous.status != %current.status'),
    ],
  })
  await subscribe('Encounter', '/broken', {
    extension: [extension('fhir-path-criteria-expression', 'status.toInteger() / 0 > 1')],
  })
  const anEncounter = (status: string) => ({
    resourceType: 'Encounter',
    status,
    class: { code: 'AMB' },
  })
  const { id } = await admin.create(anEncounter('planned'))
  await admin.put(`Encounter/${id}`, { ...anEncounter('planned'), id, language: 'en' })
  await admin.put(`Encounter/${id}`, { ...anEncounter('finished'), id })
  const [only] = await receiver.got('/finished', 1)
  t.match(JSON.parse(only?.body ?? ''), { status: 'finished', meta: { versionId: '3' } })
  t.equal(receiver.on('/broken').length, 0)
})

t.test('counts a failing expression and sends nothing', async (t) => {
  await subscribe('Specimen', '/unjudged', {
    extension: [extension('fhir-path-criteria-expression', '(1 | 2).single() = 1')],
  })
  await subscribe('Specimen', '/judged')
  await admin.create({ resourceType: 'Specimen' })
  await receiver.got('/judged', 1)
  const counted = /event_skipped_matches_total [1-9]/
  await until(async () => counted.test((await botica.anonymous.get('/metrics')).text), PATIENCE_MS)
  t.equal(receiver.on('/unjudged').length, 0)
})

t.test('delivers versions of one resource in order', async (t) => {
  await subscribe('Location', '/order')
  const ids = await Promise.all(
    Array.from({ length: 5 }, async () => (await admin.create({ resourceType: 'Location' })).id),
  )
  for (let version = 2; version <= 6; version++) {
    await Promise.all(
      ids.map((id) =>
        admin.put(`Location/${id}`, { resourceType: 'Location', id, name: `v${version}` }),
      ),
    )
  }
  const all = await receiver.got('/order', 30)
  for (const id of ids) {
    const versions = all
      .map(({ body }) => JSON.parse(body))
      .filter((resource) => resource.id === id)
      .map(({ meta }) => meta.versionId)
    t.same(versions, ['1', '2', '3', '4', '5', '6'])
  }
})

t.test('retries and audits failed attempts up to the limit', async (t) => {
  receiver.answer('/failing', () => 500)
  const { id: subscription } = await subscribe('Device', '/failing', {
    extension: [extension('subscription-max-attempts', 2)],
  })
  await admin.create({ resourceType: 'Device' })
  const all = await receiver.got('/failing', 2)
  t.same(
    all.map(({ headers }) => headers['x-attempt']),
    ['1', '2'],
  )
  t.equal(all[0]?.headers['x-event-id'], all[1]?.headers['x-event-id'])
  const audits = async () => {
    const found = await admin.get<Untyped>(
      `AuditEvent?entity=Subscription/${subscription}&_sort=_lastUpdated`,
    )
    return (found.body.entry ?? []).map(({ resource }: Untyped) => resource)
  }
  await until(async () => (await audits()).length === 2, PATIENCE_MS)
  t.match(await audits(), [
    { outcome: '4', outcomeDesc: 'Attempt 1 received status 500', type: { code: 'transmit' } },
    { outcome: '8', outcomeDesc: 'Attempt 2 received status 500' },
  ])
})

t.test('writes AuditEvents of attempts to the destinations of the Subscription', async (t) => {
  const destination = (valueCode: string) => ({
    url: 'https://medplum.com/fhir/StructureDefinition/subscription-audit-event-destination',
    valueCode,
  })
  const quiet = await subscribe('Media', '/quiet', { extension: [destination('log')] })
  const both = await subscribe('Media', '/both', {
    extension: [destination('log'), destination('resource')],
  })
  const aMedia = {
    resourceType: 'Media',
    status: 'completed',
    content: { contentType: 'image/png' },
  }
  await admin.create(aMedia)
  await Promise.all(['/quiet', '/both'].map((path) => receiver.got(path, 1)))
  const count = async (id: string) => {
    const found = await admin.get<Untyped>(`AuditEvent?entity=Subscription/${id}&_total=accurate`)
    return Number(found.body.total)
  }
  // Attempts of one Subscription end in their order.
  await until(async () => (await count(both.id)) === 1, PATIENCE_MS)
  await admin.create(aMedia)
  await Promise.all(['/quiet', '/both'].map((path) => receiver.got(path, 2)))
  await until(async () => (await count(both.id)) === 2, PATIENCE_MS)
  t.equal(await count(quiet.id), 0)
})

t.test('uses the success codes of the Subscription', async (t) => {
  receiver.answer('/teapot', () => 418)
  await subscribe('Substance', '/teapot', {
    extension: [extension('subscription-success-codes', '200-299,418')],
  })
  await admin.create({ resourceType: 'Substance', code: { text: 'tea' } })
  await receiver.got('/teapot', 1)
  const { database } = botica.services
  await until(async () => {
    const rows = await database.query({
      text: `select 1 from delivery where target = $1 and state <> 'failed'`,
      values: [new URL(receiver.url).host],
    })
    return rows.length === 0 || receiver.on('/teapot').length > 1
  }, PATIENCE_MS)
  t.equal(receiver.on('/teapot').length, 1)
})

t.test(
  'an event is delivered by the status, even if the body is cut, stalls or is endless',
  async (t) => {
    const server = createServer(({ url }, res) => {
      const isEndless = url === '/endless'
      res.writeHead(200, { 'Content-Length': isEndless ? 1e12 : 1000 })
      const write = () =>
        res.write('x'.repeat(isEndless ? 100_000 : 1), isEndless ? write : undefined)
      write()
      if (url === '/cut') setImmediate(() => res.destroy())
    })
    const base = `http://127.0.0.1:${await listen(t, server)}`
    const subscriptions = await Promise.all(
      ['/cut', '/stalled', '/endless'].map((path) =>
        admin.create(aSubscription('Group', base + path)),
      ),
    )
    await admin.create({ resourceType: 'Group', type: 'person', actual: true })
    for (const { id } of subscriptions) {
      const path = `AuditEvent?entity=Subscription/${id}`
      const audits = async () => (await admin.get<Untyped>(path)).body.entry ?? []
      await until(async () => (await audits()).length > 0, PATIENCE_MS)
      t.match(await audits(), [
        { resource: { outcome: '0', outcomeDesc: 'Attempt 1 received status 200' } },
      ])
    }
  },
)

t.test('sends nothing that the author may not read', async (t) => {
  const policy = await admin.create({
    resourceType: 'AccessPolicy',
    resource: [
      { resourceType: 'Subscription' },
      {
        resourceType: 'Organization',
        criteria: 'Organization?active=true',
        hiddenFields: ['name'],
      },
    ],
  })
  const { client } = await botica.createMember({
    accessPolicy: { reference: `AccessPolicy/${policy.id}` },
  })
  await client.create(aSubscription('Organization', `${receiver.url}/policy`))
  await admin.create({ resourceType: 'Organization', name: 'unseen', active: false })
  await admin.create({ resourceType: 'Organization', name: 'hidden', active: true })
  const [only] = await receiver.got('/policy', 1)
  t.match(JSON.parse(only?.body ?? ''), { active: true, name: undefined })
  t.equal(receiver.on('/policy').length, 1)
})

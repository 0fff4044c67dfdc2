import { randomUUID } from 'node:crypto'
import t, { type Test } from 'tap'
import { openBotica } from '../../fixtures/botica.ts'
import { aBot, type Untyped } from '../../fixtures/bots/bots.ts'
import { aSubscription, extension } from '../../fixtures/http/receiver.ts'
import { clientUnder } from '../../fixtures/policy/policy.ts'

const HOOK = 'https://receiver.example.com/hook'
const SECRET = 'https://www.medplum.com/fhir/StructureDefinition/subscription-secret'
const botica = await openBotica(t, { env: { HOOK_TARGETS: 'public' } })
const { admin, services } = botica

const forSocket = (more: Untyped) => {
  const channel = { type: 'websocket', endpoint: undefined, ...more.channel }
  return aSubscription('Patient', '', { ...more, channel })
}

const refused = async (t: Test, body: object, path: string) => {
  const answer = await admin.post<Untyped>('Subscription', body)
  t.match(answer, { status: 400, body: { issue: [{ expression: [path] }] } }, answer.text)
}

t.test('rejects Subscriptions that could never fire, with the element', async (t) => {
  const extended = (...items: object[]) => aSubscription('Patient', HOOK, { extension: items })
  const withChannel = (channel: Untyped) => aSubscription('Patient', HOOK, { channel })
  const withHeader = (header: string) => withChannel({ header: [header] })
  const cases: readonly (readonly [name: string, body: object, path: string])[] = [
    ['an unknown type', aSubscription('Patiens', HOOK), 'Subscription.criteria'],
    ['an unknown parameter', aSubscription('Patient?nmae=a', HOOK), 'Subscription.criteria'],
    ['a chain', aSubscription('Observation?subject.name=a', HOOK), 'Subscription.criteria'],
    [
      '_has',
      aSubscription('Patient?_has:Observation:subject:code=a', HOOK),
      'Subscription.criteria',
    ],
    [
      '_include',
      aSubscription('Patient?_include=Patient:organization', HOOK),
      'Subscription.criteria',
    ],
    ['_filter', aSubscription('Patient?_filter=active eq true', HOOK), 'Subscription.criteria'],
    [
      'http',
      aSubscription('Patient', 'http://receiver.example.com/'),
      'Subscription.channel.endpoint',
    ],
    [
      'a private address',
      aSubscription('Patient', 'https://10.0.0.1/'),
      'Subscription.channel.endpoint',
    ],
    [
      'a port',
      aSubscription('Patient', 'https://a.example.com:9/'),
      'Subscription.channel.endpoint',
    ],
    ['no address', aSubscription('Patient', 'receiver'), 'Subscription.channel.endpoint'],
    ['no Bot', aSubscription('Patient', 'Patient/1'), 'Subscription.channel.endpoint'],
    ['no endpoint', withChannel({ endpoint: undefined }), 'Subscription.channel.endpoint'],
    [
      'a channel that is not served',
      withChannel({ type: 'email', endpoint: 'mailto:a@example.com' }),
      'Subscription.channel.type',
    ],
    ['XML', withChannel({ payload: 'application/fhir+xml' }), 'Subscription.channel.payload'],
    [
      'unreadable success codes',
      extended(extension('subscription-success-codes', '2xx')),
      'Subscription.extension[0].valueString',
    ],
    ['a header without a value', withHeader('Name'), 'Subscription.channel.header[0]'],
    ['Host', withHeader('Host: other'), 'Subscription.channel.header[0]'],
    ['a line break', withHeader('A: b\r\nC: d'), 'Subscription.channel.header[0]'],
    [
      'an unknown interaction',
      extended(extension('subscription-supported-interaction', 'read')),
      'Subscription.extension[0].valueCode',
    ],
    [
      'a broken expression',
      extended(extension('fhir-path-criteria-expression', 'status =')),
      'Subscription.extension[0].valueString',
    ],
    [
      'too many attempts',
      extended(extension('subscription-max-attempts', 19)),
      'Subscription.extension[0].valueInteger',
    ],
    [
      'an unknown destination of AuditEvents',
      extended(extension('subscription-audit-event-destination', 'mail')),
      'Subscription.extension[0].valueCode',
    ],
    [
      'an empty secret',
      extended({ url: SECRET, valueInteger: 1 }),
      'Subscription.extension[0].valueString',
    ],
    ['a type without events', aSubscription('AuditEvent', HOOK), 'Subscription.criteria'],
    [
      'a requested one to a type without events',
      aSubscription('AsyncJob', HOOK, { status: 'requested' }),
      'Subscription.criteria',
    ],
    [
      'a web socket for a type without events',
      forSocket({ criteria: 'Login' }),
      'Subscription.criteria',
    ],
    ['a web socket that is off', forSocket({ status: 'off' }), 'Subscription.status'],
    [
      'a web socket with a past end',
      forSocket({ end: '2020-01-01T00:00:00Z' }),
      'Subscription.end',
    ],
    [
      'XML for a web socket',
      forSocket({ channel: { payload: 'application/fhir+xml' } }),
      'Subscription.channel.payload',
    ],
  ]
  for (const [name, body, path] of cases) {
    await t.test(name, (t) => refused(t, body, path))
  }
})

t.test('stores valid Subscriptions and activates requested ones', async (t) => {
  const cases = [
    aSubscription('Patient', HOOK, { status: 'requested' }),
    aSubscription('Observation?code=http://loinc.org|1234-5&_count=5&_sort=date', HOOK),
    aSubscription('Observation?_compartment=Patient/1&value-quantity=gt5', HOOK),
    aSubscription('Patient?name:exact=A%26B&birthdate=lt2000&_tag=a|b&_lastUpdated=gt2020', HOOK),
    aSubscription('Patient', HOOK, { channel: { payload: 'application/json; charset=utf-8' } }),
    aSubscription('Patient', HOOK, { channel: { payload: undefined } }),
    forSocket({ end: '2999-01-01T00:00:00Z' }),
    aSubscription('Patient', HOOK, {
      extension: [
        extension('subscription-supported-interaction', 'create'),
        extension('subscription-supported-interaction', 'delete'),
        extension('subscription-max-attempts', 18),
        extension('subscription-success-codes', '200, 300-399'),
      ],
    }),
  ]
  for (const body of cases) {
    const answer = await admin.post<Untyped>('Subscription', body)
    t.match(
      answer,
      { status: 201, body: { status: 'active', criteria: body.criteria } },
      answer.text,
    )
  }
})

t.test('stores a Subscription that is off with any channel', async (t) => {
  const channel = { type: 'email', endpoint: 'mailto:a@example.com' }
  const answer = await admin.post(
    'Subscription',
    aSubscription('Patient', '', { status: 'off', channel }),
  )
  t.match(answer, { status: 201, body: { status: 'off' } }, answer.text)
})

t.test('stores no active Subscription of a web socket', async (t) => {
  const { project, admin: owner } = await botica.createTenant()
  const { body } = await botica.superAdmin.get(`Project/${project.id}`)
  const systemSetting = [{ name: 'updateAsCreate', valueBoolean: true }]
  await botica.superAdmin.put(`Project/${project.id}`, { ...body, systemSetting })
  services.principals.forget()
  const [id, unmatched] = [randomUUID(), 'status=error']
  const resource = { ...forSocket({}), id }
  const transaction = (request: object) => ({
    resourceType: 'Bundle',
    type: 'transaction',
    entry: [{ request, resource }],
  })
  const hook = await owner.create(aSubscription('Patient', HOOK))
  const toSocket = [{ op: 'replace', path: '/channel/type', value: 'websocket' }]
  const answers = [
    await owner.put(`Subscription/${hook.id}`, { ...resource, id: hook.id }),
    await owner.patch(`Subscription/${hook.id}`, toSocket),
    await owner.put(`Subscription/${id}`, resource),
    await owner.put(`Subscription?${unmatched}`, resource),
    await owner.post('Subscription', forSocket({}), { 'If-None-Exist': unmatched }),
    await owner.post('', transaction({ method: 'PUT', url: `Subscription?${unmatched}` })),
    await owner.post(
      '',
      transaction({ method: 'POST', url: 'Subscription', ifNoneExist: unmatched }),
    ),
  ]
  const text = 'Create a web-socket Subscription by POST without If-None-Exist'
  for (const answer of answers) {
    t.match(answer, { status: 400, body: { issue: [{ details: { text } }] } }, answer.text)
  }
  t.equal((await owner.get(`Subscription/${id}`)).status, 404)
  const off = await owner.put(`Subscription/${id}`, { ...resource, status: 'off' })
  t.equal(off.status, 201, off.text)
})

t.test('requires a Bot endpoint that the writer may read', async (t) => {
  const bot = await aBot(botica)
  t.equal((await admin.post('Subscription', aSubscription('Patient', `Bot/${bot}`))).status, 201)
  const url = 'https://medplum.com/fhir/StructureDefinition/pre-commit-bot'
  const before = { extension: [{ url, valueBoolean: true }] }
  const asked = await admin.post('Subscription', aSubscription('AuditEvent', `Bot/${bot}`, before))
  t.equal(asked.status, 201, 'a pre-commit bot needs no events')
  const client = await clientUnder(
    botica,
    { resourceType: 'Subscription' },
    { resourceType: 'Patient' },
  )
  const other = await botica.createTenant()
  for (const writer of [client, other.admin]) {
    const answer = await writer.post('Subscription', aSubscription('Patient', `Bot/${bot}`))
    t.match(answer, {
      status: 400,
      body: { issue: [{ expression: ['Subscription.channel.endpoint'] }] },
    })
  }
})

t.test('validates updates and patches of Subscriptions', async (t) => {
  const { id } = await admin.create(aSubscription('Patient', HOOK))
  const answer = await admin.put(`Subscription/${id}`, { ...aSubscription('Patiens', HOOK), id })
  t.equal(answer.status, 400)
  const patched = await admin.patch(
    `Subscription/${id}`,
    [{ op: 'replace', path: '/channel/endpoint', value: 'ftp://a' }],
    { 'Content-Type': 'application/json-patch+json' },
  )
  t.equal(patched.status, 400)
})

t.test('limits a project to a thousand active Subscriptions', async (t) => {
  const { project, admin: owner } = await botica.createTenant()
  const [tenant] = await services.database.query<{ project: number }>({
    text: 'select project from tenant where fhir_id = $1',
    values: [project.id],
  })
  await services.database.query({
    text: `insert into active_subscription (project, id, watched, ver, since)
      select $1, gen_random_uuid(), 1, 1, now() from generate_series(1, 999)`,
    values: [tenant?.project],
  })
  const one = { request: { method: 'POST', url: 'Subscription' } }
  const resource = aSubscription('Patient', HOOK)
  const bundle = (count: number) => ({
    resourceType: 'Bundle',
    type: 'transaction',
    entry: Array(count).fill({ ...one, resource }),
  })
  const refused = {
    status: 422,
    body: {
      issue: [
        {
          code: 'business-rule',
          details: { text: 'A project has at most 1000 active Subscriptions' },
          expression: ['Subscription.status'],
        },
      ],
    },
  }
  t.match(await owner.post('', bundle(2)), refused)
  t.notOk((await owner.get<Untyped>('Subscription')).body.entry, 'nothing of it is stored')
  t.equal((await owner.post('', bundle(1))).status, 200)
  t.match(await owner.post('Subscription', resource), refused)
  t.equal((await owner.post('', bundle(1))).status, 422)
  const off = aSubscription('Patient', HOOK, { status: 'off' })
  const stored = await owner.post('Subscription', off)
  t.equal(stored.status, 201)
  const on = { ...stored.body, status: 'active' }
  t.match(await owner.put(`Subscription/${stored.body.id}`, on), refused)
})

t.test('finds Subscriptions by their elements', async (t) => {
  const { admin: owner, adminCredentials } = await botica.createTenant()
  const { id } = await owner.create(aSubscription('Patient?name=x', HOOK))
  await owner.create(aSubscription('Device', HOOK, { status: 'off' }))
  const queries = [
    'status=active',
    'type=rest-hook&status=active',
    `url=${HOOK}&status=active`,
    'payload=application/fhir%2Bjson&status=active',
    `criteria=${encodeURIComponent('Patient?name=x')}`,
    `author=ClientApplication/${adminCredentials.id}&status=active`,
  ]
  for (const query of queries) {
    const { status, body } = await owner.get<Untyped>(`Subscription?${query}`)
    t.equal(status, 200, query)
    t.same(
      (body.entry ?? []).map(({ resource }: Untyped) => resource.id),
      [id],
      query,
    )
  }
})

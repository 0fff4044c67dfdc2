/** `X-Medplum-On-Behalf-Of`: the rights are another member's, the author is the caller, `meta` names both. */
import t, { type Test } from 'tap'
import { upload } from '../../fixtures/binaries.ts'
import { ALL_QUEUES, openBotica, until } from '../../fixtures/botica.ts'
import { aBot, execute, handler, type Untyped } from '../../fixtures/bots/bots.ts'
import { basic, type Client } from '../../fixtures/client.ts'
import type { Meta, Resource } from '../../fixtures/fhir.ts'
import { decodeJwtClaims } from '../../fixtures/people.ts'
import { changeMembership, memberUnder } from '../../fixtures/policy/policy.ts'
import { aPatient } from '../../fixtures/resources.ts'
import { notificationType, openSocket, socketUrl } from '../../fixtures/sockets.ts'
import { createDatabase } from '../../fixtures/store/own-database.ts'

const botica = await openBotica(t, {
  worker: true,
  // Workers of other files would take the requests.
  env: { DATABASE_URL: await createDatabase(t), WORKER_QUEUES: ALL_QUEUES },
})
const { admin, adminCredentials } = botica
const DONE_MS = 60_000

const target = await memberUnder(botica, {
  entries: [{ resourceType: 'Patient', criteria: 'Patient?gender=female' }],
})
const EXTENDED = { 'X-Medplum': 'extended' }
const member = { reference: `ClientApplication/${target.id}` }
const ACTING = { 'X-Medplum-On-Behalf-Of': member.reference, ...EXTENDED }
const woman = aPatient({ gender: 'female' })
const readMeta = async (id = '', client = admin): Promise<Meta> =>
  (await client.get(`Patient/${id}`, EXTENDED)).body.meta ?? {}
const BOTH = {
  author: { reference: `ClientApplication/${adminCredentials.id}` },
  onBehalfOf: member,
}

t.test('names both the administrator and the member on a write', async (t) => {
  const made = await admin.post('Patient', woman, ACTING)
  t.match(made, { status: 201, body: { meta: BOTH } })
  t.match(await readMeta(made.body.id, target.client), BOTH)
  const plain = await admin.get(`Patient/${made.body.id}`)
  t.notOk(plain.body.meta?.onBehalfOf, 'shows onBehalfOf only on request')
  const entry = [{ request: { method: 'POST', url: 'Patient' }, resource: woman }]
  const bundle = { resourceType: 'Bundle', type: 'transaction', entry }
  const sent = await admin.post<{ entry: { resource: Resource }[] }>('', bundle, ACTING)
  t.match(sent.body.entry[0]?.resource.meta, BOTH)
  t.equal((await admin.post('Patient', aPatient({ gender: 'male' }), ACTING)).status, 403)
})

t.test('names the represented member on each version and rejects forged names', async (t) => {
  const { id } = await admin.create({ ...woman, meta: { onBehalfOf: member } })
  t.notOk((await readMeta(id)).onBehalfOf)
  const patch = [{ op: 'add', path: '/active', value: true }]
  t.match((await admin.patch(`Patient/${id}`, patch, ACTING)).body.meta, BOTH)
  const again = await admin.put(`Patient/${id}`, (await admin.get(`Patient/${id}`)).body)
  t.match(again.body.meta, { versionId: '2' }, 'stores no version for equal content')
  const own = await admin.put(`Patient/${id}`, { ...again.body, active: false }, EXTENDED)
  t.match(own.body.meta, { versionId: '3', author: BOTH.author })
  t.notOk(own.body.meta?.onBehalfOf)
})

t.test('writes an asynchronous request for the same member', async (t) => {
  const identifier = [{ system: 'urn:later', value: 'acting' }]
  const entry = [
    { request: { method: 'POST', url: 'Patient' }, resource: { ...woman, identifier } },
  ]
  const bundle = { resourceType: 'Bundle', type: 'batch', entry }
  const later = { ...ACTING, Prefer: 'respond-async' }
  t.equal((await admin.post('', bundle, later)).status, 202)
  const found = () =>
    admin.get<{ entry?: { resource: Resource }[] }>('Patient?identifier=urn:later|acting', EXTENDED)
  await until(async () => (await found()).body.entry?.length === 1, DONE_MS)
  t.match((await found()).body.entry?.[0]?.resource.meta, BOTH)
})

/** Binds a socket to a new Subscription; `headers` name the member. */
async function bindActing(
  t: Test,
  client: Client,
  criteria: string,
  headers: Record<string, string>,
) {
  const made = await client.post<Untyped>(
    'Subscription',
    {
      resourceType: 'Subscription',
      status: 'active',
      reason: 'Test',
      criteria,
      channel: { type: 'websocket' },
    },
    headers,
  )
  t.equal(made.status, 201, made.text)
  const path = `Subscription/${made.body.id}/$get-ws-binding-token`
  const { body } = await client.get<Untyped>(path, headers)
  const token = body.parameter.find(({ name }: Untyped) => name === 'token').valueString
  const socket = await openSocket(t, socketUrl(botica.baseUrl))
  socket.say({ type: 'bind-with-token', payload: { token } })
  await socket.heard((message) => notificationType(message) === 'handshake')
  return { token, socket }
}

const isEvent = (message: Untyped) => notificationType(message) === 'event-notification'

t.test('sends no resource to a web socket that the member may not read', async (t) => {
  const { id } = await memberUnder(botica, {
    entries: [
      { resourceType: 'Patient', criteria: 'Patient?gender=female', hiddenFields: ['birthDate'] },
      { resourceType: 'Subscription' },
    ],
  })
  const reference = `ClientApplication/${id}`
  const acting = { 'X-Medplum-On-Behalf-Of': reference }
  const { id: own, secret } = adminCredentials
  for (const [client, headers] of [
    [admin, acting],
    [botica.anonymous, { ...acting, ...basic(own, secret) }],
  ] as const) {
    const { token, socket } = await bindActing(t, client, 'Patient', headers)
    t.match(decodeJwtClaims(token), { profile: reference, sub: id })
    await admin.create(aPatient({ gender: 'male' }))
    await admin.create(woman)
    const event = await socket.heard(isEvent)
    t.equal(event.entry[1].resource.gender, 'female')
    t.notOk(event.entry[1].resource.birthDate)
    socket.webSocket.close()
  }
})

t.test('acts on behalf of a member in the calls of a bot of an administrator', async (t) => {
  await admin.create(aPatient({ gender: 'male' }))
  const code = handler(`
    const options = { headers: ${JSON.stringify(ACTING)} }
    const caught = (work) => work.catch((error) => error.outcome.id)
    const make = (gender) =>
      caught(medplum.createResource({ resourceType: 'Patient', gender }, options))
    const search = () => medplum.search('Patient', 'gender=male&_total=accurate', options)
    const [woman, man, seen] = [await make('female'), await make('male'), await caught(search())]
    return [woman.meta, man, seen.total]`)
  const [id, plain] = [await aBot(botica, code), await aBot(botica, code)]
  await changeMembership(botica, `Bot/${id}`, { admin: true })
  const [meta, refused, total] = (await execute(admin, id)).body
  t.match(meta, { author: { reference: `Bot/${id}` }, onBehalfOf: member })
  t.same([refused, total], ['forbidden', 0])
  t.same((await execute(admin, plain)).body, [null, 'forbidden', null], 'is for administrators')
})

t.test('ends a web socket on behalf of a member with the administrator', async (t) => {
  const { id } = await memberUnder(botica, {
    entries: [{ resourceType: 'Basic' }, { resourceType: 'Subscription' }],
  })
  const acting = { 'X-Medplum-On-Behalf-Of': `ClientApplication/${id}` }
  const note = { resourceType: 'Basic', code: { text: 'x' } }
  const isEnd = ({ resourceType }: Untyped) => resourceType === 'OperationOutcome'
  for (const change of [{ active: false }, { admin: false }]) {
    for (const isBasic of [false, true]) {
      const other = await botica.createMember()
      const profile = `ClientApplication/${other.id}`
      await changeMembership(botica, profile, { admin: true })
      const client = isBasic ? botica.anonymous : other.client
      const own = isBasic ? basic(other.id, other.secret) : {}
      const { socket } = await bindActing(t, client, 'Basic', { ...acting, ...own })
      await admin.create(note)
      await socket.heard(isEvent)
      await changeMembership(botica, profile, { admin: true, ...change })
      await admin.create(note)
      const next = await socket.heard((message) => isEvent(message) || isEnd(message))
      t.match(next.issue?.[0].details.text, /has ended/)
    }
  }
})

t.test(
  'makes an address for a download on behalf of a member, and none for an upload',
  async (t) => {
    const { id: reader } = await memberUnder(botica, { entries: [{ resourceType: 'Binary' }] })
    const acting = { 'X-Medplum-On-Behalf-Of': `ClientApplication/${reader}` }
    const { id } = await upload(admin, Buffer.from('content'), 'text/plain')
    const path = `Binary/${id}/$presigned-url`
    const { body } = await admin.get<Untyped>(path, acting)
    t.equal(await (await fetch(body.parameter[0].valueUri)).text(), 'content')
    const refused = await admin.get<Untyped>(`${path}?upload=true`, acting)
    t.match(refused, {
      status: 400,
      body: { issue: [{ details: { text: /cannot be made on behalf of a member/ } }] },
    })
  },
)

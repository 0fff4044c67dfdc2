/** Applications may add AuditEvents, never in the name of the service; changes are rejected. */
import t from 'tap'
import { openBotica } from '../../fixtures/botica.ts'
import { aBot, execute, finished, handler } from '../../fixtures/bots/bots.ts'
import type { Client } from '../../fixtures/client.ts'
import type { Resource } from '../../fixtures/fhir.ts'
import { changedEveryWay } from '../../fixtures/http/write-paths.ts'
import type { Raw } from '../../fixtures/oracle/values.ts'
import { changeMembership, memberUnder } from '../../fixtures/policy/policy.ts'

const botica = await openBotica(t, { worker: true })
const { admin, adminCredentials, superAdmin } = botica
const free = await botica.createMember()
const named = await memberUnder(botica, { entries: [{ resourceType: 'AuditEvent' }] })

const clientReference = (id: string) => ({ reference: `ClientApplication/${id}` })
const anEvent = (agent: unknown, more: object = {}): Resource => ({
  resourceType: 'AuditEvent',
  type: { code: 'rest' },
  recorded: '2026-01-01T00:00:00Z',
  source: { observer: { display: 'App' } },
  agent: agent as Resource,
  ...more,
})
const EXTENDED = { 'X-Medplum': 'extended' }
const members = [{ ...adminCredentials, client: admin }, free, named]

t.test('rejects changes and deletions of an AuditEvent on every path', async (t) => {
  const { id } = await free.client.create(
    anEvent([{ who: clientReference(free.id), requestor: true }]),
  )
  const path = `AuditEvent/${id}`
  const before = await superAdmin.get(path)
  for (const { client } of members) {
    const current = (await client.get<Raw>(path)).body
    for (const [way, status] of await changedEveryWay(client, current, { outcome: '8' })) {
      t.equal(status, 403, way)
    }
    t.match(await client.put<Raw>(path, current), {
      status: 403,
      body: { issue: [{ details: { text: 'An AuditEvent is never changed' } }] },
    })
    t.equal((await client.del(path)).status, 403)
    t.equal((await client.del(`AuditEvent?_id=${id}`)).status, 403)
    const entry = [{ request: { method: 'DELETE', url: path } }]
    const bundle = { resourceType: 'Bundle', type: 'transaction', entry }
    t.equal((await client.post('', bundle)).status, 403)
    t.match((await client.post<Raw>('', { ...bundle, type: 'batch' })).body.entry[0].response, {
      status: /^403/,
    })
    const query = `mutation { AuditEventDelete(id: "${id}") { id } }`
    const { body } = await client.post<Raw>('$graphql', { query })
    t.match(body.errors, [{ extensions: { code: 'forbidden' } }])
    const meta = {
      resourceType: 'Parameters',
      parameter: [{ name: 'meta', valueMeta: { tag: [{ code: 'x' }] } }],
    }
    t.equal((await client.post(`${path}/$meta-add`, meta)).status, 403)
    t.equal((await client.post(`${path}/$expunge`)).status, 403)
  }
  t.equal((await superAdmin.put(path, { ...before.body, outcome: '8' })).status, 403)
  t.equal((await superAdmin.patch(path, [{ op: 'add', path: '/outcome', value: '8' }])).status, 403)
  t.equal((await superAdmin.del(path)).status, 403)
  t.same((await superAdmin.get(path)).body, before.body)
  t.equal((await superAdmin.post(`${path}/$expunge`)).status, 200, 'as the retention job deletes')
  t.equal((await admin.get(path)).status, 404)
})

async function createdEveryWay(client: Client, event: Resource): Promise<readonly unknown[]> {
  const entry = [{ resource: event, request: { method: 'POST', url: 'AuditEvent' } }]
  const bundle = { resourceType: 'Bundle', entry }
  const query = 'mutation ($res: AuditEventCreate!) { AuditEventCreate(res: $res) { id } }'
  const batch = await client.post<Raw>('', { ...bundle, type: 'batch' })
  const { body } = await client.post<Raw>('$graphql', { query, variables: { res: event } })
  return [
    (await client.post('AuditEvent', event)).status,
    (await client.post('', { ...bundle, type: 'transaction' })).status,
    Number(batch.body.entry[0].response.status.slice(0, 3)),
    body.errors?.[0]?.extensions?.status ?? 201,
  ]
}

t.test('accepts any agents in an event, and sets its writer as meta.author', async (t) => {
  for (const { client, id } of members) {
    const other = { who: clientReference(id === free.id ? named.id : free.id), requestor: true }
    for (const agent of [
      [{ who: clientReference(id), requestor: true }],
      [other],
      [{ who: { reference: 'Practitioner/1' }, requestor: true }, { requestor: false }],
      [{ who: { identifier: { value: '95' } }, name: 'Somebody Else', requestor: true }],
    ]) {
      t.same(await createdEveryWay(client, anEvent(agent)), [201, 200, 201, 201])
    }
    const meta = { author: other.who }
    const made = await client.post<Raw>('AuditEvent', anEvent([other], { meta }), EXTENDED)
    t.match(made, { status: 201, body: { meta: { author: clientReference(id) } } })
  }
})

t.test('rejects events of clients that name this service as recorder', async (t) => {
  const address = botica.services.config.baseUrl
  const agent = [{ who: clientReference(free.id), requestor: true }]
  for (const observer of [
    { reference: `Project/${botica.project.id}` },
    { reference: `Project/${botica.project.id}/_history/1` },
    { reference: `${address}fhir/R4/Project/${botica.project.id}` },
    { reference: 'Bot/00000000-0000-0000-0000-000000000000' },
    { reference: 'Subscription/00000000-0000-0000-0000-000000000000', display: 'App' },
    { type: 'Bot', identifier: { value: '1' } },
    { reference: address },
    { display: address },
    { display: address.slice(0, -1).toUpperCase() },
    { display: ' botica' },
    { identifier: { system: 'urn:ietf:rfc:3986', value: address } },
  ]) {
    const event = anEvent(agent, { source: { observer } })
    for (const { client } of members) {
      const statuses = await createdEveryWay(client, event)
      t.same(statuses, [403, 403, 403, 403], JSON.stringify(observer))
    }
    t.match((await free.client.post<Raw>('AuditEvent', event)).body.issue, [
      {
        details: { text: 'Only this service records events in its own name' },
        expression: ['AuditEvent.source.observer'],
      },
    ])
  }
  const type = { system: 'https://medplum.com/CodeSystem/audit-event', code: 'execute' }
  const run = await admin.post<Raw>('AuditEvent', anEvent(agent, { type }))
  t.match(run, { status: 403, body: { issue: [{ expression: ['AuditEvent.type'] }] } })
})

t.test('lets a super admin import events of another server', async (t) => {
  const { id } = await superAdmin.create({
    ...anEvent([{ who: clientReference(free.id), requestor: true }], {
      source: { observer: { reference: 'Bot/00000000-0000-0000-0000-000000000000' } },
    }),
    meta: { project: botica.project.id },
  })
  t.equal((await admin.get(`AuditEvent/${id}`)).status, 200)
})

t.test('lets a bot write events about others, never as the service, and remove none', async (t) => {
  const bot = await aBot(
    botica,
    handler(`
      const answers = []
      const write = async (observer) => {
        try {
          const agent = [{ who: event.requester, requestor: true }]
          const { id } = await medplum.createResource({ ...event.input, agent, source: { observer } })
          answers.push('written')
          try { await medplum.deleteResource('AuditEvent', id) } catch (error) { answers.push(error.outcome.id) }
        } catch (error) { answers.push(error.outcome.id) }
      }
      await write(event.requester)
      await write(event.bot)
      return answers`),
  )
  const answer = await execute(admin, bot, anEvent(undefined))
  t.same(answer.body, ['written', 'forbidden', 'forbidden'])
})

t.test('keeps events about an expunged patient', async (t) => {
  const patient = await admin.create({ resourceType: 'Patient' })
  const observed = await admin.create({
    resourceType: 'Observation',
    status: 'final',
    code: { text: 'x' },
    subject: { reference: `Patient/${patient.id}` },
  })
  const event = await admin.create(
    anEvent([{ who: clientReference(adminCredentials.id), requestor: true }], {
      entity: [{ what: { reference: `Patient/${patient.id}` } }],
    }),
  )
  const started = await admin.post<Raw>(`Patient/${patient.id}/$expunge?everything=true`)
  t.equal(started.status, 202, started.text)
  await finished(admin, started.headers.get('content-location'))
  t.equal((await admin.get(`Observation/${observed.id}`)).status, 404)
  t.equal((await admin.get(`Patient/${patient.id}`)).status, 404)
  t.equal((await admin.get(`AuditEvent/${event.id}`)).status, 200)
})

t.test('keeps recording events of the service', async (t) => {
  const member = await botica.createMember()
  const changed = await admin.get<Raw>(`ProjectMembership?profile=ClientApplication/${member.id}`)
  const membership = changed.body.entry[0].resource
  t.equal(
    (await admin.put(`ProjectMembership/${membership.id}`, { ...membership, admin: true })).status,
    200,
  )
  await changeMembership(botica, `ClientApplication/${member.id}`, { admin: false })
  const found = await admin.get<Raw>(`AuditEvent?entity=ProjectMembership/${membership.id}`)
  t.match(found.body.entry[0].resource, {
    agent: [{ who: clientReference(adminCredentials.id) }, {}],
  })
})

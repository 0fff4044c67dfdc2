/** AuditEvents are added, in the name of who adds them, and stay as they are. */
import t from 'tap'
import type { Resource } from '../../../shared/fhir/resource.ts'
import { openBotica } from '../../fixtures/botica.ts'
import { aBot, execute, finished, handler } from '../../fixtures/bots/bots.ts'
import { changedEveryWay } from '../../fixtures/http/write-paths.ts'
import type { Raw } from '../../fixtures/oracle/values.ts'
import { changeMembership, memberUnder } from '../../fixtures/policy/policy.ts'

const botica = await openBotica(t, { worker: true })
const { admin, adminCredentials, superAdmin } = botica
const free = await botica.createMember()
const named = await memberUnder(botica, { entries: [{ resourceType: 'AuditEvent' }] })

const nameOf = (id: string) => ({ reference: `ClientApplication/${id}` })
const anEvent = (agent: unknown, more: object = {}): Resource => ({
  resourceType: 'AuditEvent',
  type: { code: 'rest' },
  recorded: '2026-01-01T00:00:00Z',
  source: { observer: { display: 'App' } },
  agent: agent as Resource,
  ...more,
})
const members = [{ ...adminCredentials, client: admin }, free, named]

t.test('nobody changes or deletes one, by no way', async (t) => {
  const { id } = await free.client.create(anEvent([{ who: nameOf(free.id), requestor: true }]))
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
  t.equal((await superAdmin.post(`${path}/$expunge`)).status, 200, 'as the service forgets')
  t.equal((await admin.get(path)).status, 404)
})

t.test('its agent is the caller', async (t) => {
  for (const { client, id } of members) {
    const self = { who: nameOf(id), requestor: true }
    const other = { who: nameOf(id === free.id ? named.id : free.id), requestor: true }
    const device = { who: { reference: 'Device/1' }, requestor: false }
    t.equal((await client.post('AuditEvent', anEvent([self, device]))).status, 201)
    for (const [status, agent] of [
      [403, [other]],
      [403, [self, other]],
      [403, [self, { ...other, requestor: false }]],
      [403, [{ ...device, requestor: true }, self]],
      [403, [{ who: { reference: 'Practitioner/1' }, requestor: true }]],
      [400, [{ requestor: true }]],
      [400, [{ who: { display: 'Dr Somebody Else' }, requestor: true }, self]],
      [400, [{ who: { identifier: { value: '1' } }, requestor: true }]],
      [400, [device]],
    ] as const) {
      const event = anEvent(agent)
      const answer = await client.post<Raw>('AuditEvent', event)
      t.equal(answer.status, status, JSON.stringify(agent))
      t.match(answer.body.issue[0].expression[0], /^AuditEvent\.agent/)
      const entry = [{ resource: event, request: { method: 'POST', url: 'AuditEvent' } }]
      const bundle = { resourceType: 'Bundle', type: 'transaction', entry }
      t.equal((await client.post('', bundle)).status, status)
      const query = 'mutation ($res: AuditEventCreate!) { AuditEventCreate(res: $res) { id } }'
      const { body } = await client.post<Raw>('$graphql', { query, variables: { res: event } })
      t.equal(body.errors?.[0]?.extensions?.status, status)
    }
  }
  const acting = { 'X-Medplum-On-Behalf-Of': nameOf(free.id).reference }
  const inItsName = anEvent([{ who: nameOf(free.id), requestor: true }])
  t.equal((await admin.post('AuditEvent', inItsName, acting)).status, 403)
})

t.test('a super admin brings events from elsewhere', async (t) => {
  const { id } = await superAdmin.create({
    ...anEvent([{ who: nameOf(free.id), requestor: true }]),
    meta: { project: botica.project.id },
  })
  t.equal((await admin.get(`AuditEvent/${id}`)).status, 200)
})

t.test('a bot writes events in its own name alone', async (t) => {
  const bot = await aBot(
    botica,
    handler(`
      const answers = []
      const write = async (who) => {
        try {
          const { id } = await medplum.createResource({ ...event.input, agent: [{ who, requestor: true }] })
          answers.push('written')
          try { await medplum.deleteResource('AuditEvent', id) } catch (error) { answers.push(error.outcome.id) }
        } catch (error) { answers.push(error.outcome.id) }
      }
      await write(event.bot)
      await write(event.requester)
      return answers`),
  )
  const answer = await execute(admin, bot, anEvent(undefined))
  t.same(answer.body, ['written', 'forbidden', 'forbidden'])
})

t.test('what is expunged of a patient leaves what was done with it', async (t) => {
  const patient = await admin.create({ resourceType: 'Patient' })
  const observed = await admin.create({
    resourceType: 'Observation',
    status: 'final',
    code: { text: 'x' },
    subject: { reference: `Patient/${patient.id}` },
  })
  const event = await admin.create(
    anEvent([{ who: nameOf(adminCredentials.id), requestor: true }], {
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

t.test('the service goes on writing them', async (t) => {
  const member = await botica.createMember()
  const changed = await admin.get<Raw>(`ProjectMembership?profile=ClientApplication/${member.id}`)
  const membership = changed.body.entry[0].resource
  t.equal(
    (await admin.put(`ProjectMembership/${membership.id}`, { ...membership, admin: true })).status,
    200,
  )
  await changeMembership(botica, `ClientApplication/${member.id}`, { admin: false })
  const found = await admin.get<Raw>(`AuditEvent?entity=ProjectMembership/${membership.id}`)
  t.match(found.body.entry[0].resource, { agent: [{ who: nameOf(adminCredentials.id) }, {}] })
})

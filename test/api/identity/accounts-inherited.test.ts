/** New resources inherit the accounts of their patients (access-control: compartments). */
import t from 'tap'
import { openBotica, statementsAsked } from '../../fixtures/botica.ts'
import type { Reference, Resource } from '../../fixtures/fhir.ts'
import { type Entry, memberUnder } from '../../fixtures/policy/policy.ts'
import { anObservation, aPatient } from '../../fixtures/resources.ts'

const botica = await openBotica(t)
const { admin, services } = botica
const EXTENDED = { 'X-Medplum': 'extended' }
type Holder = Resource & { readonly id: string }
const named = (...ids: string[]) => ids.map((id) => ({ reference: `Organization/${id}` }))
const holder = async (...ids: string[]) => {
  const { body } = await admin.post<Holder>(
    'Patient',
    aPatient({ meta: { accounts: named(...ids) } }),
    EXTENDED,
  )
  return body
}
const patient = () => admin.create(aPatient())
const about = ({ id }: { id: string }) => anObservation(`Patient/${id}`)

const [a, both, none] = await Promise.all([holder('a'), holder('a', 'b'), patient()])
const { client } = await botica.createMember()

async function readAccounts(id = '', type = 'Observation'): Promise<readonly Reference[]> {
  return (await admin.get(`${type}/${id}`, EXTENDED)).body.meta?.accounts ?? []
}
const inAccount = (account: string): Entry => ({
  resourceType: 'Observation',
  criteria: `Observation?_compartment=Organization/${account}`,
})

t.test('gives an observation the accounts of its patient and finds it by them', async (t) => {
  const made = await client.post('Observation', about(both), EXTENDED)
  t.match(made.body.meta, { account: named('a')[0], accounts: named('a', 'b') })
  t.match(made.body.meta?.compartment, [
    { reference: `Project/${botica.project.id}` },
    ...named('a', 'b'),
    { reference: `Patient/${both.id}` },
  ])
  const found = await admin.get(`Observation?_compartment=Organization/b&_id=${made.body.id}`)
  t.equal((found.body.entry as unknown[]).length, 1)
})

t.test('inherits accounts on every write path, once per patient', async (t) => {
  const encounter = { status: 'planned', class: { code: 'AMB' } }
  const appointment = {
    resourceType: 'Appointment',
    status: 'proposed',
    participant: [a, both, none].map(({ id }) => ({
      actor: { reference: `Patient/${id}` },
      status: 'accepted',
    })),
  }
  const made = await client.post('Appointment', appointment)
  t.same(await readAccounts(made.body.id, 'Appointment'), named('a', 'b'))
  const entry = [a, none, both].map((patient) => ({
    request: { method: 'POST', url: 'Observation' },
    resource: about(patient),
  }))
  for (const type of ['batch', 'transaction']) {
    const sent = await client.post<{ entry: { resource: Resource }[] }>('', {
      resourceType: 'Bundle',
      type,
      entry,
    })
    const ids = sent.body.entry.map(({ resource }) => resource.id)
    t.same(await Promise.all(ids.map((id) => readAccounts(id))), [named('a'), [], named('a', 'b')])
  }
  const mutation = `mutation { EncounterCreate(res: { resourceType: "Encounter", status: "planned",
    class: { code: "${encounter.class.code}" }, subject: { reference: "Patient/${a.id}" } }) { id } }`
  const graph = await client.post<{ data: { EncounterCreate: { id: string } } }>(
    '$graphql',
    JSON.stringify({ query: mutation }),
    { 'Content-Type': 'application/json' },
  )
  t.same(await readAccounts(graph.body.data.EncounterCreate.id, 'Encounter'), named('a'))
})

t.test('inherits accounts of a patient in the same transaction, in any order', async (t) => {
  const fullUrl = 'urn:uuid:2f7ef7f6-34f5-4d70-a7b8-2b8d0c3a9e11'
  const post = (resource: Resource) => ({
    request: { method: 'POST', url: resource.resourceType },
    resource,
  })
  const giving = { fullUrl, ...post(aPatient({ meta: { accounts: named('t') } })) }
  const heir = post(anObservation(fullUrl))
  for (const entry of [
    [giving, heir],
    [heir, giving, heir],
  ]) {
    const bundle = { resourceType: 'Bundle', type: 'transaction', entry }
    const sent = await admin.post<{ entry: { resource: Resource }[] }>('', bundle, EXTENDED)
    for (const { resource } of sent.body.entry) {
      t.match(resource.meta, { accounts: named('t') }, resource.resourceType)
    }
  }
})

t.test('prefers accounts named by an administrator and keeps them on update', async (t) => {
  const naming = { ...about(a), meta: { accounts: named('own') } }
  const { body: own } = await admin.post('Observation', naming, EXTENDED)
  t.same(await readAccounts(own.id), named('own'))
  const plain = await admin.create(naming)
  t.same(await readAccounts(plain.id), named('a'), 'only in extended mode')
  t.equal((await admin.put(`Observation/${own.id}`, { ...own, meta: naming.meta })).status, 200)
  const patch = [{ op: 'add', path: '/meta/accounts', value: named('other') }]
  t.equal((await admin.patch(`Observation/${own.id}`, patch)).status, 200)
  t.same(await readAccounts(own.id), named('own'))
  t.equal((await admin.patch(`Observation/${own.id}`, patch, EXTENDED)).status, 200)
  t.same(await readAccounts(own.id), named('other'))
  const { body: made } = await client.post<Resource & { id: string }>('Observation', about(a))
  const moved = { ...made, subject: { reference: `Patient/${both.id}` } }
  t.equal((await client.put(`Observation/${made.id}`, moved)).status, 200)
  t.same(await readAccounts(made.id), named('a'))
  await client.del(`Observation/${made.id}`)
  t.equal((await client.put(`Observation/${made.id}`, moved)).status, 200)
  t.same(await readAccounts(made.id), named('a', 'b'), 'restores the accounts of the request')
})

t.test('inherits accounts of very many patients', async (t) => {
  const others = Array.from({ length: 150 }, (_, i) => ({ entity: { reference: `Patient/p${i}` } }))
  const member = [...others, { entity: { reference: `Patient/${both.id}` } }]
  const group = { resourceType: 'Group', type: 'person', actual: true, member }
  const { body, status } = await client.post('Group', group)
  t.equal(status, 201)
  t.same(await readAccounts(body.id, 'Group'), named('a', 'b'))
})

t.test('evaluates policies on inherited accounts', async (t) => {
  const member = await memberUnder(botica, { entries: [inAccount('b')] })
  t.equal((await member.client.post('Observation', about(a))).status, 403)
  const fresh = await holder('b')
  const made = await member.client.post('Observation', about(fresh), EXTENDED)
  t.match(made, { status: 201, body: { meta: { accounts: named('b') } } })
  const compartment = { reference: 'Organization/b' }
  const giving = await memberUnder(botica, { entries: [inAccount('b')], more: { compartment } })
  const given = await giving.client.post('Observation', about(a), EXTENDED)
  t.match(given.body.meta, { account: named('b')[0], accounts: named('b', 'a') })
})

t.test('reads accounts only in Projects that have some', async (t) => {
  const statements = (patient: { id: string }) =>
    statementsAsked(services, client, () => client.post('Observation', about(patient)))
  const plain = await patient()
  t.equal(await statements(plain), 1)
  const fresh = await holder('c')
  t.equal(await statements(fresh), 3, 'the first write of a patient is retried')
  t.equal(await statements(fresh), 2, 'then the patient is read first')
})

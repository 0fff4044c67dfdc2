import t from 'tap'
import { openBotica, until } from '../../fixtures/botica.ts'
import type { Client } from '../../fixtures/client.ts'
import type { Raw } from '../../fixtures/oracle/values.ts'
import { anObservation, aPatient } from '../../fixtures/resources.ts'

const botica = await openBotica(t)
const { admin, superAdmin, project } = botica
const shared = await botica.createTenant()
const foreign = await botica.createTenant()

async function change(id: string, changes: object): Promise<void> {
  const { body } = await superAdmin.get(`Project/${id}`)
  const { status, text } = await superAdmin.put(`Project/${id}`, { ...body, ...changes })
  if (status !== 200) throw new Error(text)
}

await change(shared.project.id, { exportedResourceType: ['Practitioner', 'Organization'] })
await change(project.id, { link: [{ project: { reference: `Project/${shared.project.id}` } }] })

const aDoctor = (family: string) => ({ resourceType: 'Practitioner', name: [{ family }] })
const own = await admin.create(aDoctor('Linkman'))
const theirs = await shared.admin.create(aDoctor('Linkman'))
await foreign.admin.create(aDoctor('Linkman'))
await shared.admin.create(aPatient({ name: [{ family: 'Linkman' }] }))

async function ids(client: Client, query: string): Promise<string[]> {
  const { status, body } = await client.get<Raw>(query)
  if (status !== 200) throw new Error(`${query}: ${JSON.stringify(body)}`)
  return (body.entry ?? []).map((entry: Raw) => entry.resource.id)
}

await until(async () => (await ids(admin, 'Practitioner?name=linkman')).length === 2, 60_000)
const both = [own.id, theirs.id]

t.test('finds resources shared by linked Projects in one order', async (t) => {
  t.same(await ids(admin, 'Practitioner?name=linkman&_sort=_lastUpdated'), both)
  t.same(await ids(admin, 'Practitioner?name=linkman'), both.toReversed())
  t.same(await ids(admin, 'Practitioner?name=linkman&_sort=family,_id'), both.toSorted())
  const { body } = await admin.get<Raw>('Practitioner?name=linkman&_total=accurate&_count=1')
  t.equal(body.total, 2)
  const next = body.link.find(({ relation }: Raw) => relation === 'next').url
  t.same(await ids(admin, next), [own.id])
  t.same(await ids(admin, '?_type=Practitioner,Patient&_sort=_lastUpdated'), both)
})

t.test('hides unshared types, and hides the link from the linked Project', async (t) => {
  t.same(await ids(admin, 'Patient?name=linkman'), [])
  t.same(await ids(shared.admin, 'Practitioner?name=linkman'), [theirs.id])
  t.equal((await ids(foreign.admin, 'Practitioner?name=linkman')).length, 1)
})

t.test('does not reach unshared types of a linked Project by chains', async (t) => {
  await shared.admin.create(
    aPatient({
      name: [{ family: 'Unshared' }],
      generalPractitioner: [{ reference: `Practitioner/${theirs.id}` }],
    }),
  )
  const list = await shared.admin.create({
    resourceType: 'List',
    status: 'current',
    mode: 'working',
    entry: [{ item: { reference: `Practitioner/${theirs.id}` } }],
  })
  const endpoint = await shared.admin.create({
    resourceType: 'Endpoint',
    status: 'active',
    name: 'Unshared',
    connectionType: { code: 'hl7-fhir-rest' },
    payloadType: [{ text: 'any' }],
    address: 'https://example.org/fhir',
  })
  const organization = await shared.admin.create({
    resourceType: 'Organization',
    name: 'Unshared',
    endpoint: [{ reference: `Endpoint/${endpoint.id}` }],
  })
  const cases: readonly (readonly [query: string, id: string])[] = [
    ['Practitioner?_has:Patient:general-practitioner:name=unshared', theirs.id],
    ['Practitioner?_filter=_has:Patient:general-practitioner:name sw unshared', theirs.id],
    [`Practitioner?_list=${list.id}`, theirs.id],
    ['Organization?endpoint.name=unshared', organization.id],
  ]
  for (const [query, id] of cases) {
    t.same(await ids(shared.admin, query), [id], query)
    t.same(await ids(admin, query), [], query)
  }
})

t.test('narrows a search by _project', async (t) => {
  const of = (id: string) => ids(admin, `Practitioner?name=linkman&_project=${id}`)
  t.same(await of(project.id), [own.id])
  t.same(await of(`Project/${shared.project.id}`), [theirs.id])
  t.same((await of(`${project.id},${shared.project.id}`)).sort(), both.toSorted())
  t.same(await of(foreign.project.id), [])
})

t.test('includes resources of a linked Project', async (t) => {
  const patient = await admin.create(aPatient())
  const performer = [{ reference: `Practitioner/${theirs.id}` }]
  const observation = await admin.create(anObservation(`Patient/${patient.id}`, { performer }))
  const found = await ids(admin, `Observation?_id=${observation.id}&_include=Observation:performer`)
  t.same(found, [observation.id, theirs.id])
})

t.test('reads shared resources by id and never writes them', async (t) => {
  const path = `Practitioner/${theirs.id}`
  t.match(await admin.get(path), { status: 200, body: { id: theirs.id } })
  t.equal((await admin.get(`${path}/_history/1`)).status, 200)
  t.equal((await admin.get(`${path}/_history`)).status, 200)
  t.equal((await admin.put(path, { ...theirs, active: true })).status, 403)
  t.equal((await admin.patch(path, [{ op: 'add', path: '/active', value: true }])).status, 403)
  t.equal((await admin.del(path)).status, 403)
  t.equal((await foreign.admin.get(path)).status, 404)
  t.equal((await shared.admin.get(`Practitioner/${own.id}`)).status, 404)
  const hidden = await shared.admin.create(aPatient())
  t.equal((await admin.get(`Patient/${hidden.id}`)).status, 404)
  t.equal((await admin.del(`Patient/${hidden.id}`)).status, 404)
})

t.test('searches only its own Project for a conditional create', async (t) => {
  await shared.admin.create({ resourceType: 'Organization', name: 'Linked house' })
  const headers = { 'If-None-Exist': 'name=linked house' }
  const house = { resourceType: 'Organization', name: 'Linked house' }
  t.equal((await admin.post('Organization', house, headers)).status, 201)
  t.equal((await ids(admin, 'Organization?name=linked house')).length, 2)
})

t.test('hides clients and members of a Project that shares everything', async (t) => {
  await change(shared.project.id, { exportedResourceType: undefined })
  await until(async () => (await ids(admin, 'Patient?name=linkman')).length === 1, 60_000)
  const path = `ClientApplication/${shared.adminCredentials.id}`
  t.equal((await shared.admin.get(path)).status, 200)
  t.equal((await admin.get(path)).status, 404)
  t.notOk((await ids(admin, 'ClientApplication')).includes(shared.adminCredentials.id))
  t.equal((await admin.get(`Project/${shared.project.id}`)).status, 404)
  t.same(await ids(admin, 'Project'), [project.id])
})

t.test('hides secrets of a linked Project from admins', async (t) => {
  const secret = {
    resourceType: 'Subscription',
    status: 'off',
    reason: 'test',
    criteria: 'Patient',
    channel: { type: 'rest-hook', endpoint: 'https://example.org', header: ['X-Key: topsecret'] },
  }
  const { id } = await shared.admin.create(secret)
  t.match((await shared.admin.get(`Subscription/${id}`)).text, 'topsecret')
  for (const path of [
    `Subscription/${id}`,
    `Subscription?_id=${id}`,
    `Subscription/${id}/_history`,
  ]) {
    const seen = await admin.get(path)
    t.match(seen, { status: 200, text: /\*\*\*/ }, path)
    t.notMatch(seen.text, 'topsecret', path)
  }
})

t.test('finds nothing in a Project that is no longer linked', async (t) => {
  await change(project.id, { link: undefined })
  await until(async () => (await ids(admin, 'Practitioner?name=linkman')).length === 1, 60_000)
  t.same(await ids(admin, 'Practitioner?name=linkman'), [own.id])
})

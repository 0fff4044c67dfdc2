/** Access policies over HTTP. */
import { randomUUID } from 'node:crypto'
import t from 'tap'
import { openBotica, statementsAsked } from '../../fixtures/botica.ts'
import { idsIn, memberUnder } from '../../fixtures/policy/policy.ts'
import { anObservation, anOrganization, aPatient } from '../../fixtures/resources.ts'

const botica = await openBotica(t)
const { admin } = botica

const [a, b] = await Promise.all([admin.create(anOrganization()), admin.create(anOrganization())])
const of = (organization: { id: string }) => ({
  managingOrganization: { reference: `Organization/${organization.id}` },
})
const [patientA, patientB] = await Promise.all([
  admin.create(aPatient(of(a))),
  admin.create(aPatient(of(b))),
])
const [seenA, seenB] = await Promise.all(
  [patientA, patientB].map(({ id }) => admin.create(anObservation(`Patient/${id}`))),
)
const ORG = { entries: [{ resourceType: 'Patient', criteria: 'Patient?organization=%org' }] }
const org = ({ id }: { id: string }) => [
  { name: 'org', valueReference: { reference: `Organization/${id}` } },
]

t.test('limits visible resources to the criteria', async (t) => {
  const { client } = await memberUnder(botica, { ...ORG, parameters: org(a) })

  t.equal((await client.get(`Patient/${patientA.id}`)).status, 200)
  t.equal((await client.get(`Patient/${patientB.id}`)).status, 404)
  t.equal((await client.get(`Patient/${patientB.id}/_history`)).status, 404)
  t.equal((await client.get(`Patient/${patientB.id}/_history/1`)).status, 404)
  t.same(idsIn((await client.get('Patient')).body), [patientA.id])
  t.match((await client.get('Patient?_summary=count')).body, { total: 1 })
  t.match((await client.get('Patient?_total=accurate')).body, { total: 1 })
  t.equal((await client.get('Observation')).status, 403)
  t.equal((await client.get(`Observation/${seenA?.id}`)).status, 403)
})

t.test('answers a change of a hidden resource like one of an absent resource', async (t) => {
  const { client } = await memberUnder(botica, { ...ORG, parameters: org(a) })
  const patch = [{ op: 'replace', path: '/gender', value: 'other' }]
  for (const id of [patientB.id, randomUUID()]) {
    const path = `Patient/${id}`
    const body = aPatient({ ...of(a), id })
    const ways = (headers: Record<string, string> = {}) =>
      Promise.all([
        client.put(path, body, headers),
        client.patch(path, patch, headers),
        client.del(path, headers),
      ])
    const statuses = async (headers?: Record<string, string>) =>
      (await ways(headers)).map(({ status }) => status)
    t.same(await statuses(), [404, 404, 404])
    t.same(await statuses({ 'If-Match': 'W/"1"' }), [412, 412, 404])
    t.same(await statuses({ 'If-Match': '*' }), [412, 412, 412])
  }
})

t.test('requires that the policy allows a resource before and after a change', async (t) => {
  const { client } = await memberUnder(botica, { ...ORG, parameters: org(a) })
  const both = await memberUnder(botica, {
    entries: [...ORG.entries, { resourceType: 'Patient', readonly: true }],
    parameters: org(a),
  })

  t.equal((await client.put(`Patient/${patientA.id}`, { ...patientA, ...of(b) })).status, 403)
  t.equal((await client.put(`Patient/${patientB.id}`, { ...patientB, ...of(a) })).status, 404)
  t.equal((await both.client.put(`Patient/${patientB.id}`, { ...patientB, ...of(a) })).status, 403)
  t.equal((await client.del(`Patient/${patientB.id}`)).status, 404)
  t.equal((await both.client.del(`Patient/${patientB.id}`)).status, 403)
  t.equal((await client.post('Patient', aPatient(of(b)))).status, 403)
  const made = await client.post('Patient', aPatient(of(a)))
  t.equal(made.status, 201)
  const patch = [{ op: 'replace', path: '/gender', value: 'other' }]
  t.match(await client.patch(`Patient/${made.body.id}`, patch), {
    status: 200,
    body: { gender: 'other' },
  })
  t.equal((await client.del(`Patient/${made.body.id}`)).status, 200)
  t.equal((await client.get(`Patient/${made.body.id}`)).status, 410)
  t.equal((await client.del(`Patient/${made.body.id}`)).status, 200)
  const other = await memberUnder(botica, { ...ORG, parameters: org(b) })
  t.equal((await other.client.get(`Patient/${made.body.id}`)).status, 404)
})

t.test('allows either value when a policy is assigned twice', async (t) => {
  const { client } = await memberUnder(
    botica,
    { ...ORG, parameters: org(a) },
    { ...ORG, parameters: org(b) },
  )
  const found = await client.get('Patient')
  t.same(idsIn(found.body), [patientA.id, patientB.id].sort())
})

t.test('grants nothing for an entry whose variable has no value', async (t) => {
  const { client } = await memberUnder(botica, ORG)
  t.equal((await client.get('Patient')).status, 403)
  t.equal((await client.get(`Patient/${patientA.id}`)).status, 403)
})

t.test('follows references in criteria', async (t) => {
  const { client } = await memberUnder(botica, {
    entries: [
      { resourceType: 'Observation', criteria: 'Observation?subject:Patient.organization=%org' },
    ],
    parameters: org(a),
  })
  t.same(idsIn((await client.get('Observation')).body), [seenA?.id])
  t.equal((await client.get(`Observation/${seenA?.id}`)).status, 200)
  t.equal((await client.get(`Observation/${seenB?.id}`)).status, 404)
  t.equal((await client.post('Observation', anObservation(`Patient/${patientB.id}`))).status, 403)
  const made = await client.post('Observation', anObservation(`Patient/${patientA.id}`))
  t.equal(made.status, 201)
  const moved = { ...made.body, subject: { reference: `Patient/${patientB.id}` } }
  t.equal((await client.put(`Observation/${made.body.id}`, moved)).status, 403)
  t.match((await client.get(`Observation/${made.body.id}`)).body, {
    meta: { versionId: '1' },
    subject: { reference: `Patient/${patientA.id}` },
  })
  t.equal((await client.del(`Observation/${made.body.id}`)).status, 200)
  t.equal((await client.get(`Observation/${made.body.id}`)).status, 410)
})

t.test('follows the author of the current version', async (t) => {
  const criteria = 'Observation?_author=%profile'
  const { client, id } = await memberUnder(botica, {
    entries: [{ resourceType: 'Observation', criteria }],
  })
  const made = await client.create(anObservation('Patient/1'))
  const query = `Observation?_id=${made.id}`
  const byMember = `${query}&_author=ClientApplication/${id}`
  t.same(idsIn((await client.get(query)).body), [made.id])
  t.same(idsIn((await admin.get(byMember)).body), [made.id])

  // No search parameter reads the note, so only the author changes the index rows.
  const changed = { ...made, note: [{ text: 'seen by the ward' }] }
  t.equal((await admin.put(`Observation/${made.id}`, changed)).status, 200)

  t.equal((await client.get(`Observation/${made.id}`)).status, 404)
  t.same(idsIn((await client.get(query)).body), [], 'like the read')
  t.same(idsIn((await admin.get(byMember)).body), [])
  const byAdmin = `${query}&_author=ClientApplication/${botica.adminCredentials.id}`
  t.same(idsIn((await admin.get(byAdmin)).body), [made.id])
})

t.test('hides elements from reads and searches and keeps them on update', async (t) => {
  const { client } = await memberUnder(botica, {
    entries: [
      { resourceType: 'Patient', hiddenFields: ['name', 'telecom.value', 'deceased[x]'] },
      { resourceType: 'Observation' },
    ],
  })
  const whole = aPatient({
    telecom: [{ system: 'phone', value: '555', use: 'home' }],
    deceasedBoolean: true,
  })
  const { id } = await admin.create(whole)

  const seen = await client.get(`Patient/${id}`)
  t.same(Object.keys(seen.body).sort(), [
    'birthDate',
    'gender',
    'id',
    'identifier',
    'meta',
    'resourceType',
    'telecom',
  ])
  t.same(seen.body.telecom, [{ system: 'phone', use: 'home' }])
  t.match(await client.get('Patient?name=chalmers'), {
    status: 403,
    body: { issue: [{ expression: ['name'] }] },
  })
  for (const query of [
    'Patient?family:missing=true',
    'Patient?_sort=name',
    'Patient?_filter=name co "x"',
    'Patient?phone=555',
    'Observation?subject:Patient.name=chalmers',
    'Patient?_has:Observation:subject:patient.name=x',
    'Patient?deceased=true',
  ]) {
    t.equal((await client.get(query)).status, 403, query)
  }
  const page = await client.get(`Patient?_id=${id}`, { 'X-Medplum': 'extended' })
  t.match(page.body, {
    entry: [{ resource: { name: undefined, meta: { project: botica.project.id } } }],
  })
  t.equal((await client.put(`Patient/${id}`, { ...seen.body, gender: 'other' })).status, 200)
  t.match((await admin.get(`Patient/${id}`)).body, { ...whole, gender: 'other' })
  const patch = [{ op: 'replace', path: '/name/0/family', value: 'X' }]
  t.equal((await client.patch(`Patient/${id}`, patch)).status, 400)
  t.notMatch(await client.get(`Patient/${id}/_history`), { text: /Chalmers/ })
  t.notMatch(await client.get(`Patient/${id}/_history/1`), { text: /Chalmers/ })
})

t.test('applies the operators of a _filter through references in criteria', async (t) => {
  const path = '_has:Observation:patient:value-quantity'
  const tag = [{ system: 'urn:policy', code: 'measured' }]
  const measured = async (value: number) => {
    const { id } = await admin.create(aPatient({ meta: { tag } }))
    await admin.create(anObservation(`Patient/${id}`, { valueQuantity: { value } }))
    return id
  }
  const [small, large] = [await measured(5), await measured(50)]
  for (const [filter, seen, hidden] of [
    [`${path} gt 5`, large, small],
    [`${path} ne 50`, small, large],
  ] as const) {
    const criteria = `Patient?_tag=urn:policy|measured&_filter=${encodeURIComponent(filter)}`
    const { client } = await memberUnder(botica, {
      entries: [{ resourceType: 'Patient', criteria }],
    })
    t.same(idsIn((await client.get('Patient')).body), [seen], filter)
    t.equal((await client.get(`Patient/${seen}`)).status, 200)
    t.equal((await client.get(`Patient/${hidden}`)).status, 404)
  }
})

t.test('keeps read-only elements on update', async (t) => {
  const { client } = await memberUnder(botica, {
    entries: [{ resourceType: 'Patient', readonlyFields: ['gender', 'name.family'] }],
  })
  const { id, ...patient } = await admin.create(aPatient({ name: [{ family: 'A', given: ['G'] }] }))
  const sent = { ...patient, id, gender: 'other', name: [{ family: 'B', given: ['G'] }] }
  t.match(await client.put(`Patient/${id}`, sent), {
    status: 200,
    body: { gender: 'male', name: [{ family: 'A', given: ['G'] }], meta: { versionId: '1' } },
  })
  const made = await client.post('Patient', aPatient({ name: [{ family: 'B', given: ['H'] }] }))
  t.match(made, { status: 201, body: { name: [{ given: ['H'] }] } })
  t.notOk('gender' in made.body)
})

t.test('passes the old and new resource to write constraints', async (t) => {
  const expression = "%before.exists() implies %before.status != 'final'"
  const constraint = { language: 'text/fhirpath', name: 'not-final', expression }
  const { client } = await memberUnder(botica, {
    entries: [{ resourceType: 'Observation', writeConstraint: [constraint] }],
  })
  const made = await client.post('Observation', anObservation(`Patient/${patientA.id}`))
  t.equal(made.status, 201)
  t.match(await client.put(`Observation/${made.body.id}`, { ...made.body, status: 'amended' }), {
    status: 403,
    body: { issue: [{ diagnostics: 'not-final' }] },
  })
})

t.test('decides a read and a page in one statement', async (t) => {
  const { client } = await memberUnder(botica, { ...ORG, parameters: org(a) })
  const asked = (path: string) => statementsAsked(botica.services, client, () => client.get(path))
  t.equal(await asked(`Patient/${patientA.id}`), 1)
  t.equal(await asked('Patient?gender=male'), 1)
  const joined = await memberUnder(botica, {
    entries: [
      { resourceType: 'Observation', criteria: 'Observation?subject:Patient.organization=%org' },
    ],
    parameters: org(a),
  })
  const asks = (path: string) =>
    statementsAsked(botica.services, joined.client, () => joined.client.get(path))
  t.equal(await asks(`Observation/${seenA?.id}`), 1)
  t.equal(await asks('Observation'), 1)
})

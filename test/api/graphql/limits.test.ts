import t from 'tap'
import { openBotica } from '../../fixtures/botica.ts'
import { ask, countEventLoopTurns } from '../../fixtures/graphql.ts'
import type { Raw } from '../../fixtures/oracle/values.ts'
import { openSdk } from '../../fixtures/sdk.ts'

const botica = await openBotica(t)
const { admin, createMember, createTenant, superAdmin } = botica

const PATIENTS = 1000

t.before(async () => {
  const entry = Array.from({ length: PATIENTS }, (_, i) => ({
    resource: { resourceType: 'Patient', name: [{ family: `F${i}` }], birthDate: '2000-01-01' },
    request: { method: 'POST', url: 'Patient' },
  }))
  const { status } = await admin.post('', { resourceType: 'Bundle', type: 'transaction', entry })
  t.equal(status, 200)
})

t.test('fails only the searches above the limit', async (t) => {
  const lists = Array.from(
    { length: 60 },
    (_, i) => `a${i}: ConditionList(_reference: subject, _count: ${i + 1}) { id }`,
  )
  const { body } = await ask(admin, `{ PatientList(_count: 90) { id ${lists.join(' ')} } }`)
  const patients = body.data.PatientList as readonly Record<string, unknown>[]
  t.equal(patients.length, 90)
  t.ok(patients.every(({ id }) => typeof id === 'string'))
  const made = patients.flatMap((patient) => Object.values(patient).filter(Array.isArray))
  // The list of patients counts as a search.
  t.equal(made.length, 4999)
  t.equal(body.errors?.length, 401)
  t.match(body.errors?.[0], {
    message: 'Maximum number of searches exceeded',
    extensions: { code: 'too-costly' },
  })
})

t.test('fails only the resources above the limit', async (t) => {
  const pages = Array.from(
    { length: 21 },
    (_, i) => `a${i}: PatientList(_count: 1000, _offset: ${i}) { id }`,
  )
  const { body } = await ask(admin, `{ ${pages.join(' ')} }`)
  const found = Object.values(body.data).filter(Array.isArray)
  t.equal(found.length, 20)
  t.equal(found[0]?.length, PATIENTS)
  t.match(body.errors, [
    { message: 'More than 20000 resources', extensions: { code: 'too-costly' } },
  ])
})

t.test('writes a large page over many turns of the event loop', async (t) => {
  const { turns, result } = await countEventLoopTurns(() =>
    ask(admin, '{ PatientList(_count: 1000) { id name { family } } }'),
  )
  const { body } = result
  t.equal(body.data.PatientList.length, PATIENTS)
  // At most forty resources per turn.
  t.ok(turns >= PATIENTS / 40)
})

const paths: readonly (readonly [expression: string, code: string])[] = [
  ["resolve().name = 'x'", 'not-supported'],
  ["trace('x').exists()", 'not-supported'],
  ['family = ', 'invalid'],
  ['nothing(1)', 'invalid'],
  ['(1 | 2).repeat($this + 1).exists()', 'too-costly'],
  [`${'('.repeat(500)}true${')'.repeat(500)}`, 'too-costly'],
  [`family.matches('${'a'.repeat(20_000)}')`, 'too-costly'],
]
for (const [expression, code] of paths) {
  t.test(`fails only the filter ${expression.slice(0, 40)}`, async (t) => {
    const { status, body } = await ask(
      admin,
      'query ($path: String) { PatientList(_count: 1) { id name(fhirpath: $path) { family } } }',
      { path: expression },
    )
    t.equal(status, 200)
    t.match(body.data.PatientList, [{ id: String, name: null }])
    t.match(body.errors, [{ path: ['PatientList', 0, 'name'], extensions: { code, status: 400 } }])
  })
}

const faults: readonly (readonly [query: string, message: string])[] = [
  ['{ PatientList(_count: -1) { id } }', 'Invalid _count: -1'],
  ['{ PatientList(_sort: "nothing") { id } }', 'Unknown search parameter: nothing'],
  ['{ PatientList(birthdate: "tomorrow") { id } }', 'Invalid'],
  ['{ PatientList(_cursor: "x") { id } }', 'Invalid cursor'],
  ['{ PatientList(_filter: "name") { id } }', 'Invalid _filter: name'],
  ['{ Patient(id: "no such id") { id } }', 'Not found'],
  [`{ PatientList(name: [${'"a" '.repeat(201)}]) { id } }`, 'name may be given 200 times'],
  ['{ PatientList(_count: 1) { name(_count: -1) { family } } }', 'Invalid _count: -1'],
]
for (const [query, message] of faults) {
  t.test(`returns a field error for ${query.slice(0, 80)}`, async (t) => {
    const { status, body } = await ask(admin, query)
    t.equal(status, 200)
    t.equal(body.errors?.length, 1)
    t.match(body.errors?.[0]?.message, message)
    t.notMatch(JSON.stringify(body), /select|stack/)
  })
}

t.test('limits fields to the policy and reveals no others', async (t) => {
  const { body: policy } = await admin.post('AccessPolicy', {
    resourceType: 'AccessPolicy',
    resource: [{ resourceType: 'Patient', readonly: true }, { resourceType: 'Observation' }],
  })
  const { client } = await createMember({
    accessPolicy: { reference: `AccessPolicy/${policy.id}` },
  })
  const doctor = await admin.create({ resourceType: 'Practitioner' })
  const patient = await admin.create({
    resourceType: 'Patient',
    generalPractitioner: [{ reference: `Practitioner/${doctor.id}` }],
  })
  const { body } = await ask(client, `mutation { PatientCreate(res: { gender: "male" }) { id } }`)
  t.match(body, { data: { PatientCreate: null }, errors: [{ message: 'Forbidden' }] })
  const read = await ask(
    client,
    `{ Patient(id: "${patient.id}") { id ObservationList(_reference: subject) { id }
        EncounterList(_reference: subject) { id }
        EncounterConnection(_reference: subject) { count }
        generalPractitioner { resource { __typename } } }
       Practitioner(id: "${doctor.id}") { id } PractitionerList { id } }`,
  )
  t.same(read.body.data, {
    Patient: {
      id: patient.id,
      ObservationList: [],
      EncounterList: null,
      EncounterConnection: null,
      generalPractitioner: [{ resource: null }],
    },
    Practitioner: null,
    PractitionerList: null,
  })
  t.same((read.body.errors ?? []).map(({ message }) => message).sort(), [
    'Forbidden',
    'Forbidden',
    'Forbidden',
    'Forbidden',
    'Not found',
  ])
})

t.test('hides other Projects and secret fields', async (t) => {
  const other = await createTenant()
  const { id } = await other.admin.create({ resourceType: 'Patient' })
  const { body } = await ask(admin, `{ Patient(id: "${id}") { id } }`)
  t.match(body, { data: { Patient: null }, errors: [{ message: 'Not found' }] })
  const { client } = await createMember()
  const asked = await ask(client, '{ ClientApplicationList { name secret } }')
  const secrets = asked.body.data.ClientApplicationList.map(
    ({ secret }: { secret: unknown }) => secret,
  )
  t.ok(secrets.length > 0)
  t.ok(secrets.every((secret: unknown) => secret === null))
})

t.test('keeps the digits of decimals in input and output', async (t) => {
  const { text } = await ask(
    admin,
    `mutation { ObservationCreate(res: { status: "final", code: { text: "x" },
      valueQuantity: { value: 1.00 } }) { valueQuantity { value } } }`,
  )
  t.match(text, '"value":1.00')
})

t.test('keeps the first mutation when the second fails', async (t) => {
  const { body } = await ask(
    admin,
    `mutation { first: BasicCreate(res: { code: { text: "kept" } }) { id }
      second: BasicCreate(res: { }) { id } third: BasicCreate(res: { code: { text: "too" } }) { id } }`,
  )
  t.match(body.data, { first: { id: String }, second: null, third: { id: String } })
  t.match(body.errors, [{ path: ['second'], extensions: { status: 400 } }])
  t.equal((await admin.get(`Basic/${body.data.first.id}`)).status, 200)
})

t.test('returns data, partial data and errors as Medplum’s SDK expects', async (t) => {
  const sdk = await openSdk(botica)
  t.match(await sdk.graphql('{ PatientList(_count: 1) { id } }'), {
    data: { PatientList: [{ id: String }] },
  })
  t.match(await sdk.graphql('{ Patient(id: "1") { id } }'), {
    data: { Patient: null },
    errors: [{ message: 'Not found' }],
  })
  await t.rejects(sdk.graphql('{ Patient('), { message: 'GraphQL syntax error.' })
})

t.test('applies the limits that a super admin sets on a Project', async (t) => {
  const { project } = await createTenant()
  const { body: stored } = await superAdmin.get(`Project/${project.id}`)
  const systemSetting = [
    { name: 'graphqlMaxDepth', valueInteger: 3 },
    { name: 'graphqlMaxCost', valueInteger: 50 },
    { name: 'graphqlMaxSearches', valueInteger: 2 },
  ]
  t.equal((await superAdmin.put(`Project/${project.id}`, { ...stored, systemSetting })).status, 200)
  const { client } = await createMember({}, project.id)
  const errorText = async (query: string) => {
    const { status, body } = await ask(client, query)
    t.equal(status, 400)
    return (body as unknown as Raw).issue.map(({ details }: Raw) => details.text)
  }
  t.equal((await ask(client, '{ PatientList { extension { url } } }')).status, 200)
  t.same(await errorText('{ PatientList { extension { extension { url } } } }'), [
    'Field depth 4 exceeds the limit of 3',
  ])
  t.same(await errorText('{ PatientList { EncounterList(_reference: patient) { id } } }'), [
    'Query cost 168 exceeds the limit of 50',
  ])
  const lists = [1, 2, 3].map((count) => `a${count}: PatientList(_count: ${count}) { id }`)
  const { body } = await ask(client, `{ ${lists.join(' ')} }`)
  t.same(Object.values(body.data), [[], [], null])
  t.match(body.errors, [{ message: 'Maximum number of searches exceeded', path: ['a3'] }])
})

t.test('fails only the list elements above the limit', async (t) => {
  const { id } = await admin.create({
    resourceType: 'Patient',
    photo: Array.from({ length: 10_000 }, (_, i) => ({ title: `photo ${i}` })),
  })
  const lists = Array.from({ length: 55 }, (_, i) => `a${i}: photo(_count: 1) { title }`)
  const all = lists.map((list) => list.replace('(_count: 1)', ''))
  for (const fields of [lists, all]) {
    const query = `{ Patient(id: "${id}") { id ${fields.join(' ')} } }`
    const { turns, result } = await countEventLoopTurns(() => ask(admin, query))
    const { status, body } = result
    t.equal(status, 200)
    const found = Object.values(body.data.Patient).filter(Array.isArray)
    t.equal(found.length, 50)
    t.equal(found[0]?.length, fields === all ? 10_000 : 1)
    t.equal(body.errors?.length, 5)
    t.match(body.errors, [
      { message: 'More than 500000 elements of lists', extensions: { code: 'too-costly' } },
    ])
    if (fields === all) t.ok(turns > 200)
  }
})

import t from 'tap'
import { openBotica } from '../../fixtures/botica.ts'
import { ask } from '../../fixtures/graphql.ts'

const { admin } = await openBotica(t)

const patient = await admin.create({
  resourceType: 'Patient',
  name: [
    { use: 'official', family: 'Simpson', given: ['Homer', 'Jay'] },
    { use: 'usual', given: ['Homie'] },
  ],
  address: [
    { use: 'home', city: 'Springfield' },
    { use: 'work', city: 'Shelbyville' },
  ],
  birthDate: '1956-05-12',
  _birthDate: { extension: [{ url: 'http://example.com/time', valueString: 'noon' }] },
  active: true,
})
const encounter = await admin.create({
  resourceType: 'Encounter',
  status: 'finished',
  class: { system: 'http://terminology.hl7.org/CodeSystem/v3-ActCode', code: 'AMB' },
  subject: { reference: `Patient/${patient.id}` },
})
const observation = await admin.create({
  resourceType: 'Observation',
  status: 'final',
  code: { text: 'Weight' },
  subject: { reference: `Patient/${patient.id}`, display: 'Homer' },
  encounter: { reference: `Encounter/${encounter.id}` },
  valueQuantity: { value: 108.5, unit: 'kg' },
})

t.test('reads a resource by id and filters lists by child and FHIRPath', async (t) => {
  const { status, body } = await ask(
    admin,
    `{ Patient(id: "${patient.id}") {
        resourceType id name(use: "official") { family given }
        nickname: name(fhirpath: "use = 'nickname'") { given }
        usual: name(fhirpath: "use = 'usual' and %resource.active") { given }
        second: name(_offset: 1, _count: 1) { use } none: name(_count: 0) { use }
        photo { url } gender birthDate _birthDate { extension { valueString } }
    } }`,
  )
  t.equal(status, 200)
  t.same(body, {
    data: {
      Patient: {
        resourceType: 'Patient',
        id: patient.id,
        name: [{ family: 'Simpson', given: ['Homer', 'Jay'] }],
        nickname: [],
        usual: [{ given: ['Homie'] }],
        second: [{ use: 'usual' }],
        none: [],
        photo: null,
        gender: null,
        birthDate: '1956-05-12',
        _birthDate: { extension: [{ valueString: 'noon' }] },
      },
    },
  })
})

t.test('accepts a bare word as a string', async (t) => {
  const { status, body } = await ask(
    admin,
    `query ($city: String = Springfield) {
      PatientList(address_city: $city, _sort: birthdate) {
        name(use: official) { family }
        EncounterList(_reference: patient) { status } }
      both: PatientList(name: [Homer, "Simpson"]) { id }
      ...named @include(if: true) }
      fragment named on Query { burns: PatientList(family: Burns) { id } }`,
  )
  t.equal(status, 200)
  t.same(body.data, {
    PatientList: [{ name: [{ family: 'Simpson' }], EncounterList: [{ status: 'finished' }] }],
    both: [{ id: patient.id }],
    burns: [],
  })
  const made = await ask(
    admin,
    'mutation { PractitionerCreate(res: { resourceType: Practitioner, gender: other }) { gender } }',
  )
  t.same(made.body, { data: { PractitionerCreate: { gender: 'other' } } })
  for (const [query, message] of [
    ['{ PatientList(_count: few) { id } }', /Int cannot represent non-integer value: few/],
    ['{ PatientList { EncounterList(_reference: nobody) { id } } }', /nobody/],
    ['mutation { PatientCreate(res: { resourceType: Patient, active: yes }) { id } }', /Boolean/],
  ] as const) {
    t.match(await admin.post('$graphql', { query }), { status: 400, text: message }, query)
  }
})

t.test('returns null for a Reference without a reference', async (t) => {
  for (const subject of [
    { display: 'Homer' },
    { identifier: { system: 'urn:mrn', value: '42' }, display: 'Homer' },
    { _reference: { extension: [{ url: 'urn:why', valueCode: 'masked' }] } },
  ]) {
    const { id } = await admin.create({
      resourceType: 'Observation',
      status: 'final',
      code: { text: 'Height' },
      subject,
    })
    const field = (given: string) => `resource${given} { ... on Patient { id } }`
    for (const given of ['', '(optional: true)', '(type: Patient)']) {
      const query = `{ Observation(id: "${id}") { subject { ${field(given)} } } }`
      const { body } = await ask(admin, query)
      t.same(body, { data: { Observation: { subject: { resource: null } } } }, given)
    }
  }
})

t.test('accepts a single string variable for a list argument', async (t) => {
  for (const declared of ['String!', 'String', '[String!]']) {
    const query = `query ($city: ${declared}) { PatientList(address_city: $city) { id } }`
    const variables = { city: declared.startsWith('[') ? ['Springfield'] : 'Springfield' }
    const { status, body } = await admin.post('$graphql', { query, variables })
    t.equal(status, 200, declared)
    t.same(body, { data: { PatientList: [{ id: patient.id }] } }, declared)
  }
  const wrong = 'query ($city: Int) { PatientList(address_city: $city) { id } }'
  const refused = await admin.post('$graphql', { query: wrong, variables: { city: 1 } })
  t.match(refused, {
    status: 400,
    text: /Variable \\"\$city\\" of type \\"Int\\" used in position/,
  })
})

t.test('accepts snake-case arguments and aliases', async (t) => {
  const { body } = await ask(
    admin,
    `{ PatientList(address_city: "Springfield", _count: 5, _sort: "-_lastUpdated") {
        id homeAddress: address(use: "home") { city } }
       both: PatientList(name: ["Homer", "Simpson"]) { id }
       neither: PatientList(name: ["Homer", "Burns"]) { id }
       either: PatientList(name: "Burns,Simpson") { id }
       born: PatientList(birthdate: "ge1990") { id }
       filtered: PatientList(_filter: "family eq Simpson") { id } }`,
  )
  t.same(body.data, {
    PatientList: [{ id: patient.id, homeAddress: [{ city: 'Springfield' }] }],
    both: [{ id: patient.id }],
    neither: [],
    either: [{ id: patient.id }],
    born: [],
    filtered: [{ id: patient.id }],
  })
})

t.test('nests reverse lists, references and inline fragments', async (t) => {
  const { body } = await ask(
    admin,
    `query P($id: ID!) { Patient(id: $id) { id
      EncounterList(_reference: patient, _count: 3) { id class { code }
        ObservationList(_reference: encounter) { code { text } valueQuantity { value }
          subject { display resource { __typename ... on Patient { birthDate } } } } } } }`,
    { id: patient.id },
  )
  t.same(body, {
    data: {
      Patient: {
        id: patient.id,
        EncounterList: [
          {
            id: encounter.id,
            class: { code: 'AMB' },
            ObservationList: [
              {
                code: { text: 'Weight' },
                valueQuantity: { value: 108.5 },
                subject: {
                  display: 'Homer',
                  resource: { __typename: 'Patient', birthDate: '1956-05-12' },
                },
              },
            ],
          },
        ],
      },
    },
  })
})

t.test('counts and pages a connection, and omits unrequested fields', async (t) => {
  await admin.create({ resourceType: 'Patient', name: [{ family: 'Flanders' }] })
  const page = `count next pageSize pagesize offset edges { mode resource { id } }`
  const first = await ask(admin, `{ PatientConnection(_count: 1) { ${page} } }`)
  const { count, next, edges, pageSize, pagesize, offset } = first.body.data.PatientConnection
  t.match({ count, pageSize, pagesize, offset }, { count: 2, pageSize: 1, pagesize: 1, offset: 0 })
  t.equal(edges[0].mode, 'match')
  const second = await ask(
    admin,
    `query ($cursor: String) { PatientConnection(_count: 1, _cursor: $cursor) { ${page} } }`,
    { cursor: next },
  )
  t.same(second.body.data.PatientConnection.edges, [
    { mode: 'match', resource: { id: patient.id } },
  ])
  const nested = await ask(
    admin,
    `{ Patient(id: "${patient.id}") { ObservationConnection(_reference: subject) { count } } }`,
  )
  t.same(nested.body.data.Patient.ObservationConnection, { count: 1 })
})

t.test('distinguishes mistyped, broken and optional references', async (t) => {
  const other = await admin.create({
    resourceType: 'Observation',
    status: 'final',
    code: { text: 'Heart' },
    subject: { reference: 'Patient/00000000-0000-4000-8000-000000000000' },
    performer: [{ reference: '#me' }],
    contained: [
      { resourceType: 'Practitioner', id: 'me', gender: 'male', identifier: [{ value: '1' }] },
    ],
  })
  const { body } = await ask(
    admin,
    `query ($id: ID!) { Observation(id: $id) {
      subject { typed: resource(type: "Group") { __typename }
        optional: resource(optional: true) { __typename } broken: resource { __typename } }
      performer { resource { ... on Practitioner { gender ObservationList(_reference: performer) { id }
        itself: identifier(fhirpath: "%resource.status = 'final'") { value } } } } } }`,
    { id: other.id },
  )
  t.same(body.data.Observation, {
    subject: { typed: null, optional: null, broken: null },
    performer: [{ resource: { gender: 'male', ObservationList: null, itself: [{ value: '1' }] } }],
  })
  t.match(body.errors, [
    {
      message: 'Not found',
      path: ['Observation', 'subject', 'broken'],
      extensions: { code: 'not-found', status: 404 },
    },
  ])
  t.equal(body.errors?.length, 1)
})

t.test('runs mutations in order', async (t) => {
  const made = await ask(
    admin,
    `mutation { PatientCreate(res: { resourceType: "Patient", gender: "female" }) { id gender meta { versionId } } }`,
  )
  const { id } = made.body.data.PatientCreate
  t.match(made.body.data.PatientCreate, { gender: 'female', meta: { versionId: '1' } })
  const changed = await ask(
    admin,
    `mutation ($id: ID!, $res: PatientUpdate!) {
      PatientUpdate(id: $id, res: $res) { gender meta { versionId } }
      PatientPatch(id: $id, patch: [{ op: "replace", path: "/gender", value: "other" },
        { op: "add", path: "/active", value: "true", valueJson: true }]) { gender active }
      wrong: PatientUpdate(id: "1", res: $res) { id }
      PatientDelete(id: $id) { id } }`,
    { id, res: { resourceType: 'Patient', id, gender: 'male' } },
  )
  t.same(changed.body.data, {
    PatientUpdate: { gender: 'male', meta: { versionId: '2' } },
    PatientPatch: { gender: 'other', active: true },
    wrong: null,
    PatientDelete: null,
  })
  t.match(changed.body.errors, [{ message: 'Invalid ID', path: ['wrong'] }])
  t.equal((await admin.get(`Patient/${id}`)).status, 410)
})

t.test('answers a mutation of which every field is skipped', async (t) => {
  const query = `mutation ($isAsked: Boolean!) {
    PatientCreate(res: { resourceType: "Patient" }) @include(if: $isAsked) { resourceType } }`
  t.same((await ask(admin, query, { isAsked: false })).body, { data: {} })
  t.same((await ask(admin, query, { isAsked: true })).body, {
    data: { PatientCreate: { resourceType: 'Patient' } },
  })
})

t.test('runs an instance-level document on its resource', async (t) => {
  const query = '{ id ObservationList(_reference: encounter) { id } }'
  const { body } = await admin.post<{ data: unknown }>(`Encounter/${encounter.id}/$graphql`, {
    query,
  })
  t.same(body, { data: { id: encounter.id, ObservationList: [{ id: observation.id }] } })
  const wrong = await admin.post(`Encounter/${encounter.id}/$graphql`, {
    query: '{ Patient(id: "1") { id } }',
  })
  t.equal(wrong.status, 400)
  const absent = await admin.post('Encounter/1/$graphql', { query })
  t.equal(absent.status, 404)
})

t.test('accepts a query by GET and as plain text', async (t) => {
  const query = encodeURIComponent('query ($id: ID!) { Patient(id: $id) { active } }')
  const variables = encodeURIComponent(JSON.stringify({ id: patient.id }))
  const got = await admin.get(`$graphql?query=${query}&variables=${variables}`)
  t.same(got.body, { data: { Patient: { active: true } } })
  const text = await admin.post('%24graphql', `{ Patient(id: "${patient.id}") { active } }`, {
    'Content-Type': 'application/graphql',
  })
  t.same(text.body, { data: { Patient: { active: true } } })
})

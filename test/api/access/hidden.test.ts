/** Nothing reveals content hidden by a policy: compartments, platform meta, versions, Subscriptions. */
import t from 'tap'
import { scopedPerson } from '../../fixtures/attacks/scoped.ts'
import { openBotica } from '../../fixtures/botica.ts'
import { aBot, execute, handler, type Untyped } from '../../fixtures/bots/bots.ts'
import { aPerson, type Person } from '../../fixtures/people.ts'
import { memberUnder } from '../../fixtures/policy/policy.ts'
import { anObservation, aPatient } from '../../fixtures/resources.ts'

const botica = await openBotica(t, { worker: true })
const { admin, project, services } = botica
const EXTENDED = { 'X-Medplum': 'extended' }
const patient = await admin.create(aPatient({ telecom: [{ system: 'phone', value: '555' }] }))
const observation = await admin.create(
  anObservation(`Patient/${patient.id}`, { valueString: 'a "}, { quoted \\' }),
)
const all = [
  { resourceType: 'Patient' },
  { resourceType: 'Encounter' },
  { resourceType: 'Subscription' },
]
const about = { resourceType: 'Observation', hiddenFields: ['subject', 'value[x]'] }
const { client } = await memberUnder(botica, { entries: [...all, about] })

t.test('hides the subject of a resource from compartment searches', async (t) => {
  const read = await client.get(`Observation/${observation.id}`, EXTENDED)
  t.match(read, { status: 200, body: { status: observation.status, meta: { author: {} } } })
  t.notMatch(read.text, patient.id)
  t.same(read.body.meta?.compartment, [{ reference: `Project/${botica.project.id}` }])
  t.match((await admin.get(`Observation/${observation.id}`, EXTENDED)).text, patient.id)
  for (const query of [
    `Observation?_compartment=Patient/${patient.id}`,
    `Observation?_compartment=${patient.id}`,
    `Observation?_filter=_compartment eq Patient/${patient.id}`,
    `Patient/${patient.id}/Observation`,
    `Encounter?_has:Observation:encounter:_compartment=Patient/${patient.id}`,
    `Observation?_deleted=true&_compartment=Patient/${patient.id}`,
  ]) {
    const { status, text } = await client.get(query)
    t.ok(status === 403 || status === 400, `${query} ${status}`)
    t.notMatch(text, observation.id)
  }
  const everything = await client.get(`Patient/${patient.id}/$everything`)
  t.match(everything, { status: 200, body: { entry: [{ resource: { id: patient.id } }] } })
  t.notMatch(everything.text, observation.id)
  t.match((await admin.get(`Patient/${patient.id}/$everything`)).text, observation.id)
  t.equal((await client.get(`Observation?_id=${observation.id}`)).status, 200)
})

interface Page {
  readonly entry: readonly { readonly resource: { readonly id: string } }[]
}

t.test('includes a target once when several parameters refer to it', async (t) => {
  const entries = [
    { resourceType: 'Patient' },
    { resourceType: 'Observation', hiddenFields: ['note'] },
  ]
  const { client } = await memberUnder(botica, { entries })
  for (const ways of [
    '_revinclude=*',
    '_revinclude=Observation:subject&_revinclude=Observation:patient',
  ]) {
    const { body } = await client.get<Page>(`Patient?_id=${patient.id}&${ways}`)
    t.same(
      body.entry.map(({ resource }) => resource.id),
      [patient.id, observation.id],
      ways,
    )
  }
})

const graphql = (query: string) => `$graphql?query=${encodeURIComponent(query)}`

// Each request, for the patient of the observation and for another one.
const WAYS: readonly string[] = [
  'Observation?subject={}',
  'Observation?patient={}',
  'Observation?subject:Patient._id={id}',
  'Observation?patient.name=chalmers&_id={observation}&subject={}',
  'Observation?subject:not={}',
  'Observation?subject:missing=false&subject={}',
  'Observation?_filter=subject eq "{}"',
  'Observation?_filter=not (patient eq {})',
  'Observation?subject={}&_summary=count',
  'Observation?_has:Provenance:target:target=x&subject={}',
  'Patient?_has:Observation:subject:status=final&_id={id}',
  'Patient?_has:Observation:patient:_id={observation}&_id={id}',
  'Patient?_id={id}&_revinclude=Observation:subject',
  'Patient?_id={id}&_revinclude=*',
  'Encounter?_has:Observation:encounter:subject={}',
  'Patient/{id}/Observation',
  'Patient/{id}/*?_type=Observation',
  'Patient/{id}/$everything?_type=Observation',
  'Observation/$csv?_fields=id,subject.reference&subject={}',
  graphql('{ ObservationList(subject: "{}") { id } }'),
  graphql('{ ObservationList(patient: "{}") { id } }'),
  graphql('{ Patient(id: "{id}") { ObservationList(_reference: subject) { id } } }'),
  graphql('{ Patient(id: "{id}") { ObservationList(_reference: patient) { id } } }'),
  graphql('{ ObservationConnection(subject: "{}") { count } }'),
]

t.test('answers right and wrong guesses identically on every path', async (t) => {
  const other = await admin.create(aPatient({ telecom: [{ system: 'phone', value: '555' }] }))
  for (const way of WAYS) {
    const [right, wrong] = await Promise.all(
      [patient, other].map(async ({ id }) => {
        const decoded = decodeURIComponent(way)
        const filled = decoded
          .replaceAll('{}', `Patient/${id}`)
          .replaceAll('{id}', id)
          .replaceAll('{observation}', observation.id)
        const path = way === decoded ? filled : graphql(filled.slice(filled.indexOf('=') + 1))
        const { status, text } = await client.get(path)
        t.notMatch(text, `"${observation.id}"`, `${way} ${status} ${text}`)
        const isSeen = text.includes(`"resourceType":"Patient","id":"${id}"`)
        return { status, isSeen, entries: text.split('"fullUrl"').length }
      }),
    )
    t.same(right, wrong, way)
  }
})

t.test('rejects patches that test a hidden subject', async (t) => {
  const { body } = await admin.get(`Observation/${observation.id}`, EXTENDED)
  const place = body.meta?.compartment?.findIndex(({ reference }) =>
    reference?.startsWith('Patient/'),
  )
  const test = [
    {
      op: 'test',
      path: `/meta/compartment/${place}/reference`,
      value: `Patient/${patient.id}`,
    },
  ]
  t.equal((await admin.patch(`Observation/${observation.id}`, test)).status, 200)
  t.equal((await client.patch(`Observation/${observation.id}`, test)).status, 400)
})

t.test('keeps the remaining text as it was written', async (t) => {
  const nested = {
    resourceType: 'Patient',
    hiddenFields: ['name.family', 'meta.tag', 'contact.name'],
  }
  const member = await memberUnder(botica, { entries: [nested] })
  const whole = await admin.post(
    'Patient',
    aPatient({
      meta: { tag: [{ code: 'secret' }], profile: ['http://example.org/p'] },
      name: [{ family: 'Comma, "quoted" \\' }, { family: 'x', given: ['{y}', 'é\\"'] }],
      contact: [{ name: { text: 'gone' } }],
      multipleBirthInteger: 2,
      extension: [{ url: 'http://example.org/d', valueDecimal: 1.5 }],
    }),
  )
  const { meta, ...seen } = (await member.client.get(`Patient/${whole.body.id}`)).body
  const { contact: _contact, name: _name, meta: _meta, ...rest } = whole.body
  t.same(seen, { ...rest, name: [{ given: ['{y}', 'é\\"'] }] })
  t.same(Object.keys(meta ?? {}), ['versionId', 'lastUpdated', 'profile'])
  const extended = await member.client.get(`Patient/${whole.body.id}`, EXTENDED)
  t.match(extended.body.meta, { project: botica.project.id, profile: ['http://example.org/p'] })
  t.notMatch(extended.text, 'secret')
})

t.test('shows the elements of a version that both entries show', async (t) => {
  const member = await memberUnder(botica, {
    entries: [
      { resourceType: 'Patient', interaction: ['read'], hiddenFields: ['telecom'] },
      { resourceType: 'Patient', interaction: ['vread'] },
    ],
  })
  const seen = await member.client.get(`Patient/${patient.id}/_history/1`)
  t.match(seen, { status: 200, body: { gender: 'male', telecom: undefined } })
})

t.test('rejects Subscriptions whose criteria use hidden elements', async (t) => {
  const member = await memberUnder(botica, {
    entries: [
      { resourceType: 'Patient', hiddenFields: ['telecom'] },
      { resourceType: 'Subscription' },
    ],
  })
  const waiting = (criteria: string, type: string) => ({
    resourceType: 'Subscription',
    status: 'requested',
    reason: 'test',
    criteria,
    channel: { type, endpoint: type === 'websocket' ? undefined : 'https://example.org/hook' },
  })
  for (const type of ['rest-hook', 'websocket']) {
    const refused = await member.client.post('Subscription', waiting('Patient?phone=555', type))
    t.match(refused, { status: 403, body: { issue: [{ expression: ['phone'] }] } }, type)
    t.equal(
      (await member.client.post('Subscription', waiting('Patient?gender=male', type))).status,
      201,
    )
  }
})

/** Returns a patient with a password, whose profile has more than a name. */
async function aPatientUnder(...resource: readonly object[]): Promise<Person> {
  const policy = await admin.create({ resourceType: 'AccessPolicy', resource })
  const access = [{ policy: { reference: `AccessPolicy/${policy.id}` } }]
  const person = await aPerson(services, project, { profileType: 'Patient', details: { access } })
  const path = `Patient/${person.profile.id}`
  const put = await admin.put(path, {
    ...(await admin.get(path)).body,
    telecom: [{ system: 'phone', value: '555-0100' }],
    birthDate: '1990-01-01',
    address: [{ city: 'Springfield' }],
  })
  t.equal(put.status, 200, put.text)
  return person
}

const CLAIMS = 'openid profile phone address'

t.test('hides elements of the own profile as the policy says', async (t) => {
  const code = handler(`return [medplum.getProfile(), await medplum.get('auth/me')]`)
  const bot = await aBot(botica, code, { fields: { runAsUser: true } })
  const hiddenFields = ['telecom', 'birthDate']
  const bots = { resourceType: 'Bot', readonly: true }
  for (const entries of [
    [{ resourceType: 'Patient', hiddenFields }, bots],
    [
      { resourceType: 'Patient', criteria: 'Patient?active=false' },
      { resourceType: 'Patient', criteria: 'Patient?_id=%patient.id', hiddenFields },
      bots,
    ],
  ]) {
    const person = await aPatientUnder(...entries)
    const client = await scopedPerson(botica, person, CLAIMS)
    const answers = [
      await client.get('/auth/me'),
      await client.get('/oauth2/userinfo'),
      await execute(client, bot),
    ]
    for (const { status, text } of answers) {
      t.equal(status, 200)
      t.match(text, 'Springfield')
      t.notMatch(text, /555-0100|1990-01-01/)
    }
  }
})

t.test('shows the name of a profile that its member may not read', async (t) => {
  const person = await aPatientUnder({ resourceType: 'Observation' })
  const client = await scopedPerson(botica, person, CLAIMS)
  const { body, status } = await client.get<Untyped>('/auth/me')
  t.equal(status, 200)
  const { resourceType, id, name } = person.profile
  t.same(body.profile, { resourceType, id, name })
  const { body: claims } = await client.get<Untyped>('/oauth2/userinfo')
  t.match(claims, { sub: id, name: 'Ada Lovelace', given_name: 'Ada' })
  t.same([claims.phone_number, claims.birthdate, claims.address], [undefined, undefined, undefined])
})

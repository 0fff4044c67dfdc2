/** What a policy hides is not told in other words: by compartments, platform meta, versions or what one waits for. */
import t from 'tap'
import { openBotica } from './fixtures/botica.ts'
import { memberUnder } from './fixtures/policy.ts'
import { anObservation, aPatient } from './fixtures/resources.ts'

const botica = await openBotica(t)
const { admin } = botica
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

t.test('who a resource is about is not told by its compartment', async (t) => {
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

t.test('what is left of a text is as it was written', async (t) => {
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

t.test('a version shows what both its entries show', async (t) => {
  const member = await memberUnder(botica, {
    entries: [
      { resourceType: 'Patient', interaction: ['read'], hiddenFields: ['telecom'] },
      { resourceType: 'Patient', interaction: ['vread'] },
    ],
  })
  const seen = await member.client.get(`Patient/${patient.id}/_history/1`)
  t.match(seen, { status: 200, body: { gender: 'male', telecom: undefined } })
})

t.test('nobody waits for what is hidden', async (t) => {
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

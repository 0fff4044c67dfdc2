import t from 'tap'
import { openBotica } from '../../fixtures/botica.ts'
import type { OperationOutcome } from '../../fixtures/fhir.ts'
import { clientUnder } from '../../fixtures/policy/policy.ts'
import { PATIENT_PROFILE, patientProfile, usLikePatient } from '../../fixtures/profiles.ts'
import { anObservation, aPatient, aSearchParameter } from '../../fixtures/resources.ts'

const botica = await openBotica(t)
const { admin } = botica
const patient = await admin.create(aPatient())
await admin.create(patientProfile())

const post = (path: string, body: unknown) => admin.post<OperationOutcome>(path, body)
const parameters = (...parameter: object[]) => ({ resourceType: 'Parameters', parameter })
const ok = { resourceType: 'OperationOutcome', id: 'ok', issue: [{ severity: 'information' }] }

t.test('a valid resource is answered with all OK and is not stored', async (t) => {
  const name = [{ family: 'Neverstored' }]
  const { status, body } = await post('Patient/$validate', aPatient({ name }))
  t.equal(status, 200)
  t.match(body, ok)
  const found = await admin.get('Patient?name=Neverstored&_summary=count')
  t.match(found.body, { total: 0 })
})

t.test(
  'an invalid resource as body is 400, inside Parameters 200, with the same issues',
  async (t) => {
    const resource = aPatient({ gender: null, active: 'x' })
    const bare = await post('Patient/$validate', resource)
    t.equal(bare.status, 400)
    t.same(bare.body.issue.map(({ expression }) => expression?.[0]).sort(), [
      'Patient.active',
      'Patient.gender',
    ])
    const given = await post('Patient/$validate', parameters({ name: 'resource', resource }))
    t.equal(given.status, 200)
    t.same(given.body.issue, bare.body.issue)
    t.equal(given.body.id, undefined)
  },
)

t.test('checks every stage, and reports warnings of a write as errors', async (t) => {
  const { status, body } = await post('Patient/$validate', {
    resourceType: 'Patient',
    gender: 'odd',
    deceasedBoolean: true,
    contact: [{ gender: 'male' }],
  })
  t.equal(status, 400)
  t.same(
    body.issue.map(({ code, expression }) => `${code} ${expression}`),
    ['invariant Patient.contact[0]', 'value Patient.gender'],
  )
  const choices = await post('Patient/$validate', {
    resourceType: 'Patient',
    deceasedBoolean: true,
    deceasedDateTime: '2020',
  })
  t.equal(choices.status, 400)
  t.match(choices.body.issue, [{ severity: 'error', expression: ['Patient.deceasedDateTime'] }])
})

t.test('a code of another value set is named with its system', async (t) => {
  const coding = { system: 'http://terminology.hl7.org/CodeSystem/condition-clinical', code: 'odd' }
  const { body } = await post('Condition/$validate', {
    resourceType: 'Condition',
    subject: { reference: 'Patient/1' },
    clinicalStatus: { coding: [coding] },
  })
  t.equal(
    body.issue[0]?.details.text,
    'Value "http://terminology.hl7.org/CodeSystem/condition-clinical|odd" did not satisfy terminology binding http://hl7.org/fhir/ValueSet/condition-clinical',
  )
})

t.test('a reference to a type that the element does not name is a warning', async (t) => {
  const { status, body } = await post('Observation/$validate', anObservation('Practitioner/1'))
  t.equal(status, 200)
  t.match(body.issue[1], {
    severity: 'warning',
    details: {
      text: 'Invalid reference: expected Device or Group or Location or Patient, but found Practitioner',
    },
    expression: ['Observation.subject.reference'],
  })
})

t.test('reports violations of the write rules of the type as errors', async (t) => {
  const parameter = aSearchParameter({ code: 'both', type: 'composite', expression: 'Patient' })
  const resources = [
    parameter,
    { ...parameter, type: 'string', code: 'name', expression: 'Patient.name' },
    {
      resourceType: 'AccessPolicy',
      resource: [{ resourceType: 'Patient', criteria: 'Patient?x=1' }],
    },
  ]
  for (const resource of resources) {
    const { resourceType: type } = resource
    const asked = await post(`${type}/$validate`, resource)
    const written = await post(type, resource)
    t.same([asked.status, written.status], [400, 400], type)
    const texts = (all: OperationOutcome) => all.issue.map(({ details }) => details?.text)
    t.same(texts(asked.body), texts(written.body))
  }
})

t.test('warns of an unknown profile and rejects a requested one', async (t) => {
  const profile = 'http://example.org/nobodys'
  const claimed = await post('Patient/$validate', aPatient({ meta: { profile: [profile] } }))
  t.equal(claimed.status, 200)
  t.match(claimed.body.issue[1], { severity: 'warning', code: 'not-found' })
  const asked = await post(`Patient/$validate?profile=${profile}`, aPatient())
  t.equal(asked.status, 400)
  t.match(asked.body.issue, [
    { code: 'not-found', details: { text: `Unknown profile "${profile}"` } },
  ])
})

t.test('a profile is given by parameter or claimed by the resource', async (t) => {
  const without = usLikePatient({ gender: undefined, meta: undefined })
  t.equal((await post('Patient/$validate', without)).status, 200)
  const inQuery = await post(`Patient/$validate?profile=${PATIENT_PROFILE}`, without)
  t.equal(inQuery.status, 400)
  t.match(inQuery.body.issue, [{ expression: ['Patient.gender'] }])
  const inBody = await post(
    'Patient/$validate',
    parameters(
      { name: 'resource', resource: without },
      { name: 'mode', valueCode: 'profile' },
      { name: 'profile', valueUri: PATIENT_PROFILE },
    ),
  )
  t.equal(inBody.status, 200)
  t.match(inBody.body.issue, [{ severity: 'error', expression: ['Patient.gender'] }])
  const claimed = await post('Patient/$validate', usLikePatient({ gender: undefined }))
  t.equal(claimed.status, 400)
})

t.test('a stored resource is validated by GET and by POST without a resource', async (t) => {
  const path = `Patient/${patient.id}/$validate`
  const plain = await admin.get<OperationOutcome>(path)
  t.equal(plain.status, 200)
  t.match(plain.body, ok)
  const against = await admin.get<OperationOutcome>(`${path}?profile=${PATIENT_PROFILE}`)
  t.equal(against.status, 200)
  t.ok(against.body.issue.some(({ severity }) => severity === 'error'))
  const mode = { name: 'mode', valueCode: 'update' }
  t.match((await post(path, parameters(mode))).body, ok)
  t.equal((await admin.get('Patient/nobody/$validate')).status, 404)
})

t.test('the body of an update must have the id of its path', async (t) => {
  const path = `Patient/${patient.id}/$validate`
  t.equal((await post(path, patient)).status, 200)
  const other = await post(path, aPatient({ id: 'other' }))
  t.equal(other.status, 400)
  t.match(other.body.issue, [{ details: { text: 'Incorrect resource ID' } }])
  const missing = await post(`${path}?mode=update`, aPatient())
  t.match(missing.body.issue, [{ details: { text: 'Missing id' } }])
})

t.test('mode delete asks whether the resource may be deleted, and leaves it', async (t) => {
  const mode = { name: 'mode', valueCode: 'delete' }
  const { status, body } = await post(`Patient/${patient.id}/$validate`, parameters(mode))
  t.equal(status, 200)
  t.match(body, ok)
  t.equal((await admin.get(`Patient/${patient.id}`)).status, 200)
  t.equal((await post('Patient/nobody/$validate', parameters(mode))).status, 404)
  t.equal((await post('Patient/$validate', parameters(mode))).status, 400)
})

t.test('knows the definition of the type as a profile', async (t) => {
  const url = 'http://hl7.org/fhir/StructureDefinition/'
  for (const profile of [`${url}Patient`, `${url}Patient|4.0.1`]) {
    const answer = await admin.post<OperationOutcome>(
      `Patient/$validate?profile=${encodeURIComponent(profile)}`,
      aPatient({ meta: { profile: [profile] } }),
    )
    t.match(answer, { status: 200, body: { id: 'ok' } }, answer.text)
    t.notMatch(answer.text, 'Unknown profile')
  }
  for (const profile of [`${url}Observation`, `${url}Patient|3.0`]) {
    const path = `Patient/$validate?profile=${encodeURIComponent(profile)}`
    t.equal((await admin.post(path, aPatient())).status, 400)
  }
})

t.test('returns 400 with a sentence for invalid requests', async (t) => {
  const resource = aPatient()
  const asked: [unknown, string][] = [
    [
      anObservation('Patient/1'),
      'Incorrect resource type: expected Patient, but found Observation',
    ],
    [[], 'Incorrect resource type: expected Patient, but found undefined'],
    [parameters(), 'Missing required parameter "resource"'],
    [
      parameters({ name: 'resource', resource }, { name: 'mode', valueCode: 'eat' }),
      'mode must be one of create, update, delete, profile',
    ],
    [
      parameters({ name: 'resource', resource }, { name: 'mode', valueCode: 'profile' }),
      'Missing required parameter "profile"',
    ],
    [
      parameters({ name: 'resource', resource }, { name: 'profile', valueUri: 5 }),
      '"profile" must be a string',
    ],
  ]
  for (const [body, text] of asked) {
    const answer = await admin.post<OperationOutcome>('Patient/$validate', JSON.stringify(body), {
      'Content-Type': 'application/fhir+json',
    })
    t.equal(answer.status, 400, text)
    t.equal(answer.body.issue[0]?.details.text, text)
  }
  t.equal((await admin.get('Patient/$validate')).status, 400)
})

t.test('Parameters can be validated themselves', async (t) => {
  const body = parameters({ name: 'x', valueString: 'y' })
  t.equal((await post('Parameters/$validate', body)).status, 200)
  t.equal((await post('Parameters/$validate', parameters({ name: 'x' }))).status, 400)
})

t.test('returns 403 to callers without read access to the type', async (t) => {
  const client = await clientUnder(botica, { resourceType: 'Observation' })
  t.equal((await client.post('Patient/$validate', aPatient())).status, 403)
  t.equal((await client.get(`Patient/${patient.id}/$validate`)).status, 403)
  const body = anObservation('Patient/1')
  t.equal((await client.post('Observation/$validate', body)).status, 200)
})

t.test('the CapabilityStatement offers it for every type', async (t) => {
  const { body } = await admin.get<{ rest: { resource: { operation?: { name: string }[] }[] }[] }>(
    'metadata',
  )
  const types = body.rest[0]?.resource ?? []
  t.ok(types.every(({ operation }) => operation?.some(({ name }) => name === 'validate')))
})

import t from 'tap'
import { openBotica, until } from '../../fixtures/botica.ts'
import type { Answer, Client } from '../../fixtures/client.ts'
import type { OperationOutcome, Resource } from '../../fixtures/fhir.ts'
import {
  BLOOD_PRESSURE_PROFILE,
  bloodPressureProfile,
  mrn,
  PATIENT_PROFILE,
  patientProfile,
  pressure,
  race,
  raceExtension,
  usLikeBloodPressure,
  usLikePatient,
} from '../../fixtures/profiles.ts'
import { aPatient } from '../../fixtures/resources.ts'

const botica = await openBotica(t)
const { admin } = botica
for (const profile of [raceExtension(), patientProfile(), bloodPressureProfile()]) {
  await admin.create(profile)
}

function send(client: Client, resource: Resource): Promise<Answer<OperationOutcome>> {
  return client.post<OperationOutcome>(resource.resourceType, resource)
}

t.test('stores a resource that conforms to its profile', async (t) => {
  t.equal((await send(admin, usLikePatient())).status, 201)
  const components = [pressure('8480-6'), pressure('8462-4')]
  t.equal((await send(admin, usLikeBloodPressure(components))).status, 201)
})

const text = { url: 'text', valueString: 'White' }

type Case = readonly [name: string, resource: Resource, text: string, expression: string]

const cases: readonly Case[] = [
  [
    'an element that the profile requires',
    usLikePatient({ gender: undefined }),
    'Missing required property',
    'Patient.gender',
  ],
  [
    'a part of an element that the profile requires',
    usLikePatient({ name: [{ given: ['Amy'] }] }),
    'Missing required property',
    'Patient.name[0].family',
  ],
  [
    'more values than the profile allows',
    usLikePatient({ name: [{ family: 'a' }, { family: 'b' }, { family: 'c' }] }),
    'Invalid number of values: expected 1..2, but found 3',
    'Patient.name',
  ],
  [
    'an element that the profile excludes',
    usLikePatient({ contact: [{ name: { text: 'x' } }] }),
    'Invalid number of values: expected 0..0, but found 1',
    'Patient.contact',
  ],
  [
    'a missing slice',
    usLikePatient({ identifier: [{ system: 'other', value: '1' }] }),
    "Incorrect number of values provided for slice 'MRN': expected 1..1, but found 0",
    'Patient.identifier',
  ],
  [
    'a second value of a slice',
    usLikePatient({ identifier: [mrn(), mrn({ value: '2' })] }),
    "Incorrect number of values provided for slice 'MRN': expected 1..1, but found 2",
    'Patient.identifier',
  ],
  [
    'a pattern inside a slice',
    usLikePatient({ identifier: [mrn({ type: { text: 'MRN' } })] }),
    'Value did not match expected pattern',
    'Patient.identifier[0].type',
  ],
  [
    'an element that a slice requires',
    usLikePatient({ identifier: [{ system: 'other' }, mrn({ value: undefined })] }),
    'Missing required property',
    'Patient.identifier[1].value',
  ],
  [
    'an extension without a part it must have',
    usLikePatient({ extension: [race([{ url: 'category', valueCoding: { code: 'x' } }])] }),
    "Incorrect number of values provided for slice 'text': expected 1..1, but found 0",
    'Patient.extension[0].extension',
  ],
  [
    'a part of an extension with a value of another type',
    usLikePatient({ extension: [race([{ url: 'category', valueString: 'x' }, text])] }),
    'Invalid additional property "valueString"',
    'Patient.extension[0].extension[0].valueString',
  ],
  [
    'a second extension where one is allowed',
    usLikePatient({ extension: [race([text]), race([text])] }),
    "Incorrect number of values provided for slice 'race': expected 0..1, but found 2",
    'Patient.extension',
  ],
  [
    'an invariant of the profile',
    usLikePatient({ deceasedBoolean: true }),
    'Constraint us-like-1 not met: A deceased patient has a birth date',
    'Patient',
  ],
  [
    'an invariant that needs the whole of FHIRPath',
    usLikePatient({ name: [{ family: 'Shaw 2' }] }),
    'Constraint us-like-2 not met: A family name has no digits',
    'Patient.name[0]',
  ],
  [
    'a slice discriminated by a pattern',
    usLikeBloodPressure([pressure('8480-6'), pressure('8480-6')]),
    "Incorrect number of values provided for slice 'systolic': expected 1..1, but found 2",
    'Observation.component',
  ],
  [
    'a value of a type that a slice excludes',
    usLikeBloodPressure([pressure('8480-6'), pressure('8462-4', { valueString: 'high' })]),
    'Invalid additional property "valueString"',
    'Observation.component[1].valueString',
  ],
  [
    'a value outside of closed slices',
    usLikeBloodPressure([pressure('8480-6'), pressure('8462-4'), pressure('8867-4')]),
    'Value is in none of the slices that are allowed',
    'Observation.component[2]',
  ],
  [
    'a profile of another type',
    aPatient({ meta: { profile: [BLOOD_PRESSURE_PROFILE] } }),
    `Profile ${BLOOD_PRESSURE_PROFILE} is for Observation`,
    'Patient.meta.profile',
  ],
]
for (const [name, resource, message, expression] of cases) {
  t.test(`rejects ${name} with its path`, async (t) => {
    const { status, body } = await send(admin, resource)
    t.equal(status, 400)
    const found = body.issue.map(({ details, expression }) => [details.text, expression?.[0]])
    t.ok(
      found.some(([a, b]) => a === message && b === expression),
      JSON.stringify(found),
    )
  })
}

t.test('reports the expression of an invariant', async (t) => {
  const { body } = await send(admin, usLikePatient({ deceasedBoolean: true }))
  t.match(body.issue, [
    {
      severity: 'error',
      code: 'invariant',
      diagnostics: '{"fhirpath":"deceased.exists() implies birthDate.exists()"}',
    },
  ])
})

t.test('knows profiles of the standard in every Project', async (t) => {
  const profile = ['http://hl7.org/fhir/StructureDefinition/bodyweight']
  const { status, body } = await send(admin, {
    resourceType: 'Observation',
    meta: { profile },
    status: 'final',
    code: { text: 'weight' },
  })
  t.equal(status, 400)
  const found = body.issue.map(({ details, expression }) => `${expression} ${details.text}`)
  t.ok(found.includes('Observation.subject Missing required property'), found.join('\n'))
})

t.test('accepts an unknown profile', async (t) => {
  const profile = ['http://example.org/fhir/StructureDefinition/nobodys']
  t.equal((await send(admin, aPatient({ meta: { profile } }))).status, 201)
})

t.test('validates updates and patches against the profile', async (t) => {
  const patient = await admin.create(usLikePatient())
  const { gender: _gender, ...without } = patient
  t.equal((await admin.put(`Patient/${patient.id}`, without)).status, 400)
  const removed = await admin.patch<OperationOutcome>(`Patient/${patient.id}`, [
    { op: 'remove', path: '/gender' },
  ])
  t.equal(removed.status, 400)
  t.match(removed.body.issue, [{ expression: ['Patient.gender'] }])
})

t.test('validates bundle entries against the profile', async (t) => {
  for (const type of ['batch', 'transaction']) {
    const entry = [
      {
        request: { method: 'POST', url: 'Patient' },
        resource: usLikePatient({ gender: undefined }),
      },
    ]
    const { text } = await admin.post('', { resourceType: 'Bundle', type, entry })
    t.match(text, 'Missing required property', type)
  }
})

t.test('hides profiles from other Projects', async (t) => {
  const other = await botica.createTenant()
  t.equal((await send(other.admin, usLikePatient({ gender: undefined }))).status, 201)
})

t.test('uses profiles of a linked Project', async (t) => {
  const { admin: linked, project } = await botica.createTenant()
  const link = [{ project: { reference: `Project/${botica.project.id}` } }]
  const stored = await botica.superAdmin.get(`Project/${project.id}`)
  const { status } = await botica.superAdmin.put(`Project/${project.id}`, { ...stored.body, link })
  t.equal(status, 200)
  await until(async () => {
    return (await send(linked, usLikePatient({ gender: undefined }))).status === 400
  }, 60_000)
})

t.test('uses the requested version, otherwise the highest', async (t) => {
  const { admin } = await botica.createTenant()
  const element = [{ id: 'Patient', path: 'Patient' }]
  const loose = patientProfile({ version: '1.9.0', differential: { element } })
  await admin.create(patientProfile({ version: '1.10.0' }))
  await admin.create(loose)
  const without = (profile: string) =>
    usLikePatient({ gender: undefined, meta: { profile: [profile] } })
  t.equal((await send(admin, without(PATIENT_PROFILE))).status, 400)
  t.equal((await send(admin, without(`${PATIENT_PROFILE}|1.10.0`))).status, 400)
  t.equal((await send(admin, without(`${PATIENT_PROFILE}|1.9.0`))).status, 201)
  t.equal((await send(admin, without(`${PATIENT_PROFILE}|7`))).status, 201)
})

t.test(
  'applies a changed profile at once locally and within seconds in other processes',
  async (t) => {
    const { admin } = await botica.createTenant()
    const elsewhere = await botica.startWeb()
    const there = `${elsewhere}fhir/R4/Patient`
    const without = usLikePatient({ gender: undefined })
    const profile = await admin.create(patientProfile())
    t.equal((await send(admin, without)).status, 400)
    t.equal((await admin.post(there, without)).status, 400)
    await admin.put(`StructureDefinition/${profile.id}`, {
      ...profile,
      differential: { element: [{ id: 'Patient', path: 'Patient' }] },
    })
    t.equal((await send(admin, without)).status, 201)
    await until(async () => (await admin.post(there, without)).status === 201, 60_000)
    await admin.put(`StructureDefinition/${profile.id}`, profile)
    t.equal((await send(admin, without)).status, 400)
    await admin.del(`StructureDefinition/${profile.id}`)
    t.equal((await send(admin, without)).status, 201)
  },
)

t.test('adds the default profile of a Project', async (t) => {
  const { admin, project } = await botica.createTenant()
  await admin.create(patientProfile())
  await admin.create(raceExtension())
  const stored = await botica.superAdmin.get(`Project/${project.id}`)
  await botica.superAdmin.put(`Project/${project.id}`, {
    ...stored.body,
    defaultProfile: [{ resourceType: 'Patient', profile: [PATIENT_PROFILE] }],
  })
  await until(
    async () => (await send(admin, aPatient({ gender: undefined }))).status === 400,
    20_000,
  )
  const { meta } = await admin.create(usLikePatient({ meta: undefined }))
  t.same(meta?.profile, [PATIENT_PROFILE])
  const own = { profile: ['http://example.org/own'] }
  const free = await admin.create(aPatient({ gender: undefined, meta: own }))
  t.same(free.meta?.profile, own.profile)
})

t.test('ignores an unusable profile', async (t) => {
  const { admin } = await botica.createTenant()
  const url = 'http://example.org/odd'
  const element = [
    { id: 'Patient', path: 'Patient', constraint: [constraint('odd-1', 'name.where(')] },
    { id: 'Patient.nothing', path: 'Patient.nothing', min: 1 },
    { id: 'Patient.name.family.x.y', path: 'Patient.name.family.x.y', min: 1 },
  ]
  await admin.create(patientProfile({ url, differential: { element } }))
  t.equal((await send(admin, aPatient({ meta: { profile: [url] } }))).status, 201)
  const loop = 'http://example.org/loop'
  await admin.create(patientProfile({ url: loop, baseDefinition: loop }))
  t.equal((await send(admin, usLikePatient({ meta: { profile: [loop] } }))).status, 201)
})

t.test('ignores elements of a profile that a strict Project would reject', async (t) => {
  const { admin, project } = await botica.createTenant()
  const path = `Project/${project.id}`
  const { body } = await botica.superAdmin.get(path)
  await botica.superAdmin.put(path, { ...body, strictMode: false })
  botica.services.principals.forget()
  const deceased = 'Patient.deceased[x]'
  const slicing = (discriminator: object) => ({ rules: 'open', discriminator: [discriminator] })
  const url = 'http://example.org/incomplete'
  const element = [
    { min: 1 },
    { id: 'Patient.name', path: 'Patient.name', slicing: slicing({ type: 'value' }) },
    { id: deceased, path: deceased, slicing: slicing({ type: 'type', path: '$this' }) },
    { id: `${deceased}:x`, path: deceased, sliceName: 'x', type: [{ profile: ['urn:x'] }] },
    { id: 'Patient.gender', path: 'Patient.gender', min: 1 },
  ]
  await admin.create(patientProfile({ url, differential: { element } }))
  const sent = aPatient({ gender: undefined, deceasedBoolean: true, meta: { profile: [url] } })
  const answer = await admin.post('Patient', sent, { Prefer: 'return=OperationOutcome' })
  t.equal(answer.status, 201, answer.text)
  t.match(answer.body, {
    issue: [{ severity: 'information' }, { severity: 'warning', expression: ['Patient.gender'] }],
  })
})

t.test('stops a tenant’s invariant that is too costly', async (t) => {
  const { admin } = await botica.createTenant()
  const url = 'http://example.org/costly'
  const deep = `name.given${".replace('a','aa')".repeat(60)}.exists()`
  const element = [{ id: 'Patient', path: 'Patient', constraint: [constraint('deep', deep)] }]
  await admin.create(patientProfile({ url, differential: { element } }))
  const sent = aPatient({ meta: { profile: [url] }, name: [{ given: ['a'] }] })
  const { status, body } = await send(admin, sent)
  t.equal(status, 400)
  t.match(body.issue, [{ code: 'too-costly' }])
})

t.test('counts a slice of a hundred thousand values', async (t) => {
  const identifier = Array.from({ length: 100_000 }, () => mrn({ type: undefined }))
  const { status, body } = await send(admin, usLikePatient({ identifier }))
  t.equal(status, 400)
  const texts = body.issue.map(({ details }) => details.text).join()
  t.match(texts, /but found 100000|takes? too long/)
})

function constraint(key: string, expression: string): object {
  return { key, severity: 'error', human: key, expression }
}

t.test('rejects too many claimed profiles', async (t) => {
  const profile = Array.from({ length: 21 }, (_, i) => `http://example.org/p${i}`)
  const { status, body } = await send(admin, aPatient({ meta: { profile } }))
  t.equal(status, 400)
  t.match(body.issue, [{ code: 'too-costly', expression: ['meta.profile'] }])
})

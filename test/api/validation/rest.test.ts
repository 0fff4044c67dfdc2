import t from 'tap'
import { openBotica, type Tenant, until } from '../../fixtures/botica.ts'
import type { OperationOutcome, Resource } from '../../fixtures/fhir.ts'
import {
  anObservation,
  aPatient,
  r4ExampleTexts,
  syntheaBundles,
} from '../../fixtures/resources.ts'

const botica = await openBotica(t)
const { admin } = botica

type Row = readonly [
  name: string,
  resource: Resource | string,
  code: string,
  text: string,
  expression: string,
]

const patient = (members: object): Resource => ({ resourceType: 'Patient', ...members })
const ext1 = 'Must have either extensions or value[x], not both'

const rows: readonly Row[] = [
  [
    'an unknown property',
    patient({ x: 1 }),
    'structure',
    'Invalid additional property "x"',
    'Patient.x',
  ],
  [
    'a required property that is absent',
    { resourceType: 'Observation', status: 'final' },
    'structure',
    'Missing required property',
    'Observation.code',
  ],
  [
    'one value where there may be several',
    patient({ name: { family: 'x' } }),
    'structure',
    'Expected array of values for property',
    'Patient.name',
  ],
  [
    'several values where there is one',
    patient({ gender: ['male'] }),
    'structure',
    'Expected single value for property',
    'Patient.gender',
  ],
  [
    'an empty object',
    patient({ name: [{}] }),
    'structure',
    'Invalid empty non-primitive value',
    'Patient.name[0]',
  ],
  [
    'a blank string',
    patient({ name: [{ family: ' ' }] }),
    'structure',
    'String must contain non-whitespace content',
    'Patient.name[0].family',
  ],
  ['null', patient({ gender: null }), 'structure', 'Invalid null value', 'Patient.gender'],
  [
    'a number for a string',
    patient({ name: [{ family: 5 }] }),
    'structure',
    'Invalid JSON type: expected string, but got number',
    'Patient.name[0].family',
  ],
  [
    'a date of another format',
    patient({ birthDate: '1/2/1980' }),
    'structure',
    'Invalid date format',
    'Patient.birthDate',
  ],
  [
    'a dateTime of another format',
    patient({ deceasedDateTime: '2020-01-01 10:00' }),
    'structure',
    'Invalid dateTime format',
    'Patient.deceasedDateTime',
  ],
  [
    'a string above 1 MB',
    patient({ name: [{ text: 'x'.repeat(1_048_577) }] }),
    'structure',
    'String cannot be larger than 1 MB',
    'Patient.name[0].text',
  ],
  [
    'a fraction for an integer',
    patient({ multipleBirthInteger: 1.5 }),
    'structure',
    'Expected number to be an integer',
    'Patient.multipleBirthInteger',
  ],
  [
    'zero for a positive integer',
    patient({ telecom: [{ rank: 0 }] }),
    'structure',
    'Expected number to be positive',
    'Patient.telecom[0].rank',
  ],
  [
    'a negative number for an unsigned one',
    patient({ photo: [{ size: -1 }] }),
    'structure',
    'Expected number to be non-negative',
    'Patient.photo[0].size',
  ],
  [
    'a number beyond all numbers',
    '{"resourceType":"Patient","multipleBirthInteger":1e999}',
    'structure',
    'Invalid numeric value',
    'Patient.multipleBirthInteger',
  ],
  [
    'a contained resource inside a contained one',
    patient({
      contained: [
        {
          resourceType: 'Organization',
          id: 'o',
          name: 'o',
          contained: [{ resourceType: 'Organization', id: 'p', name: 'p' }],
        },
      ],
    }),
    'invariant',
    'Constraint dom-2 not met: If the resource is contained in another resource, it SHALL NOT contain nested Resources',
    'Patient',
  ],
  [
    'a version of a contained resource',
    patient({
      contained: [{ resourceType: 'Organization', id: 'o', name: 'o', meta: { versionId: '1' } }],
    }),
    'invariant',
    'Constraint dom-4 not met: If a resource is contained in another resource, it SHALL NOT have a meta.versionId or a meta.lastUpdated',
    'Patient',
  ],
  [
    'a reference to nothing contained',
    patient({ managingOrganization: { reference: '#o' } }),
    'invariant',
    'Constraint ref-1 not met: SHALL have a contained resource if a local reference is provided',
    'Patient.managingOrganization',
  ],
  [
    'an extension with a value and parts',
    patient({
      extension: [{ url: 'u', valueString: 'x', extension: [{ url: 'v', valueCode: 'y' }] }],
    }),
    'invariant',
    `Constraint ext-1 not met: ${ext1}`,
    'Patient.extension[0]',
  ],
  [
    'a period that ends before it starts',
    patient({ name: [{ text: 'x', period: { start: '2021', end: '2020' } }] }),
    'invariant',
    'Constraint per-1 not met: If present, start SHALL have a lower value than end',
    'Patient.name[0].period',
  ],
  [
    'a narrative with a script',
    patient({ text: { status: 'generated', div: '<div>x<script>y</script></div>' } }),
    'invariant',
    'Constraint txt-1 not met: The narrative SHALL contain only the basic html formatting elements and attributes described in chapters 7-11 (except section 4 of chapter 9) and 15 of the HTML 4.0 standard, <a> elements (either name or href), images and internally contained style attributes',
    'Patient.text.div',
  ],
  [
    'a comparator of a simple quantity',
    anObservation('Patient/1', {
      referenceRange: [{ low: { value: 1, comparator: '<' } }],
    }),
    'invariant',
    'Constraint sqty-1 not met: The comparator is not used on a SimpleQuantity',
    'Observation.referenceRange[0].low',
  ],
  [
    'a count that is not an integer, which plain code does not check',
    patient({
      extension: [
        { url: 'u', valueCount: { value: 1.5, code: '1', system: 'http://unitsofmeasure.org' } },
      ],
    }),
    'invariant',
    'Constraint cnt-3 not met: There SHALL be a code with a value of "1" if there is a value. If system is present, it SHALL be UCUM.  If present, the value SHALL be a whole number.',
    'Patient.extension[0].valueCount',
  ],
]
for (const [name, resource, code, text, expression] of rows) {
  t.test(`rejects ${name} with its text and path`, async (t) => {
    const type = typeof resource === 'string' ? 'Patient' : resource.resourceType
    const headers = { 'Content-Type': 'application/fhir+json' }
    const { status, body } = await admin.post<OperationOutcome>(type, resource, headers)
    t.equal(status, 400)
    t.equal(body.resourceType, 'OperationOutcome')
    const [first] = body.issue
    t.match(first, { severity: 'error', code, expression: [expression] })
    t.equal(first?.details.text, text)
    const isInvariant = code === 'invariant'
    t.equal(first?.diagnostics?.startsWith('{"fhirpath":"'), isInvariant || undefined)
  })
}

t.test('reports all errors of one stage together', async (t) => {
  const { body } = await admin.post<OperationOutcome>(
    'Patient',
    patient({ x: 1, gender: null, contact: [{ gender: 'male' }] }),
  )
  t.same(
    body.issue.map(({ expression }) => expression?.[0]),
    ['Patient.x', 'Patient.gender'],
  )
})

t.test('returns at most 100 issues', async (t) => {
  const name = Array.from({ length: 150 }, () => ({ x: 1 }))
  const { body } = await admin.post<OperationOutcome>('Patient', patient({ name }))
  t.equal(body.issue.length, 100)
})

t.test('rejects two types of one choice', async (t) => {
  const { status, body } = await admin.post<OperationOutcome>(
    'Patient',
    patient({ deceasedBoolean: true, deceasedDateTime: '2020' }),
  )
  t.equal(status, 400)
  t.match(body.issue[0], {
    severity: 'error',
    details: {
      text: 'Conflicting choice of type properties: "deceasedBoolean", "deceasedDateTime"',
    },
    expression: ['Patient.deceasedDateTime'],
  })
})

/** Creates a Project with other settings in effect. */
async function tenantWith(members: object, isInForce: (tenant: Tenant) => Promise<boolean>) {
  const tenant = await botica.createTenant()
  const path = `Project/${tenant.project.id}`
  const { body } = await botica.superAdmin.get(path)
  const { status } = await botica.superAdmin.put(path, { ...body, ...members })
  if (status !== 200) throw new Error(`The Project could not be changed: ${status}`)
  await until(() => isInForce(tenant), 60_000)
  return tenant.admin
}

t.test('checks only the JSON schema without strict mode', async (t) => {
  const blank = patient({ gender: '' })
  const lenient = await tenantWith(
    { strictMode: false },
    async ({ admin }) => (await admin.post('Patient', blank)).status === 201,
  )
  for (const wrong of [
    { x: 1 },
    { active: 'yes' },
    { birthDate: '1/2/80' },
    { name: aPatient() },
  ]) {
    t.equal((await lenient.post('Patient', patient(wrong))).status, 400, JSON.stringify(wrong))
  }
  const sent = patient({
    gender: '',
    name: [{}, { family: 'x', given: null }],
    contact: [{ gender: 'male' }],
  })
  const { status, body } = await lenient.post('Patient', sent)
  t.equal(status, 201)
  const { id: _id, meta: _meta, ...stored } = body
  t.same(stored, patient({ name: [{ family: 'x' }], contact: [{ gender: 'male' }] }))
  const warned = await lenient.post<OperationOutcome>('Patient', sent, {
    Prefer: 'return=OperationOutcome',
  })
  t.match(warned.body.issue[1], { severity: 'warning', code: 'invariant' })
})

const CODES: readonly (readonly [path: string, resource: Resource, binding: string])[] = [
  ['Patient.gender', patient({ gender: 'odd' }), 'administrative-gender'],
  [
    'Patient.contact[0].telecom[0].system',
    patient({ contact: [{ telecom: [{ system: 'pigeon', value: '1' }] }] }),
    'contact-point-system',
  ],
  [
    'Condition.clinicalStatus',
    {
      resourceType: 'Condition',
      subject: { reference: 'Patient/1' },
      clinicalStatus: { coding: [{ system: 'urn:other', code: 'active' }] },
    },
    'condition-clinical',
  ],
]

t.test('rejects codes outside of a required binding', async (t) => {
  const anyMode = await tenantWith(
    { strictMode: false },
    async ({ admin }) => (await admin.post('Patient', patient({ gender: '' }))).status === 201,
  )
  const taking = await tenantWith(
    { setting: [{ name: 'validateTerminology', valueString: 'off' }] },
    async ({ admin }) => (await admin.post('Patient', patient({ gender: 'odd' }))).status === 201,
  )
  for (const [path, resource, binding] of CODES) {
    const fault = {
      code: 'value',
      details: { text: new RegExp(`did not satisfy .*/${binding}$`) },
      expression: [path],
    }
    const refused = { status: 400, body: { issue: [{ severity: 'error', ...fault }] } }
    const { resourceType: type } = resource
    for (const client of [admin, anyMode]) {
      t.match(await client.post(type, resource), refused, path)
      t.match(await client.post(`${type}/$validate`, resource), refused, path)
    }
    const kept = await taking.post<OperationOutcome>(type, resource, {
      Prefer: 'return=OperationOutcome',
    })
    t.equal(kept.status, 201, path)
    t.match(kept.body.issue[1], { severity: 'warning', ...fault }, path)
    const asked = await taking.post<OperationOutcome>(`${type}/$validate`, resource)
    t.equal(asked.status, 200, path)
    t.match(asked.body.issue[1], { severity: 'warning', ...fault }, path)
  }
})

t.test('codes that it lists, texts alone and absent codes are stored', async (t) => {
  const absent = [
    { url: 'http://hl7.org/fhir/StructureDefinition/data-absent-reason', valueCode: 'unknown' },
  ]
  for (const resource of [
    aPatient(),
    patient({ _gender: { extension: absent } }),
    {
      resourceType: 'AllergyIntolerance',
      patient: { reference: 'Patient/1' },
      clinicalStatus: {
        coding: [
          { system: 'urn:other', code: 'active' },
          {
            system: 'http://terminology.hl7.org/CodeSystem/allergyintolerance-clinical',
            code: 'active',
          },
        ],
      },
      verificationStatus: { text: 'certain' },
    },
  ]) {
    const { status, text } = await admin.post(resource.resourceType, resource)
    t.equal(status, 201, text)
  }
})

t.test(
  'every code of the published examples and of synthetic records is a known one',
  async (t) => {
    const examples = (await r4ExampleTexts()).map((text): Resource => JSON.parse(text))
    const entries = (await syntheaBundles()).flatMap(({ entry }) => entry)
    const sample = entries.filter((_, index) => index % 20 === 0).map(({ resource }) => resource)
    for (const resource of [...examples, ...sample]) {
      const { resourceType: type } = resource
      const { status, body } = await admin.post<OperationOutcome>(`${type}/$validate`, resource)
      const faults = body.issue.filter(({ severity }) => severity === 'error')
      t.same(status, type === 'EventDefinition' ? 400 : 200, `${type} ${JSON.stringify(faults[0])}`)
    }
  },
)

/** Operations that make resources of definitions: $extract, $apply, $evaluate-measure. */
import t from 'tap'
import type { Resource } from '../../shared/fhir/resource.ts'
import { openBotica } from '../fixtures/botica.ts'
import { memberUnder } from '../fixtures/policy/policy.ts'
import { aPatient } from '../fixtures/resources.ts'

const botica = await openBotica(t)
const { admin } = botica
const stranger = (await botica.createTenant()).admin
const patient = await admin.create(aPatient({ gender: 'female' }))
const subject = `Patient/${patient.id}`
const parametersOf = (...parameter: object[]) => ({ resourceType: 'Parameters', parameter })

type Loose = Resource & Readonly<Record<string, unknown>>
interface Made extends Resource {
  readonly entry?: readonly {
    readonly fullUrl: string
    readonly resource: Loose
    readonly request: object
  }[]
}

const SDC = 'http://hl7.org/fhir/uv/sdc/StructureDefinition/sdc-questionnaire-'
const LOINC = 'http://loinc.org'
const observe = (valueBoolean: boolean) => ({ url: `${SDC}observationExtract`, valueBoolean })

t.test('$extract makes Observations of answers whose items say so', async (t) => {
  const url = 'urn:forms:vitals'
  const questionnaire = {
    resourceType: 'Questionnaire',
    url,
    status: 'active',
    extension: [observe(true)],
    item: [
      {
        linkId: 'weight',
        type: 'decimal',
        code: [{ system: LOINC, code: '29463-7' }],
        extension: [
          {
            url: 'http://hl7.org/fhir/StructureDefinition/questionnaire-unit',
            valueCoding: { system: 'http://unitsofmeasure.org', code: 'kg', display: 'kg' },
          },
        ],
      },
      { linkId: 'note', type: 'string' },
      {
        linkId: 'group',
        type: 'group',
        extension: [observe(false)],
        item: [{ linkId: 'quiet', type: 'boolean', code: [{ system: LOINC, code: '1' }] }],
      },
      { linkId: 'smoker', type: 'choice', code: [{ system: LOINC, code: '72166-2' }] },
    ],
  }
  await admin.create(questionnaire)
  const response = await admin.create({
    resourceType: 'QuestionnaireResponse',
    status: 'completed',
    questionnaire: url,
    subject: { reference: subject },
    authored: '2024-01-02T03:04:05Z',
    item: [
      { linkId: 'weight', answer: [{ valueDecimal: 71.5 }] },
      { linkId: 'note', answer: [{ valueString: 'fine' }] },
      { linkId: 'group', item: [{ linkId: 'quiet', answer: [{ valueBoolean: true }] }] },
      { linkId: 'smoker', answer: [{ valueCoding: { code: 'never' } }] },
    ],
  })
  const path = `QuestionnaireResponse/${response.id}/$extract`
  const { status, body } = await admin.get<Made>(path)
  t.equal(status, 200)
  t.match(body, {
    type: 'transaction',
    entry: [
      {
        request: { method: 'POST', url: 'Observation' },
        resource: {
          status: 'final',
          code: { coding: [{ code: '29463-7' }] },
          subject: { reference: subject },
          effectiveDateTime: '2024-01-02T03:04:05Z',
          valueQuantity: { value: 71.5, code: 'kg' },
          derivedFrom: [{ reference: `QuestionnaireResponse/${response.id}` }],
        },
      },
      { resource: { valueCodeableConcept: { coding: [{ code: 'never' }] } } },
    ],
  })
  t.equal(body.entry?.length, 2)
  t.equal((await admin.get<{ total: number }>('Observation?_total=accurate')).body.total, 0)
  t.equal((await admin.post('', body)).status, 200, 'it can be carried out as it is')
  t.equal((await stranger.get(path)).status, 404)

  const { client } = await memberUnder(botica, {
    entries: [{ resourceType: 'QuestionnaireResponse' }],
  })
  t.equal((await client.get(path)).status, 403, 'the Questionnaire is read as the caller')
})

const context = (valueString: string) => ({ url: `${SDC}templateExtractContext`, valueString })
const value = (valueString: string) => ({
  extension: [{ url: `${SDC}templateExtractValue`, valueString }],
})

const templates = {
  resourceType: 'Questionnaire',
  status: 'active',
  contained: [
    {
      resourceType: 'Patient',
      id: 'who',
      name: [
        {
          extension: [context("item.where(linkId = 'name')")],
          _family: value("item.where(linkId = 'family').answer.value.first()"),
          given: ['?'],
          _given: [value("item.where(linkId = 'given').answer.value")],
        },
      ],
      _birthDate: value("item.where(linkId = 'birth').answer.value"),
      gender: 'unknown',
    },
    {
      resourceType: 'RelatedPerson',
      id: 'contact',
      patient: { _reference: value('%patientId') },
      name: [{ _text: value("item.where(linkId = 'contact-name').answer.value") }],
    },
  ],
  extension: [
    { url: `${SDC}extractAllocateId`, valueString: 'patientId' },
    {
      url: `${SDC}templateExtract`,
      extension: [
        { url: 'template', valueReference: { reference: '#who' } },
        { url: 'fullUrl', valueString: '%patientId' },
        {
          url: 'ifNoneExist',
          valueString: "'birthdate=' + item.where(linkId = 'birth').answer.value.toString()",
        },
      ],
    },
  ],
  item: [
    {
      linkId: 'name',
      type: 'group',
      item: [
        { linkId: 'family', type: 'string' },
        { linkId: 'given', type: 'string', repeats: true },
      ],
    },
    { linkId: 'birth', type: 'date' },
    {
      linkId: 'contacts',
      type: 'group',
      repeats: true,
      extension: [
        {
          url: `${SDC}templateExtract`,
          extension: [{ url: 'template', valueReference: { reference: '#contact' } }],
        },
      ],
      item: [{ linkId: 'contact-name', type: 'string' }],
    },
  ],
}
const contact = (text: string) => ({
  linkId: 'contacts',
  item: [{ linkId: 'contact-name', answer: [{ valueString: text }] }],
})
const answered = {
  resourceType: 'QuestionnaireResponse',
  status: 'completed',
  item: [
    {
      linkId: 'name',
      item: [
        { linkId: 'family', answer: [{ valueString: 'Smith' }] },
        { linkId: 'given', answer: [{ valueString: 'Ann' }, { valueString: 'Lee' }] },
      ],
    },
    { linkId: 'birth', answer: [{ valueDate: '1990-01-02' }] },
    contact('Bob'),
    contact('Eve'),
  ],
}
const extraction = (response: object, questionnaire: object) =>
  parametersOf(
    { name: 'questionnaire-response', resource: response },
    { name: 'questionnaire', resource: questionnaire },
  )
const ask = (body: object) => admin.post<Made>('QuestionnaireResponse/$extract', body)

t.test('$extract fills the templates of a Questionnaire', async (t) => {
  const { status, body } = await ask(extraction(answered, templates))
  t.equal(status, 200, JSON.stringify(body))
  const [who, ...contacts] = body.entry ?? []
  t.match(who?.fullUrl, /^urn:uuid:/)
  t.match(who?.request, { method: 'POST', url: 'Patient', ifNoneExist: 'birthdate=1990-01-02' })
  t.same(who?.resource, {
    resourceType: 'Patient',
    name: [{ family: 'Smith', given: ['Ann', 'Lee'] }],
    gender: 'unknown',
    birthDate: '1990-01-02',
  })
  t.same(
    contacts.map(({ resource }) => resource),
    ['Bob', 'Eve'].map((text) => ({
      resourceType: 'RelatedPerson',
      patient: { reference: who?.fullUrl },
      name: [{ text }],
    })),
  )
  const empty = await ask(extraction({ ...answered, item: [] }, templates))
  t.same(
    empty.body.entry?.map(({ resource }) => resource),
    [{ resourceType: 'Patient', gender: 'unknown' }],
  )
})

t.test('$extract refuses what it cannot do, and what costs too much', async (t) => {
  const withRoot = (...extension: object[]) => ({ ...templates, extension })
  const templated = (valueString: string) => ({
    ...templates,
    contained: [{ resourceType: 'Patient', id: 'who', _birthDate: value(valueString) }],
  })
  const many = { ...answered, item: Array.from({ length: 300 }, () => contact('x')) }
  for (const [why, body] of [
    ['nothing', parametersOf()],
    ['no Questionnaire', answered],
    ['unknown Questionnaire', { ...answered, questionnaire: 'urn:forms:none' }],
    ['definitions', extraction(answered, withRoot({ url: `${SDC}definitionExtract` }))],
    ['no template', extraction(answered, { ...templates, contained: [] })],
    ['no expression', extraction(answered, templated('item.where('))],
    ['a costly one', extraction(answered, templated(`'a'${".replace('a', 'aa')".repeat(40)}`))],
    ['many', extraction(many, templates)],
  ] as const) {
    t.equal((await ask(body)).status, 400, why)
  }
})

t.test('$apply makes a CarePlan with the Tasks and requests of a plan', async (t) => {
  await admin.create({ resourceType: 'Questionnaire', url: 'urn:forms:risk', status: 'active' })
  await admin.create({
    resourceType: 'ActivityDefinition',
    url: 'urn:orders:hba1c',
    status: 'active',
    kind: 'ServiceRequest',
    code: { coding: [{ system: LOINC, code: '4548-4' }] },
  })
  const applicability = (expression: string, language = 'text/fhirpath') => [
    { kind: 'applicability', expression: { language, expression } },
  ]
  const plan = {
    resourceType: 'PlanDefinition',
    url: 'urn:plans:screening',
    version: '2',
    status: 'active',
    action: [
      { title: 'Order HbA1c', definitionCanonical: 'urn:orders:hba1c' },
      { title: 'Ask', definitionCanonical: 'urn:forms:risk' },
      { title: 'Men', condition: applicability("gender = 'male'") },
      {
        title: 'Later',
        condition: applicability("%subject.gender = 'female'"),
        action: [{ title: 'Call' }],
      },
    ],
  }
  const { id } = await admin.create(plan)
  const named = parametersOf({ name: 'subject', valueString: subject })
  const { status, body } = await admin.post<Loose>(`PlanDefinition/${id}/$apply`, named)
  t.equal(status, 200, JSON.stringify(body))
  t.match(body, {
    resourceType: 'CarePlan',
    status: 'active',
    subject: { reference: subject },
    instantiatesCanonical: ['urn:plans:screening|2'],
  })
  const [activity] = body.activity as [{ reference: { reference: string } }]
  const group = await admin.get<Loose>(activity.reference.reference)
  t.match(group.body, {
    action: [
      { title: 'Order HbA1c', resource: {} },
      { title: 'Ask', resource: {} },
      { title: 'Later', action: [{ title: 'Call', resource: {} }] },
    ],
  })
  const tasks = await admin.get<Made>(`Task?patient=${subject}&_sort=_lastUpdated`)
  t.same(tasks.body.entry?.map(({ resource }) => resource.description).sort(), [
    'Ask',
    'Call',
    'Order HbA1c',
  ])
  t.match(await admin.get(`ServiceRequest?subject=${subject}`), {
    body: { entry: [{ resource: { intent: 'order', code: { coding: [{ code: '4548-4' }] } } }] },
  })

  const apply = (planId: string, body: object, client = admin) =>
    client.post(`PlanDefinition/${planId}/$apply`, body)
  t.equal((await apply(id, parametersOf())).status, 400)
  t.equal(
    (await apply(id, parametersOf({ name: 'subject', valueString: 'Patient/none' }))).status,
    404,
  )
  t.equal((await apply(id, named, stranger)).status, 404)
  for (const [why, action] of [
    ['language', { condition: applicability('true', 'text/cql') }],
    ['definition', { definitionCanonical: 'urn:none' }],
  ] as const) {
    const wrong = await admin.create({
      ...plan,
      url: `urn:plans:${why}`,
      action: [...plan.action, action],
    })
    t.equal((await apply(wrong.id, named)).status, 400, why)
  }
  const count = await admin.get<{ total: number }>('Task?_total=accurate')
  t.equal(count.body.total, 3, 'what fails leaves nothing behind')

  const readers = ['PlanDefinition', 'Patient', 'Questionnaire', 'ActivityDefinition', 'Task']
  const entries = readers.map((resourceType) => ({ resourceType }))
  const { client } = await memberUnder(botica, { entries })
  t.equal((await apply(id, named, client)).status, 403)
  t.equal((await admin.get<{ total: number }>('Task?_total=accurate')).body.total, 3)
})

const population = (code: string, expression: string, language = 'application/x-fhir-query') => ({
  code: { coding: [{ code }] },
  criteria: { language, expression },
})
const aMeasure = (populations: object[], scoring?: string) => ({
  resourceType: 'Measure',
  status: 'active',
  url: 'urn:measures:one',
  ...(scoring === undefined ? {} : { scoring: { coding: [{ code: scoring }] } }),
  group: [{ population: populations }],
})
const PERIOD = 'periodStart=2020-01-01&periodEnd=2029-12-31'
const evaluate = (id: string, client = admin, more = '') =>
  client.get(`Measure/${id}/$evaluate-measure?${PERIOD}${more}`)

t.test('$evaluate-measure counts, and tells proportions', async (t) => {
  const tenant = (await botica.createTenant()).admin
  const people = [
    ['male', '1950-01-01', true],
    ['male', '1960-01-01', true],
    ['female', '1950-01-01', true],
    ['female', '2021-01-01', true],
    ['female', '1950-01-01', false],
  ] as const
  for (const [gender, birthDate, active] of people) {
    await tenant.create(aPatient({ gender, birthDate, active }))
  }
  const all = await tenant.create(aMeasure([population('measure-population', 'Patient')]))
  const counted = await tenant.post<Loose>(
    `Measure/${all.id}/$evaluate-measure`,
    parametersOf(
      { name: 'periodStart', valueDate: '2020-01-01' },
      { name: 'periodEnd', valueDate: '2030-01-01' },
    ),
  )
  t.match(counted, {
    status: 200,
    body: {
      resourceType: 'MeasureReport',
      type: 'summary',
      measure: 'urn:measures:one',
      group: [{ population: [{ code: { coding: [{ code: 'measure-population' }] }, count: 5 }] }],
    },
  })
  t.equal((await tenant.get(`MeasureReport/${counted.body.id}`)).status, 200)

  const share = await tenant.create(
    aMeasure(
      [
        population('initial-population', 'Patient?active=true'),
        population('denominator', 'Patient?birthdate=lt{{%periodStart}}'),
        population('denominator-exclusion', 'Patient?birthdate=1960-01-01'),
        population('numerator', 'Patient?gender=female,other'),
      ],
      'proportion',
    ),
  )
  const report = await evaluate(share.id, tenant)
  t.match(report.body, {
    group: [
      {
        population: [{ count: 4 }, { count: 3 }, { count: 1 }, { count: 1 }],
        measureScore: { value: 0.5 },
      },
    ],
  })
  t.equal(report.body.id, undefined, 'GET stores nothing')
  t.equal((await tenant.get<{ total: number }>('MeasureReport?_total=accurate')).body.total, 1)
  t.equal((await evaluate(share.id, stranger)).status, 404)
})

t.test(
  '$evaluate-measure counts what its caller may read, of one patient where it is asked so',
  async (t) => {
    const { id } = await admin.create(aMeasure([population('measure-population', 'Patient')]))
    await admin.create(aPatient({ gender: 'male' }))
    const of = (answer: { body: Resource }) =>
      JSON.stringify(answer.body.group).match(/"count":(\d+)/)?.[1]
    t.equal(of(await evaluate(id, admin, `&subject=${subject}`)), '1')
    const { client } = await memberUnder(botica, {
      entries: [
        { resourceType: 'Measure' },
        { resourceType: 'Patient', criteria: 'Patient?gender=male' },
      ],
    })
    t.equal(of(await evaluate(id, client)), '1')
    t.equal((await evaluate(id, client, `&subject=${subject}`)).status, 404)
    t.equal((await client.post(`Measure/${id}/$evaluate-measure?${PERIOD}`)).status, 403)
    for (const wrong of [
      population('numerator', 'define', 'text/cql'),
      population('numerator', 'Nothing?x=1'),
      population('numerator', 'Patient?nothing=1'),
      population('numerator', 'Patient?gender={{%secret}}'),
    ]) {
      const measure = await admin.create(aMeasure([wrong]))
      t.equal((await evaluate(measure.id)).status, 400, wrong.criteria.expression)
    }
    t.equal((await admin.get(`Measure/${id}/$evaluate-measure`)).status, 400)
  },
)

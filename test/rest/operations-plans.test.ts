/** $apply and $evaluate-measure: resources and figures of definitions. */
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

const LOINC = 'http://loinc.org'

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

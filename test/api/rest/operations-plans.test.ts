/** `$apply`, and operations on published examples. */
import { readFileSync } from 'node:fs'
import t from 'tap'
import { openBotica } from '../../fixtures/botica.ts'
import type { Resource } from '../../fixtures/fhir.ts'
import type { Raw } from '../../fixtures/oracle/values.ts'
import { memberUnder } from '../../fixtures/policy/policy.ts'
import {
  aParameters,
  aPatient,
  type LooseBundle,
  type LooseResource,
} from '../../fixtures/resources.ts'

const botica = await openBotica(t)
const { admin } = botica
const stranger = (await botica.createTenant()).admin
const patient = await admin.create(aPatient({ gender: 'female' }))
const subject = `Patient/${patient.id}`

const LOINC = 'http://loinc.org'

t.test('creates a CarePlan with Tasks and requests by $apply', async (t) => {
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
  const named = aParameters({ name: 'subject', valueString: subject })
  const { status, body } = await admin.post<LooseResource>(`PlanDefinition/${id}/$apply`, named)
  t.equal(status, 200, JSON.stringify(body))
  t.match(body, {
    resourceType: 'CarePlan',
    status: 'active',
    subject: { reference: subject },
    instantiatesCanonical: ['urn:plans:screening|2'],
  })
  const [activity] = body.activity as [{ reference: { reference: string } }]
  const group = await admin.get<LooseResource>(activity.reference.reference)
  t.match(group.body, {
    action: [
      { title: 'Order HbA1c', resource: {} },
      { title: 'Ask', resource: {} },
      { title: 'Later', action: [{ title: 'Call', resource: {} }] },
    ],
  })
  const tasks = await admin.get<LooseBundle>(`Task?patient=${subject}&_sort=_lastUpdated`)
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
  t.equal((await apply(id, aParameters())).status, 400)
  t.equal(
    (await apply(id, aParameters({ name: 'subject', valueString: 'Patient/none' }))).status,
    404,
  )
  t.equal((await apply(id, named, stranger)).status, 404)
  for (const name of ['subject', 'encounter', 'practitioner', 'organization']) {
    const others = name === 'subject' ? [] : named.parameter
    const wrong = { name, valueString: `PlanDefinition/${id}` }
    const answer = await apply(id, aParameters(...others, wrong))
    t.match(answer, { status: 400, body: { issue: [{ expression: [name] }] } }, name)
  }
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
  t.equal(count.body.total, 3, 'a failed request leaves nothing behind')

  const readers = ['PlanDefinition', 'Patient', 'Questionnaire', 'ActivityDefinition', 'Task']
  const entries = readers.map((resourceType) => ({ resourceType }))
  const { client } = await memberUnder(botica, { entries })
  t.equal((await apply(id, named, client)).status, 403)
  t.equal((await admin.get<{ total: number }>('Task?_total=accurate')).body.total, 3)
})

t.test('sets elements of a ServiceRequest by the dynamic values of its definition', async (t) => {
  const dynamic = (path: string, expression: string, language = 'text/fhirpath') => ({
    path,
    expression: { language, expression },
  })
  const qualification = [{ code: { text: 'Diabetologist' } }]
  const practitioner = await admin.create({ resourceType: 'Practitioner', qualification } as never)
  const apply = async (...dynamicValue: readonly object[]) => {
    const contained = [
      {
        resourceType: 'ActivityDefinition',
        id: 'order',
        status: 'active',
        kind: 'ServiceRequest',
        code: { text: 'HbA1c' },
        dynamicValue,
      },
    ]
    const { id } = await admin.create({
      resourceType: 'PlanDefinition',
      status: 'active',
      contained,
      action: [{ title: 'Order', definitionCanonical: '#order' }],
    } as never)
    const named = aParameters(
      { name: 'subject', valueString: subject },
      { name: 'practitioner', valueString: `Practitioner/${practitioner.id}` },
    )
    return await admin.post<LooseResource>(`PlanDefinition/${id}/$apply`, named)
  }
  const applied = await apply(
    dynamic('occurrenceDateTime', '@2026-12-01'),
    dynamic('priority', "iif(%patient.gender = 'female', 'urgent', 'routine')"),
    dynamic('patientInstruction', 'multipleBirth.ofType(integer).toString()'),
    dynamic('reasonCode', '%practitioner.qualification.code'),
  )
  t.equal(applied.status, 200, JSON.stringify(applied.body))
  const found = await admin.get<LooseBundle>(
    `ServiceRequest?subject=${subject}&occurrence=2026-12-01`,
  )
  t.equal(found.body.entry?.length, 1)
  const request = found.body.entry?.[0]?.resource
  t.match(request, { status: 'draft', occurrenceDateTime: '2026-12-01', priority: 'urgent' })
  t.match(request, { reasonCode: [{ text: 'Diabetologist' }] })
  t.notOk(request !== undefined && 'patientInstruction' in request, 'no result sets nothing')

  for (const [why, wrong, expected] of [
    ['language', dynamic('priority', "'urgent'", 'text/cql'), /dynamicValue\[0\]\.expression/],
    ['nested path', dynamic('code.text', "'x'"), /dynamicValue\[0\]\.path/],
    ['unknown element', dynamic('prioritie', "'urgent'"), /prioritie/],
    ['wrong type', dynamic('priority', '1'), /priority/],
    ['invalid expression', dynamic('priority', '(('), /./],
  ] as const) {
    const { status, text } = await apply(wrong)
    t.equal(status, 400, `${why}: ${text}`)
    t.match(text, expected, why)
  }
})

t.test('leaves out an organization as the author of a RequestGroup', async (t) => {
  const [doctor, clinic] = [
    await admin.create({ resourceType: 'Practitioner' }),
    await admin.create({ resourceType: 'Organization', name: 'Clinic' } as never),
  ].map(({ resourceType, id }) => ({ reference: `${resourceType}/${id}` }))
  const { id } = await admin.create({
    resourceType: 'PlanDefinition',
    status: 'active',
    action: [{ title: 'Call' }],
  } as never)
  const apply = async (
    names: Readonly<Record<string, { readonly reference: string } | undefined>>,
  ) => {
    const others = Object.entries(names).map(([name, who]) => ({
      name,
      valueString: String(who?.reference),
    }))
    const body = aParameters({ name: 'subject', valueString: subject }, ...others)
    const plan = await admin.post<Raw>(`PlanDefinition/${id}/$apply`, body)
    t.equal(plan.status, 200, plan.text)
    const group = await admin.get<Raw>(plan.body.activity[0].reference.reference)
    const task = await admin.get<Raw>(group.body.action[0].resource.reference)
    return [plan.body.author, group.body.author, task.body.requester]
  }
  t.same(await apply({ organization: clinic }), [clinic, undefined, clinic])
  t.same(await apply({ practitioner: doctor }), [doctor, doctor, doctor])
  t.same(await apply({ practitioner: doctor, organization: clinic }), [doctor, doctor, doctor])
})

const lines = readFileSync(new URL('../../data/operations.ndjson', import.meta.url), 'utf8').trim()
const examples = lines.split('\n').map((line): Resource => JSON.parse(line))
const [summary] = examples.filter(({ resourceType }) => resourceType === 'Bundle') as Raw[]

t.test('stores the published examples', async (t) => {
  const path = `Project/${botica.project.id}`
  const project = await botica.superAdmin.get<Raw>(path)
  const systemSetting = [{ name: 'updateAsCreate', valueBoolean: true }]
  await botica.superAdmin.put(path, { ...project.body, systemSetting })
  for (const resource of examples) {
    if (resource === summary) continue
    const put = await admin.put(`${resource.resourceType}/${resource.id}`, resource)
    t.equal(put.status, 201, put.text)
  }
})

const namesIn = ({ entry }: Raw) =>
  entry.map(({ resource }: Raw) => `${resource.resourceType}/${resource.id}`).sort()

t.test('returns the parts of the example Composition from $document', async (t) => {
  const { status, body } = await admin.get<Raw>('Composition/example/$document')
  t.equal(status, 200)
  t.equal(body.entry[0].resource.resourceType, 'Composition')
  t.same(namesIn(body), [
    'Composition/example',
    'Condition/example',
    'Condition/example2',
    'Condition/stroke',
    'Encounter/xcda',
    'Observation/example',
    'Organization/2.16.840.1.113883.19.5',
    'Patient/xcda',
    'Practitioner/xcda-author',
  ])
  t.equal((await admin.post('Bundle/$validate', body)).status, 200)
})

t.test('returns the sections of the minimal patient summary from $summary', async (t) => {
  const [composition, ...others] = summary.entry
  const entry = others.map(({ fullUrl, resource }: Raw) => {
    const { id: _, ...content } = resource
    const request = { method: 'POST', url: resource.resourceType }
    return { fullUrl, resource: content, request }
  })
  const made = await admin.post<Raw>('', { resourceType: 'Bundle', type: 'transaction', entry })
  t.equal(made.status, 200, made.text)
  const locations: string[] = made.body.entry.map(({ response }: Raw) => response.location)
  const id = /Patient\/([\w-]+)/.exec(locations.join(' '))?.[1]
  const { body } = await admin.get<Raw>(`Patient/${id}/$summary`)
  const sections = ({ section }: Raw): Record<string, number> =>
    Object.fromEntries(section.map((one: Raw) => [one.code.coding[0].code, one.entry.length]))
  t.same(sections(body.entry[0].resource), sections(composition.resource))
  const listTypes = (all: Raw[]) => new Set(all.map(({ resource }: Raw) => resource.resourceType))
  const types = listTypes(body.entry)
  for (const type of ['MedicationStatement', 'Medication', 'AllergyIntolerance', 'Condition']) {
    t.ok(types.has(type), type)
  }
  t.equal((await admin.post('Bundle/$validate', body)).status, 200)
})

t.test('creates the requests of the example order set by $apply', async (t) => {
  const parameter = [{ name: 'subject', valueString: 'Patient/example' }]
  const path = 'PlanDefinition/low-suicide-risk-order-set/$apply'
  const { status, body } = await admin.post<Raw>(path, { resourceType: 'Parameters', parameter })
  t.equal(status, 200)
  t.match(body, { resourceType: 'CarePlan', subject: { reference: 'Patient/example' } })
  const [group] = (await admin.get<Raw>('RequestGroup?subject=Patient/example')).body.entry
  t.match(group.resource.action[0], { title: 'Suicide Risk Assessment and Outpatient Management' })
  const [request] = (await admin.get<Raw>('ServiceRequest?subject=Patient/example')).body.entry
  t.match(request.resource, {
    instantiatesCanonical: [/low-suicide-risk-order-set.*#referralToMentalHealthCare$/],
    code: { coding: [{ code: '306206005' }] },
  })
  const tasks = await admin.get<Raw>('Task?patient=Patient/example&_summary=count')
  t.equal(tasks.body.total, 9)
})

t.test('assigns the subject of each part of the example form in $extract', async (t) => {
  const id = 'questionnaireresponse-sdc-profile-example-multi-subject'
  const { body } = await admin.post<Raw>(`QuestionnaireResponse/${id}/$extract`)
  const found = body.entry.map(({ resource }: Raw) => {
    const { subject, code, valueQuantity, category } = resource
    t.match(category, [{ coding: [{ code: 'vital-signs' }] }])
    return [subject.reference.slice(-6), code.coding[0].code, valueQuantity.value]
  })
  t.same(found, [
    ['/12345', '8302-2', 141],
    ['/12345', '29463-7', 42.3],
    ['123456', '8302-2', 47],
    ['123456', '29463-7', 8.7],
    ['123456', '8302-2', 109],
    ['123456', '29463-7', 27.3],
  ])
})

t.test('returns the last vital signs of the example patient from $lastn', async (t) => {
  const query = 'max=3&patient=Patient/example&category=vital-signs'
  const { body } = await admin.get<Raw>(`Observation/$lastn?${query}`)
  t.same(namesIn(body), [
    'Observation/blood-pressure',
    'Observation/body-height',
    'Observation/example',
    'Observation/heart-rate',
    'Observation/satO2',
  ])
})

t.test('finds the example patient by partial data with $match', async (t) => {
  const [patient] = examples.filter((one) => one.resourceType === 'Patient' && one.id === 'example')
  const { id: _, ...known } = patient as Raw
  const parameter = [{ name: 'resource', resource: { ...known, identifier: undefined } }]
  const { body } = await admin.post<Raw>('Patient/$match', {
    resourceType: 'Parameters',
    parameter,
  })
  t.match(body.entry, [{ resource: { id: 'example' }, search: { mode: 'match' } }])
})

/** `$extract`: resources from the answers of a form. */
import t from 'tap'
import { openBotica } from '../../fixtures/botica.ts'
import type { Untyped } from '../../fixtures/bots/bots.ts'
import { memberUnder } from '../../fixtures/policy/policy.ts'
import { aParameters, aPatient, type LooseBundle } from '../../fixtures/resources.ts'

const botica = await openBotica(t)
const { admin } = botica
const stranger = (await botica.createTenant()).admin
const patient = await admin.create(aPatient({ gender: 'female' }))
const subject = `Patient/${patient.id}`

const SDC = 'http://hl7.org/fhir/uv/sdc/StructureDefinition/sdc-questionnaire-'
const LOINC = 'http://loinc.org'
const observe = (valueBoolean: boolean) => ({ url: `${SDC}observationExtract`, valueBoolean })

t.test('extracts Observations from marked items', async (t) => {
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
  const { status, body } = await admin.get<LooseBundle>(path)
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
          given: ['Mary', '?'],
          _given: [null, value("item.where(linkId = 'given').answer.value")],
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
  aParameters(
    { name: 'questionnaire-response', resource: response },
    { name: 'questionnaire', resource: questionnaire },
  )
const ask = (body: object, client = admin) =>
  client.post<LooseBundle>('QuestionnaireResponse/$extract', body)

t.test('fills the templates of a Questionnaire', async (t) => {
  const { status, body } = await ask(extraction(answered, templates))
  t.equal(status, 200, JSON.stringify(body))
  const [who, ...contacts] = body.entry ?? []
  t.match(who?.fullUrl, /^urn:uuid:/)
  t.match(who?.request, { method: 'POST', url: 'Patient', ifNoneExist: 'birthdate=1990-01-02' })
  t.same(who?.resource, {
    resourceType: 'Patient',
    name: [{ family: 'Smith', given: ['Mary', 'Ann', 'Lee'] }],
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

t.test('rejects unsupported and too costly extractions', async (t) => {
  const withRoot = (...extension: object[]) => ({ ...templates, extension })
  const templated = (valueString: string) => ({
    ...templates,
    contained: [{ resourceType: 'Patient', id: 'who', _birthDate: value(valueString) }],
  })
  const many = { ...answered, item: Array.from({ length: 300 }, () => contact('x')) }
  for (const [why, body] of [
    ['nothing', aParameters()],
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

const variable = (name: string, language: string, expression: string) => ({
  url: 'http://hl7.org/fhir/StructureDefinition/variable',
  valueExpression: { name, language, expression },
})
const QUERY = 'application/x-fhir-query'
const fromVariables = (expression: string, variables: readonly object[]) => ({
  resourceType: 'Questionnaire',
  status: 'active',
  contained: [{ resourceType: 'Basic', id: 'template', code: { _text: value(expression) } }],
  extension: [
    ...variables,
    {
      url: `${SDC}templateExtract`,
      extension: [{ url: 'template', valueReference: { reference: '#template' } }],
    },
  ],
})
const ofPatient = {
  resourceType: 'QuestionnaireResponse',
  status: 'completed',
  subject: { reference: subject },
}
const extractBy = (questionnaire: object, client = admin) =>
  ask(extraction(ofPatient, questionnaire), client)

t.test('makes a resource for each value of the context of a template', async (t) => {
  const form = fromVariables("item.where(linkId = 'contact-name').answer.value", [])
  const [template] = form.contained
  const extension = [context("item.where(linkId = 'contacts')")]
  const made = async (...item: object[]) => {
    const contained = [{ ...template, extension }]
    const { status, body } = await ask(extraction({ ...answered, item }, { ...form, contained }))
    t.equal(status, 200, JSON.stringify(body))
    return body.entry?.map(({ resource }) => (resource as Untyped).code.text)
  }
  t.same(await made(contact('Bob'), contact('Eve')), ['Bob', 'Eve'])
  t.equal(await made(), undefined)
})

t.test('templates use variables of FHIRPath and X-FHIR-Query', async (t) => {
  const body = (display: string) => ({
    resourceType: 'Condition',
    code: { text: display },
    subject: { reference: subject },
  })
  for (const name of ['asthma', 'gout']) await admin.create(body(name))
  const variables = [
    variable('unused', QUERY, 'Patient?_id={{%patient.id}}'),
    variable('who', 'text/fhirpath', "%resource.subject.reference.replace('Patient/', '')"),
    variable('person', QUERY, 'Patient/{{%who}}'),
    variable('problems', QUERY, 'Condition?patient={{%person.id}}&_sort=_lastUpdated'),
    variable('none', QUERY, 'Condition?patient={{%resource.encounter.reference}}'),
  ]
  const questionnaire = fromVariables(
    "%person.gender & ': ' & %problems.entry.resource.code.text.join(' ') & %none.entry.count().toString()",
    variables,
  )
  const made = await extractBy(questionnaire)
  t.match(made, {
    status: 200,
    body: { entry: [{ resource: { code: { text: 'female: asthma gout0' } } }] },
  })

  const { client } = await memberUnder(botica, {
    entries: [
      { resourceType: 'QuestionnaireResponse' },
      { resourceType: 'Condition', criteria: 'Condition?code:text=gout' },
      { resourceType: 'Patient', hiddenFields: ['gender'] },
    ],
  })
  const limited = await extractBy(questionnaire, client)
  t.notMatch(limited.text, /female|asthma/, 'queries have the rights of the caller')
  t.equal((await extractBy(questionnaire, stranger)).text.includes('female'), false)
})

t.test('templates use the variables of items, which answer by item', async (t) => {
  const { contained, extension } = fromVariables('%unit & %dose & %of', [
    variable('of', 'text/fhirpath', "' of ' & %resource.status"),
  ])
  const item = (linkId: string, more: object) => ({ linkId, type: 'group', repeats: true, ...more })
  const dose = variable(
    'dose',
    'text/fhirpath',
    "item.where(linkId = 'mg').answer.value.toString()",
  )
  const questionnaire = {
    resourceType: 'Questionnaire',
    status: 'active',
    contained,
    extension: extension.slice(0, 1),
    item: [
      item('drug', {
        extension: [variable('unit', 'text/fhirpath', "'mg: '"), dose, extension[1]],
        item: [{ linkId: 'mg', type: 'integer' }],
      }),
    ],
  }
  const answer = (valueInteger: number) => ({
    linkId: 'drug',
    item: [{ linkId: 'mg', answer: [{ valueInteger }] }],
  })
  const extractFrom = (form: object, answers = [answer(5), answer(7)]) =>
    ask(extraction({ ...ofPatient, item: answers }, form))
  const made = await extractFrom(questionnaire)
  t.equal(made.status, 200, made.text)
  const texts = made.body.entry?.map(({ resource }) => (resource as Untyped).code.text)
  t.same(texts, ['mg: 5 of completed', 'mg: 7 of completed'])

  const many = Array.from({ length: 251 }, () => answer(1))
  const costly = {
    code: 'too-costly',
    details: { text: 'The variables have too many expressions' },
  }
  t.match((await extractFrom(questionnaire, many)).body, { issue: [costly] })

  const wrong = { ...dose, valueExpression: { ...dose.valueExpression, language: 'text/cql' } }
  const [drug] = questionnaire.item
  const refused = await extractFrom({
    ...questionnaire,
    item: [{ ...drug, extension: [wrong, extension[1]] }],
  })
  t.match(refused, {
    status: 400,
    body: { issue: [{ expression: ['Questionnaire.item[0].extension[0]'] }] },
  })
})

t.test('rejects queries of variables that cannot be answered', async (t) => {
  for (const [language, expression] of [
    ['text/cql', 'true'],
    [QUERY, 'Nothing?_id=1'],
    [QUERY, '/admin/projects'],
    [QUERY, 'https://example.org/Patient?_id=1'],
    [QUERY, 'Condition?unknown=1'],
    [QUERY, 'Condition?_include=Condition:patient'],
    [QUERY, 'Condition?_format=xml'],
    [QUERY, 'Condition?_cursor=x'],
    [QUERY, 'Condition?code=%ff'],
    [QUERY, 'Condition?_count=1000'],
    [QUERY, "Condition?patient={{'a'.}}"],
  ] as const) {
    const made = await extractBy(fromVariables('%x', [variable('x', language, expression)]))
    t.equal(made.status, 400, `${expression}: ${made.text}`)
  }
  const open = variable('x', QUERY, `Condition?unknown=${'{{'.repeat(100_000)}`)
  const started = performance.now()
  t.equal((await extractBy(fromVariables('%x', [open]))).status, 400)
  t.ok(performance.now() - started < 10_000, 'does not read each of many braces to the end')
  const many = Array.from({ length: 11 }, (_, i) => variable(`x${i}`, QUERY, 'Patient?_id=1'))
  const uses = many.map(({ valueExpression: { name } }) => `%${name}`).join(' | ')
  t.equal((await extractBy(fromVariables(uses, many))).status, 400)

  const parts = Array.from({ length: 501 }, (_, i) => `{{${i} + 1}}`).join('')
  const chain = Array.from({ length: 501 }, (_, i) =>
    variable(`x${i}`, 'text/fhirpath', i === 0 ? '1' : `%x${i - 1} + 1`),
  )
  for (const [use, variables] of [
    ['%x', [variable('x', QUERY, `Condition?code=${parts}`)]],
    ['%x500', chain],
  ] as const) {
    const { status, text } = await extractBy(fromVariables(use, [...variables]))
    t.equal(status, 400)
    t.match(text, /too-costly.*The variables have too many expressions/)
  }
})

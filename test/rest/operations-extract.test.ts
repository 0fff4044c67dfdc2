/** `$extract`: resources from the answers of a form. */
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

t.test('fills the templates of a Questionnaire', async (t) => {
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

t.test('rejects unsupported and too costly extractions', async (t) => {
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

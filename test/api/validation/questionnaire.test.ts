import t from 'tap'
import { openBotica, until } from '../../fixtures/botica.ts'
import type { OperationOutcome, Resource } from '../../fixtures/fhir.ts'
import type { Raw } from '../../fixtures/oracle/values.ts'

const botica = await openBotica(t)
const { admin } = botica

const URL_OF = 'http://example.org/Questionnaire/visit'
const coding = (code: string) => ({ system: 'urn:c', code })
const extension = (name: string, value: object) => ({
  url: `http://hl7.org/fhir/StructureDefinition/${name}`,
  ...value,
})
const limited = (linkId: string, type: string, limits: Record<string, object>) => ({
  ...{ linkId, type },
  extension: Object.entries(limits).map(([name, value]) => extension(name, value)),
})
const questionnaire: Raw = {
  resourceType: 'Questionnaire',
  status: 'active',
  url: URL_OF,
  version: '1',
  item: [
    { linkId: 'intro', type: 'display', text: 'Welcome' },
    { linkId: 'smokes', type: 'boolean', required: true },
    {
      linkId: 'packs',
      type: 'integer',
      required: true,
      enableWhen: [{ question: 'smokes', operator: '=', answerBoolean: true }],
    },
    { linkId: 'note', type: 'string', maxLength: 5 },
    limited('dose', 'decimal', {
      minValue: { valueDecimal: 0.5 },
      maxDecimalPlaces: { valueInteger: 1 },
    }),
    limited('born', 'date', {
      minValue: { valueDate: '2000-06' },
      maxValue: { valueDate: '2020' },
    }),
    limited('mail', 'string', {
      regex: { valueString: '[^@]+@[^@]+' },
      minLength: { valueInteger: 5 },
    }),
    limited('scan', 'attachment', { mimeType: { valueCode: 'image/png' } }),
    limited('who', 'reference', {
      'questionnaire-referenceResource': { valueCode: 'Practitioner' },
    }),
    limited('length', 'quantity', { 'questionnaire-unitOption': { valueCoding: { code: 'km' } } }),
    {
      ...limited('few', 'string', {
        'questionnaire-minOccurs': { valueInteger: 2 },
        'questionnaire-maxOccurs': { valueInteger: 3 },
      }),
      repeats: true,
    },
    {
      linkId: 'only',
      type: 'choice',
      repeats: true,
      answerOption: [
        { valueCoding: coding('a') },
        {
          valueCoding: coding('none'),
          extension: [extension('questionnaire-optionExclusive', { valueBoolean: true })],
        },
      ],
    },
    { linkId: 'tags', type: 'string', repeats: true },
    {
      linkId: 'drug',
      type: 'group',
      repeats: true,
      item: [
        { linkId: 'name', type: 'string' },
        { linkId: 'taken', type: 'boolean' },
        {
          linkId: 'times',
          type: 'integer',
          required: true,
          enableWhen: [{ question: 'taken', operator: '=', answerBoolean: true }],
        },
      ],
    },
    {
      linkId: 'pain',
      type: 'boolean',
      repeats: true,
      item: [
        {
          linkId: 'where',
          type: 'string',
          required: true,
          enableWhen: [{ question: 'pain', operator: '=', answerBoolean: true }],
        },
      ],
    },
    {
      linkId: 'colour',
      type: 'choice',
      answerOption: [{ valueCoding: coding('red') }, { valueCoding: coding('blue') }],
    },
    { linkId: 'other', type: 'open-choice', answerOption: [{ valueCoding: coding('red') }] },
    {
      linkId: 'gender',
      type: 'choice',
      answerValueSet: 'http://hl7.org/fhir/ValueSet/administrative-gender',
    },
    {
      linkId: 'history',
      type: 'group',
      repeats: true,
      item: [
        { linkId: 'since', type: 'date', item: [{ linkId: 'why', type: 'string' }] },
        {
          linkId: 'weight',
          type: 'decimal',
          enableBehavior: 'all',
          enableWhen: [
            { question: 'packs', operator: '>', answerInteger: 1 },
            { question: 'note', operator: 'exists', answerBoolean: false },
          ],
        },
      ],
    },
  ],
}
const stored = await admin.create(questionnaire as Resource)

const answer = (linkId: string, ...answers: object[]) => ({ linkId, answer: answers })
const no = answer('smokes', { valueBoolean: false })
const yes = answer('smokes', { valueBoolean: true })
const two = answer('packs', { valueInteger: 2 })
const response = (item: readonly object[], more: object = {}): Raw => ({
  resourceType: 'QuestionnaireResponse',
  questionnaire: URL_OF,
  status: 'completed',
  ...(item.length === 0 ? {} : { item }),
  ...more,
})
const gender = (code: string) =>
  answer('gender', { valueCoding: { system: 'http://hl7.org/fhir/administrative-gender', code } })
const drug = (taken: boolean | undefined, times?: number) => ({
  linkId: 'drug',
  item: [
    answer('name', { valueString: 'x' }),
    ...(taken === undefined ? [] : [answer('taken', { valueBoolean: taken })]),
    ...(times === undefined ? [] : [answer('times', { valueInteger: times })]),
  ],
})
const history = (...item: object[]) => ({ linkId: 'history', item })

const FITTING: readonly (readonly [string, Raw])[] = [
  ['the least', response([no])],
  ['all of it', response([{ linkId: 'intro' }, yes, two, gender('male')])],
  [
    'repetitions with different answers',
    response([no, drug(false), drug(true, 2), drug(undefined), drug(false), drug(true, 1)]),
  ],
  [
    'items enabled by the question that holds them',
    response([
      no,
      answer(
        'pain',
        { valueBoolean: true, item: [answer('where', { valueString: 'x' })] },
        { valueBoolean: false },
      ),
    ]),
  ],
  ['an incomplete response in progress', response([], { status: 'in-progress' })],
  [
    'answers that repeat',
    response([no, answer('tags', { valueString: 'a' }, { valueString: 'b' })]),
  ],
  ['an option', response([no, answer('colour', { valueCoding: coding('red') })])],
  ['own words', response([no, answer('other', { valueString: 'green' })])],
  [
    'groups that repeat',
    response([yes, two, history(), history(answer('weight', { valueDecimal: 1.5 }))]),
  ],
  [
    'items below an answer',
    response([
      no,
      history(answer('since', { valueDate: '2020', item: [answer('why', { valueString: 'x' })] })),
    ]),
  ],
  [
    'answers within the limits of extensions',
    response([
      no,
      answer('dose', { valueDecimal: 0.5 }),
      answer('born', { valueDate: '2000' }),
      answer('mail', { valueString: 'a@b.c' }),
      answer('scan', { valueAttachment: { contentType: 'image/png', url: 'http://x/y' } }),
      answer('who', { valueReference: { reference: 'Practitioner/1' } }),
      answer('length', { valueQuantity: { value: 1, unit: 'km' } }),
      answer('few', { valueString: 'a' }, { valueString: 'b' }),
      answer('only', { valueCoding: coding('none') }),
    ]),
  ],
  ['a literal reference', response([no], { questionnaire: `Questionnaire/${stored.id}` })],
  ['a Questionnaire that is not here', response([], { questionnaire: 'urn:unknown' })],
  ['another version', response([], { questionnaire: `${URL_OF}|2` })],
]

const FAULTY: readonly (readonly [string, Raw, RegExp, string])[] = [
  [
    'no required answer',
    response([{ linkId: 'intro' }]),
    /smokes is required/,
    'QuestionnaireResponse',
  ],
  ['none where it is enabled', response([yes]), /packs is required/, 'QuestionnaireResponse'],
  [
    'one that is not enabled',
    response([no, two]),
    /packs is not enabled/,
    'QuestionnaireResponse.item[1]',
  ],
  [
    'one that others switch off',
    response([
      yes,
      two,
      answer('note', { valueString: 'x' }),
      history(answer('weight', { valueDecimal: 1 })),
    ]),
    /weight is not enabled/,
    'QuestionnaireResponse.item[3].item[0]',
  ],
  [
    'none where its own repetition enables it',
    response([no, drug(false), drug(true), drug(false)]),
    /times is required/,
    'QuestionnaireResponse.item[2]',
  ],
  [
    'one that only another repetition enables',
    response([no, drug(true, 1), drug(false, 1)]),
    /times is not enabled/,
    'QuestionnaireResponse.item[2].item[2]',
  ],
  [
    'an unknown item',
    response([no, answer('x')]),
    /no item x/,
    'QuestionnaireResponse.item[1].linkId',
  ],
  [
    'an item elsewhere',
    response([no, answer('since', { valueDate: '2020' })]),
    /no item since/,
    'QuestionnaireResponse.item[1].linkId',
  ],
  [
    'another type',
    response([answer('smokes', { valueString: 'yes' })]),
    /takes valueBoolean/,
    'QuestionnaireResponse.item[0].answer[0].valueString',
  ],
  [
    'two answers',
    response([answer('smokes', { valueBoolean: true }, { valueBoolean: false }), two]),
    /one answer/,
    'QuestionnaireResponse.item[0].answer',
  ],
  ['an item twice', response([no, no]), /does not repeat/, 'QuestionnaireResponse'],
  [
    'a long text',
    response([no, answer('note', { valueString: 'longer' })]),
    /5 characters/,
    'QuestionnaireResponse.item[1].answer[0].valueString',
  ],
  ...(
    [
      ['dose', { valueDecimal: 0.4 }, /0.5 at least/],
      ['dose', { valueDecimal: 1.25 }, /1 decimal places/],
      ['born', { valueDate: '2000-05-31' }, /2000-06 at least/],
      ['born', { valueDate: '2021' }, /2020 at most/],
      ['mail', { valueString: 'a@b@c' }, /takes \[\^@\]/],
      ['mail', { valueString: 'a@b' }, /5 characters at least/],
      ['scan', { valueAttachment: { contentType: 'text/plain' } }, /takes image.png, not text/],
      ['who', { valueReference: { reference: 'Patient/1' } }, /takes Practitioner, not Patient/],
      ['length', { valueQuantity: { value: 1, unit: 'mile' } }, /takes km, not mile/],
    ] as const
  ).map(([linkId, value, text]) => {
    const path = `QuestionnaireResponse.item[1].answer[0].${Object.keys(value)[0]}`
    return [
      `${linkId} ${JSON.stringify(value)}`,
      response([no, answer(linkId, value)]),
      text,
      path,
    ] as const
  }),
  ...(
    [
      ['few', ['a'], /2 answers at least/],
      ['few', ['a', 'b', 'c', 'd'], /3 answers at most/],
    ] as const
  ).map(([linkId, texts, text]) => {
    const given = texts.map((valueString) => ({ valueString }))
    const path = 'QuestionnaireResponse.item[1].answer'
    return [
      `${texts.length} answers`,
      response([no, answer(linkId, ...given)]),
      text,
      path,
    ] as const
  }),
  [
    'an exclusive option with another one',
    response([no, answer('only', { valueCoding: coding('none') }, { valueCoding: coding('a') })]),
    /exclusive option/,
    'QuestionnaireResponse.item[1].answer',
  ],
  [
    'no option',
    response([no, answer('colour', { valueCoding: coding('green') })]),
    /no such option/,
    'QuestionnaireResponse.item[1].answer[0].valueCoding',
  ],
  [
    'a code of none',
    response([no, gender('odd')]),
    /takes a code of/,
    'QuestionnaireResponse.item[1].answer[0].valueCoding',
  ],
  [
    'an answer to a display',
    response([no, answer('intro', { valueString: 'x' })]),
    /takes no answer/,
    'QuestionnaireResponse.item[1].answer',
  ],
  [
    'a pinned version',
    response([], { questionnaire: `${URL_OF}|1`, item: [answer('x')] }),
    /no item x/,
    'QuestionnaireResponse.item[0].linkId',
  ],
  [
    'a contained Questionnaire',
    response([answer('x')], {
      questionnaire: '#q',
      contained: [{ resourceType: 'Questionnaire', id: 'q', status: 'active' }],
    }),
    /no item x/,
    'QuestionnaireResponse.item[0].linkId',
  ],
]

const TYPE = 'QuestionnaireResponse'
const faults = (body: OperationOutcome, severity: string) =>
  body.issue.filter((issue) => issue.severity === severity)

for (const [name, resource] of FITTING) {
  t.test(`${name} fits`, async (t) => {
    const { status, body } = await admin.post<OperationOutcome>(`${TYPE}/$validate`, resource)
    t.equal(status, 200, JSON.stringify(body.issue))
    const kept = await admin.post<OperationOutcome>(TYPE, resource, {
      Prefer: 'return=OperationOutcome',
    })
    t.equal(kept.status, 201)
    t.same(faults(kept.body, 'warning'), [])
  })
}

for (const [name, resource, text, path] of FAULTY) {
  t.test(`${name} is a fault`, async (t) => {
    const said = { code: 'business-rule', details: { text }, expression: [path] }
    const asked = await admin.post<OperationOutcome>(`${TYPE}/$validate`, resource)
    t.equal(asked.status, 400)
    t.match(faults(asked.body, 'error')[0], said)
    const kept = await admin.post<OperationOutcome>(TYPE, resource, {
      Prefer: 'return=OperationOutcome',
    })
    t.equal(kept.status, 201)
    t.match(faults(kept.body, 'warning')[0], said)
  })
}

t.test('rejects invalid answers if the Project requires it', async (t) => {
  const tenant = await botica.createTenant()
  const path = `Project/${tenant.project.id}`
  const { body } = await botica.superAdmin.get(path)
  const setting = [{ name: 'validateQuestionnaireResponse', valueString: 'refuse' }]
  t.equal((await botica.superAdmin.put(path, { ...body, setting })).status, 200)
  await tenant.admin.create(questionnaire as Resource)
  const [, faulty] = FAULTY[0] ?? []
  await until(async () => (await tenant.admin.post(TYPE, faulty)).status === 400, 60_000)
  t.equal((await tenant.admin.post(TYPE, response([no]))).status, 201)
  await admin.put(`Questionnaire/${stored.id}`, { ...stored, item: [] } as Resource)
  t.equal((await admin.post(`${TYPE}/$validate`, response([no]))).status, 400, 'as it is now')
})

/** References by canonical do not reveal the `url` of a resource to a caller without access to it. */
import t from 'tap'
import { openBotica } from '../../fixtures/botica.ts'
import { memberUnder } from '../../fixtures/policy/policy.ts'

const botica = await openBotica(t)
const { admin } = botica
const url = 'http://example.org/secret'
const form = { resourceType: 'Questionnaire', url, status: 'active', title: 'Form' }
const asked = await admin.create(form)
const open = await admin.create({ ...form, url: 'http://example.org/open', status: 'draft' })
const answerTo = (questionnaire: string) =>
  admin.create({ resourceType: 'QuestionnaireResponse', status: 'completed', questionnaire })
const answer = await answerTo(url)
const other = await answerTo('http://example.org/open')

const WAYS = [
  'QuestionnaireResponse?_include=QuestionnaireResponse:questionnaire',
  'QuestionnaireResponse?_include=*',
  'QuestionnaireResponse?questionnaire.title=form',
  'QuestionnaireResponse?questionnaire:Questionnaire.status=active',
  'Questionnaire?_has:QuestionnaireResponse:questionnaire:status=completed',
  `Questionnaire?_filter=_has:QuestionnaireResponse:questionnaire:_id eq ${answer.id}`,
  'Questionnaire?_revinclude=QuestionnaireResponse:questionnaire',
]

/** Returns the questionnaires and answers that an access path links. */
const isTold = (way: string, text: string) =>
  way.startsWith('QuestionnaireResponse?_include') || way.includes('_revinclude')
    ? text.includes(asked.id) && text.includes(answer.id)
    : text.includes(way.startsWith('Questionnaire?') ? asked.id : answer.id)

t.test('follows canonicals in both directions for callers with access to the url', async (t) => {
  const { client } = await memberUnder(botica, { entries: [{ resourceType: '*' }] })
  for (const way of WAYS) {
    const { status, text } = await client.get(way)
    t.ok(status === 200 && isTold(way, text), `${way} ${status} ${text}`)
  }
})

t.test('follows no canonical where the url is hidden', async (t) => {
  const { client } = await memberUnder(botica, {
    entries: [
      { resourceType: 'QuestionnaireResponse' },
      { resourceType: 'Questionnaire', hiddenFields: ['url'] },
    ],
  })
  t.match((await client.get(`Questionnaire/${asked.id}`)).body, { title: 'Form', url: undefined })
  for (const way of WAYS) {
    const { status, text } = await client.get(way)
    t.ok(status === 200 || status === 403, `${way} ${status} ${text}`)
    t.notOk(isTold(way, text), `${way} ${text}`)
  }
})

t.test('does not check references to a hidden url on delete', async (t) => {
  const way =
    'Questionnaire?_deleted=true&_has:QuestionnaireResponse:questionnaire:status=completed'
  const open = await memberUnder(botica, { entries: [{ resourceType: '*' }] })
  t.equal((await open.client.get(way)).status, 400, 'it goes with few parameters')
  const entries = [
    { resourceType: 'QuestionnaireResponse' },
    { resourceType: 'Questionnaire', hiddenFields: ['url'] },
  ]
  const { client } = await memberUnder(botica, { entries })
  t.equal((await client.get(way)).status, 403)
})

t.test('finds resources whose url another entry shows', async (t) => {
  const { client } = await memberUnder(botica, {
    entries: [
      { resourceType: 'QuestionnaireResponse' },
      {
        resourceType: 'Questionnaire',
        criteria: 'Questionnaire?status=active',
        hiddenFields: ['url'],
      },
      { resourceType: 'Questionnaire' },
    ],
  })
  for (const way of WAYS.filter((one) => !one.includes('active') && !one.includes(answer.id))) {
    const { status, text } = await client.get(way)
    t.ok(status === 200, `${way} ${status} ${text}`)
    t.notOk(isTold(way, text), `${way} ${text}`)
    t.ok(text.includes(way.startsWith('Questionnaire?') ? open.id : other.id), `${way} ${text}`)
  }
})

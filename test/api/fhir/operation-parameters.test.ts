/**
 * Every operation of the standard with every input that the standard defines for it, and with an undefined one.
 * Imports the tables of operations and inputs, to try all of them.
 */
import t from 'tap'
import { operations } from '../../../shared/api/operations.ts'
import { operationParameters } from '../../../shared/fhir/definitions.ts'
import { openBotica } from '../../fixtures/botica.ts'
import type { OperationOutcome } from '../../fixtures/fhir.ts'
import { aPatient } from '../../fixtures/resources.ts'

const { admin } = await openBotica(t)
const patient = await admin.create(aPatient())
const standard = operations.filter((operation) =>
  ['type', 'Resource'].includes(operation.standard ?? ''),
)
/** GraphQL has separate requests, and $lastn takes the parameters of a search. */
const OF_THEIR_OWN = new Set(['graphql', 'lastn'])

/** Defined for operations that are here, and not honoured. */
const REFUSED: Readonly<Record<string, readonly string[]>> = {
  'CodeSystem/lookup': ['date'],
  'CodeSystem/validate-code': ['date'],
  'Composition/document': ['graph'],
  'PlanDefinition/apply': [
    'planDefinition',
    'userType',
    'userLanguage',
    'userTaskContext',
    'setting',
    'settingContext',
  ],
  'ValueSet/expand': ['context', 'contextDirection', 'date', 'exclude-system'],
  'ValueSet/validate-code': ['context', 'date'],
}

const places = standard.flatMap(({ name, on, standard, methods }) =>
  on.map(({ type = 'Patient', level }) => ({
    name: standard === 'Resource' ? `Resource/${name}` : `${type}/${name}`,
    path: operationPath(name, type, level),
    methods,
    isOwn: OF_THEIR_OWN.has(name),
  })),
)

function operationPath(name: string, type: string, level: string): string {
  if (level === 'system') return `$${name}`
  return level === 'type' ? `${type}/$${name}` : `${type}/${patient.id}/$${name}`
}

const parametersWith = (...parameter: object[]) => ({ resourceType: 'Parameters', parameter })

for (const { name, path, methods, isOwn } of places) {
  if (isOwn) continue
  const refused = REFUSED[name] ?? []
  const inputs = operationParameters(name).filter((input) => !input.includes('.'))

  for (const input of inputs) {
    t.test(`${path} does not pass over ${input} without a value`, async (t) => {
      const body = parametersWith({ name: input })
      const answer = await admin.post<OperationOutcome>(path, body)
      const code = refused.includes(input) ? 'not-supported' : 'invalid'
      t.match(answer, { status: 400, body: { issue: [{ code }] } })
      const [issue] = answer.body.issue
      t.match(issue?.details.text, `"${input}"`)
      if (code === 'not-supported') {
        t.same(issue?.expression, ['Parameters.parameter[0]'])
        if (!methods.includes('GET')) return
        const asked = await admin.get(`${path}?${input}=x`)
        t.match(asked, { status: 400, body: { issue: [{ code, expression: [input] }] } })
      }
    })
  }

  t.test(`${path} ignores undefined parameters, except with strict handling`, async (t) => {
    const strict = { Prefer: 'handling=strict' }
    const body = parametersWith({ name: 'nobody-defines-it', valueString: 'x' })
    const unknown = { code: 'invalid', details: { text: 'Unknown parameter "nobody-defines-it"' } }
    const refusal = (expression: string) => ({
      status: 400,
      body: { issue: [{ ...unknown, expression: [expression] }] },
    })
    t.match(await admin.post(path, body, strict), refusal('Parameters.parameter[0]'))
    t.notMatch(await admin.post(path, body), { body: { issue: [unknown] } })
    t.notMatch(await admin.post(path, body, { Prefer: 'handling=lenient' }), {
      body: { issue: [unknown] },
    })
    const inQuery = `${path}?nobody-defines-it=x`
    const method = methods.includes('GET') ? admin.get : admin.post
    const send = (headers: Record<string, string>) =>
      method === admin.get ? admin.get(inQuery, headers) : admin.post(inQuery, undefined, headers)
    t.match(await send(strict), refusal('nobody-defines-it'))
    t.notMatch(await send({}), { body: { issue: [unknown] } })
  })
}

t.test('strict handling allows the parameters of every request', async (t) => {
  const answer = await admin.get(`Patient/${patient.id}/$everything?_format=json&_pretty=true`, {
    Prefer: 'handling=strict',
  })
  t.equal(answer.status, 200)
})

t.test('strict handling reaches plain JSON and parts', async (t) => {
  const strict = { Prefer: 'handling=strict' }
  const json = { ...strict, 'Content-Type': 'application/json' }
  const plain = await admin.post('ValueSet/$expand', '{"url":"urn:x","filtr":"a"}', json)
  t.match(plain, { status: 400, body: { issue: [{ expression: ['filtr'] }] } })
  const url = 'http://hl7.org/fhir/administrative-gender'
  const property = { name: 'property', part: [{ name: 'cod', valueCode: 'x' }] }
  const body = parametersWith({ name: 'system', valueUri: url }, property)
  t.match(await admin.post('CodeSystem/$import', body, strict), {
    status: 400,
    body: { issue: [{ expression: ['Parameters.parameter[1].part[0]'] }] },
  })
  t.match(await admin.post('CodeSystem/$import', parametersWith({ name: 'property' })), {
    status: 400,
    body: { issue: [{ details: { text: '"property" must have parts' } }] },
  })
})

t.test('rejects an input of which a part would be ignored', async (t) => {
  const expand = 'ValueSet/$expand'
  const gender = 'http://hl7.org/fhir/ValueSet/administrative-gender'
  const url = { name: 'url', valueUri: gender }
  const inQuery = `${expand}?url=${gender}`
  const [first, more] = ['Parameters.parameter[0]', 'Parameters.parameters']
  const cases: readonly (readonly [path: string, body: object, text: RegExp, place: string])[] = [
    [inQuery, parametersWith(url), /"url" is in the query and in the body/, 'url'],
    [inQuery, { url: gender }, /"url" is in the query and in the body/, 'url'],
    [expand, parametersWith({ ...url, valueString: 'x' }), /one value, not valueUri/, first],
    [expand, parametersWith({ ...url, part: [] }), /one value, not valueUri, part/, first],
    [inQuery, { resourceType: 'Parameters', parameters: [url] }, /"parameters"/, more],
    [expand, parametersWith(), /Missing required parameter "url"/, 'url'],
    [`${inQuery}&count=x`, parametersWith(), /"count" must be a whole number/, 'count'],
    [`${inQuery}&activeOnly=x`, parametersWith(), /must be true or false/, 'activeOnly'],
  ]
  for (const [path, body, text, place] of cases) {
    const issue = [{ details: { text }, expression: [place] }]
    t.match(await admin.post(path, body), { status: 400, body: { issue } }, `${text}`)
  }
  const whole = { ...url, id: 'p1', _valueUri: { id: 'u1' } }
  t.equal((await admin.post(expand, parametersWith(whole))).status, 200)
})

t.test('rejects invalid input as plain JSON, too', async (t) => {
  const json = { 'Content-Type': 'application/json' }
  t.match(await admin.post('ValueSet/$expand', '{"url":"urn:x","date":"2020"}', json), {
    status: 400,
    body: { issue: [{ code: 'not-supported', expression: ['date'] }] },
  })
})

t.test('does not offer $evaluate-measure', async (t) => {
  t.equal((await admin.get(`Measure/${patient.id}/$evaluate-measure`)).status, 404)
  t.notMatch((await admin.get('metadata')).text, /evaluate-measure/)
})

import { buildClientSchema, getIntrospectionQuery, validateSchema } from 'graphql'
import { serverAudits } from 'graphql-http'
import t from 'tap'
import { openBotica } from '../../fixtures/botica.ts'
import type { Resource } from '../../fixtures/fhir.ts'
import { ask, type Result } from '../../fixtures/graphql.ts'

const { admin, anonymous, baseUrl, createMember, createTenant, superAdmin } = await openBotica(t)

const FORMS = {
  graphql: 'application/graphql-response+json',
  json: 'application/json',
  fhir: 'application/fhir+json',
}

t.test('passes the audits of GraphQL over HTTP', async (t) => {
  const audits = serverAudits({
    url: `${baseUrl}fhir/R4/$graphql`,
    fetchFn: (url: string, init: RequestInit) =>
      fetch(url, { ...init, headers: { ...init.headers, Authorization: `Bearer ${admin.token}` } }),
  })
  for (const audit of audits) {
    if (audit.name.startsWith('MAY')) continue
    const result = await audit.fn()
    t.equal(result.status, 'ok', `${audit.name}: ${'reason' in result ? result.reason : ''}`)
  }
})

/** Requests with the status per response format; `texts` are the issues of the FHIR format. */
const refusals: readonly {
  readonly name: string
  readonly body: unknown
  readonly graphql: number
  readonly json: number
  readonly fhir: number
  readonly texts?: readonly string[]
}[] = [
  {
    name: 'no query',
    body: {},
    graphql: 400,
    json: 400,
    fhir: 400,
    texts: ['Must provide query.'],
  },
  {
    name: 'a list of queries',
    body: '[{"query":"{ __typename }"}]',
    graphql: 400,
    json: 400,
    fhir: 400,
    texts: ['Must provide query.'],
  },
  {
    name: 'invalid JSON',
    body: '{',
    graphql: 400,
    json: 400,
    fhir: 400,
    texts: ['Content could not be parsed'],
  },
  {
    name: 'a syntax error',
    body: { query: '{ Patient(' },
    graphql: 400,
    json: 200,
    fhir: 400,
    texts: ['GraphQL syntax error.'],
  },
  {
    name: 'fields that are not there',
    body: { query: '{ PatientList { nothing more } }' },
    graphql: 400,
    json: 200,
    fhir: 400,
    texts: [
      'Cannot query field "nothing" on type "Patient".',
      'Cannot query field "more" on type "Patient".',
    ],
  },
  {
    name: 'a modifier',
    body: { query: '{ PatientList(name_not: "x") { id } }' },
    graphql: 400,
    json: 200,
    fhir: 400,
  },
  {
    name: 'an unknown operation',
    body: { query: 'query a { __typename } query b { __typename }', operationName: 'c' },
    graphql: 400,
    json: 200,
    fhir: 400,
  },
  {
    name: 'a fragment that holds itself',
    body: { query: '{ PatientList { ...a } } fragment a on Patient { id ...a }' },
    graphql: 400,
    json: 200,
    fhir: 400,
  },
  {
    name: 'a type that is not there',
    body: { query: '{ PatientList { ... on Nothing { id } } }' },
    graphql: 400,
    json: 200,
    fhir: 400,
    texts: ['Unknown type "Nothing".'],
  },
  {
    name: 'too deep a query',
    body: { query: `{ PatientList ${'{ extension '.repeat(24)}{ url ${'}'.repeat(25)} }` },
    graphql: 400,
    json: 200,
    fhir: 400,
    texts: ['Field depth 26 exceeds the limit of 24'],
  },
  {
    name: 'too costly a query',
    body: {
      query: `query ($n: Int) { PatientList(_count: $n) {
        EncounterList(_reference: patient, _count: 1000) { ObservationList(_reference: encounter) { id } } } }`,
      variables: { n: 1000 },
    },
    graphql: 400,
    json: 200,
    fhir: 400,
    texts: ['Query cost 8008008 exceeds the limit of 100000'],
  },
  {
    name: 'too costly a query by the default of a variable',
    body: {
      query: `query ($n: Int = 1000) { PatientList(_count: $n) {
        EncounterList(_reference: patient, _count: $n) { ObservationList(_reference: encounter) { id } } } }`,
    },
    graphql: 400,
    json: 200,
    fhir: 400,
    texts: ['Query cost 8008008 exceeds the limit of 100000'],
  },
  {
    name: 'a bomb of aliases',
    body: { query: `{ ${Array.from({ length: 501 }, (_, i) => `a${i}: __typename`).join(' ')} }` },
    graphql: 400,
    json: 200,
    fhir: 400,
  },
  {
    name: 'a bomb of fragments',
    body: {
      query: `{ PatientList { ...f0 } } ${Array.from(
        { length: 20 },
        (_, i) => `fragment f${i} on Patient { ...f${i + 1} ...f${i + 1} x${i}: id ...f${i + 1} }`,
      ).join(' ')} fragment f20 on Patient { id }`,
    },
    graphql: 400,
    json: 200,
    fhir: 400,
  },
  {
    name: 'the same field again and again',
    body: { query: `{ PatientList { ${'id '.repeat(9000)} } }` },
    graphql: 400,
    json: 200,
    fhir: 400,
  },
  {
    name: 'a value nested without end',
    body: { query: `{ PatientList(name: ${'['.repeat(9000)}${']'.repeat(9000)}) { id } }` },
    graphql: 400,
    json: 200,
    fhir: 400,
    texts: ['A query may be nested 200 levels deep'],
  },
  {
    name: 'more tokens than are read',
    body: { query: `{ PatientList { ${'id '.repeat(20_001)} } }` },
    graphql: 400,
    json: 200,
    fhir: 400,
  },
  {
    name: 'a variable of another kind',
    body: { query: 'query ($n: Int) { PatientList(_count: $n) { id } }', variables: { n: 'x' } },
    graphql: 400,
    json: 200,
    fhir: 200,
  },
  {
    name: 'variables of too many values',
    body: {
      query: 'query ($n: [String!]) { PatientList(name: $n) { id } }',
      variables: { n: Array.from({ length: 30_000 }, () => 'x') },
    },
    graphql: 400,
    json: 200,
    fhir: 400,
    texts: ['Variables may have 30000 values'],
  },
]

for (const { name, body, texts, ...statuses } of refusals) {
  t.test(`rejects ${name} in each format`, async (t) => {
    for (const form of ['graphql', 'json', 'fhir'] as const) {
      const headers = { Accept: FORMS[form], 'Content-Type': 'application/json' }
      const answer = await admin.post<Result & Resource>('$graphql', body, headers)
      t.equal(answer.status, statuses[form], form)
      if (form === 'fhir' && answer.status === 400) {
        t.match(answer.headers.get('content-type'), 'application/fhir+json')
        t.equal(answer.body.resourceType, 'OperationOutcome')
        const issues = answer.body.issue as { code: string; details: { text: string } }[]
        t.ok(issues.every(({ code }) => code === 'invalid'))
        if (texts)
          t.same(
            issues.map(({ details }) => details.text),
            texts,
          )
      } else {
        t.match(answer.headers.get('content-type'), form === 'fhir' ? FORMS.json : FORMS[form])
        t.ok(answer.body.errors?.[0]?.message)
        t.notOk('data' in answer.body)
      }
    }
  })
}

t.test('ignores other members of a request, and rejects them under strict handling', async (t) => {
  const strict = { Prefer: 'handling=strict' }
  const query = 'query ($n: Int) { PatientList(_count: $n) { id } }'
  const typo = { query, variabels: { n: 1 } }
  t.equal((await admin.post('$graphql', typo)).status, 200)
  t.match(await admin.post('$graphql', typo, strict), {
    status: 400,
    body: {
      issue: [
        {
          details: { text: 'A GraphQL request has no member "variabels"' },
          expression: ['variabels'],
        },
      ],
    },
  })
  const undeclared = { query, variables: { m: 1 }, extensions: {} }
  t.equal((await admin.post('$graphql', undeclared)).status, 200)
  t.match(await admin.post('$graphql', undeclared, strict), {
    status: 400,
    body: { issue: [{ details: { text: 'The operation declares no variable $m' } }] },
  })
  t.equal((await admin.post('$graphql', { query, variables: { n: 1 } }, strict)).status, 200)
})

t.test('rejects a mutation by GET and any PUT', async (t) => {
  const query = encodeURIComponent('mutation { PatientCreate(res: {}) { id } }')
  for (const accept of Object.values(FORMS)) {
    const answer = await admin.get(`$graphql?query=${query}`, { Accept: accept })
    t.equal(answer.status, 405)
    t.equal(answer.headers.get('allow'), 'POST')
  }
  t.equal((await admin.put('$graphql', {})).status, 405)
  const found = await ask(admin, '{ PatientList { id } }')
  t.same(found.body, { data: { PatientList: [] } })
})

t.test('returns an outcome for a missing token, wrong media type or invalid JSON', async (t) => {
  const query = { query: '{ __typename }' }
  for (const accept of Object.values(FORMS)) {
    const refused = await anonymous.post('$graphql', query, { Accept: accept })
    t.match(refused, { status: 401, body: { resourceType: 'OperationOutcome' } })
  }
  const unusable = await admin.post('$graphql', query, { Accept: 'text/html' })
  t.match(unusable, { status: 406, body: { resourceType: 'OperationOutcome' } })
  const text = await admin.post('$graphql', 'query', { 'Content-Type': 'text/plain' })
  t.match(text, { status: 415, body: { resourceType: 'OperationOutcome' } })
  const large = await admin.post('$graphql', { query: '{ a }', variables: { a: 'x'.repeat(2e6) } })
  t.match(large, { status: 413, body: { resourceType: 'OperationOutcome' } })
})

t.test('requires a Project feature for introspection', async (t) => {
  const schema = '{ __schema { queryType { name } mutationType { name } } }'
  const type = '{ __type(name: "HumanName") { fields { name type { name kind } } } }'
  const asked = await ask(admin, schema)
  t.same(asked.body, {
    data: { __schema: { queryType: { name: 'Query' }, mutationType: { name: 'Mutation' } } },
  })
  t.equal((await ask(admin, schema)).text, asked.text)
  const whole = await ask(admin, getIntrospectionQuery())
  t.equal(whole.status, 200)
  t.equal(validateSchema(buildClientSchema(whole.body.data)).length, 0)
  const named = await ask(admin, type)
  t.match(named.body.data.__type.fields, [{ name: 'id', type: { name: 'String' } }])
  const member = await createMember()
  t.equal((await ask(member.client, type)).status, 200)

  const tenant = await createTenant()
  const { body: project } = await superAdmin.get(`Project/${tenant.project.id}`)
  await superAdmin.put(`Project/${tenant.project.id}`, { ...project, features: ['bots'] })
  const other = await createMember({}, tenant.project.id)
  for (const query of [schema, type, `{ ...q } fragment q on Query ${schema}`]) {
    t.equal((await ask(tenant.admin, query)).status, 403)
    const refused = await ask(other.client, query)
    t.match(refused, { status: 403, body: { resourceType: 'OperationOutcome', id: 'forbidden' } })
    for (const accept of [FORMS.json, FORMS.graphql]) {
      const foreign = await ask(other.client, query, {}, { Accept: accept })
      t.match(foreign, { status: 403, body: { errors: [{ message: 'Forbidden' }] } })
    }
  }
  t.equal((await ask(other.client, '{ __typename }')).status, 200)
})

t.test('hides super-admin types from others', async (t) => {
  t.equal((await ask(admin, '{ LoginList { id } }')).status, 400)
  t.equal((await ask(superAdmin, '{ LoginList(_count: 1) { resourceType } }')).status, 200)
})

t.test('runs a query in a batch entry', async (t) => {
  const { body } = await admin.post<{ entry: { response: object; resource: Resource }[] }>('', {
    resourceType: 'Bundle',
    type: 'batch',
    entry: [
      {
        request: { method: 'POST', url: '$graphql' },
        resource: { query: '{ PatientList(_count: 1) { id } }' },
      },
    ],
  })
  t.match(body.entry[0], { response: { status: '200' }, resource: { data: { PatientList: [] } } })
})

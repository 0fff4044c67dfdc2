/** What GraphQL tells of its types, here by a service that keeps them from all but admins. */
import { execute, getIntrospectionQuery, parse } from 'graphql'
import t from 'tap'
import { schemaFor } from '../shared/api/graphql/schema.ts'
import { openBotica } from './fixtures/botica.ts'
import { ask, turnsOf } from './fixtures/graphql.ts'

const { admin, createMember } = await openBotica(t, { env: { INTROSPECTION_ENABLED: 'false' } })

t.test('a service may keep its types from all but admins', async (t) => {
  const { client } = await createMember()
  for (const query of [
    '{ __schema { queryType { name } } }',
    '{ __type(name: "Patient") { name } }',
  ]) {
    t.match(await ask(client, query), { status: 403, body: { id: 'forbidden' } })
    t.equal((await ask(admin, query)).status, 200)
  }
  t.equal((await ask(client, '{ __typename }')).status, 200)
})

t.test('the whole schema is told in many turns of the event loop', async (t) => {
  const { turns, result } = await turnsOf(() => ask(admin, getIntrospectionQuery()))
  t.equal(result.status, 200)
  t.ok(turns > 20)
  t.ok(result.body.data.__schema.types.length > 2000)
})

/** `variables` are those of the query. */
const QUERIES: readonly (readonly [query: string, variables?: Record<string, unknown>])[] = [
  [getIntrospectionQuery({ directiveIsRepeatable: true, inputValueDeprecation: true })],
  ['{ __schema { description directives { name locations isRepeatable args { name } } } }'],
  [
    `{ __typename ...more p: __type(name: "Patient") { kind fields { args { defaultValue } } } }
     fragment more on Query { p: __type(name: "Patient") { ...named fields { name type { name } } } }
     fragment named on __Type { __typename name inputFields { name } possibleTypes { name } }`,
  ],
  ['{ __type(name: "Nobody") { name } __schema { subscriptionType { name } } }'],
  ['{ __type(name: "ResourceList") { possibleTypes { name kind } enumValues { name } } }'],
  ['{ __type(name: "Encounter_patient_subject_reference") { enumValues { name description } } }'],
  ['query ($name: String!) { __type(name: $name) { name } }', { name: 'PatientCreate' }],
  [
    `query ($left: Boolean!, $out: Boolean = true) { __type(name: "HumanName") {
       name @include(if: $left) kind @skip(if: $out) ... @skip(if: $left) { description } } }`,
    { left: false },
  ],
]

for (const [query, variables] of QUERIES) {
  const name = query.replace(/\s+/g, ' ').slice(0, 60)
  t.test(`what is told of the types is what graphql-js would tell: ${name}`, async (t) => {
    const schema = schemaFor({ isSuperAdmin: false, instance: undefined })
    const result = await execute({
      schema,
      document: parse(query),
      ...(variables === undefined ? {} : { variableValues: variables }),
    })
    t.notOk(result.errors)
    t.ok((await ask(admin, query, variables)).text === JSON.stringify(result))
  })
}

t.test('a variable of another kind is refused', async (t) => {
  const query = 'query ($name: String!) { __type(name: $name) { name } }'
  const { status, body } = await ask(admin, query, { name: 1 })
  t.equal(status, 200)
  t.match(body.errors, [{ message: /\$name/ }])
})

t.test('more than an answer may hold is not told', async (t) => {
  const part = `fragment part on __Schema { types { fields { description args { name description
    type { kind name ofType { kind name ofType { kind name } } } defaultValue } } } }`
  const aliases = ['a', 'b', 'c', 'd', 'e', 'f'].map((name) => `${name}: __schema { ...part }`)
  t.match(await ask(admin, `{ ${aliases.join(' ')} } ${part}`), {
    status: 413,
    body: { resourceType: 'OperationOutcome' },
  })
})

/**
 * GraphQL introspection, in a service that limits it to admins. Imports the schema, to compare the whole of it.
 */
import { buildClientSchema, execute, getIntrospectionQuery, parse, validateSchema } from 'graphql'
import t from 'tap'
import { schemaFor } from '../../../shared/graphql/schema/schema.ts'
import { openBotica } from '../../fixtures/botica.ts'
import { ask, countEventLoopTurns, type Result } from '../../fixtures/graphql.ts'
import type { Raw } from '../../fixtures/oracle/values.ts'

const { admin, createMember } = await openBotica(t, { env: { INTROSPECTION_ENABLED: 'false' } })

t.test('limits introspection to admins', async (t) => {
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

t.test('returns the whole schema over many turns of the event loop', async (t) => {
  const { turns, result } = await countEventLoopTurns(() => ask(admin, getIntrospectionQuery()))
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
  t.test(`matches the introspection of graphql-js: ${name}`, async (t) => {
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

t.test('rejects a variable of the wrong kind', async (t) => {
  const query = 'query ($name: String!) { __type(name: $name) { name } }'
  const { status, body } = await ask(admin, query, { name: 1 })
  t.equal(status, 200)
  t.match(body.errors, [{ message: /\$name/ }])
})

t.test('rejects introspection above the response limit', async (t) => {
  const part = `fragment part on __Schema { types { fields { description args { name description
    type { kind name ofType { kind name ofType { kind name } } } defaultValue } } } }`
  const aliases = ['a', 'b', 'c', 'd', 'e', 'f'].map((name) => `${name}: __schema { ...part }`)
  t.match(await ask(admin, `{ ${aliases.join(' ')} } ${part}`), {
    status: 413,
    body: { resourceType: 'OperationOutcome' },
  })
})

/** Queries and their data; `id` is the patient's. */
const beside: readonly (readonly [query: string, data: (id: string) => object])[] = [
  [
    '{ __typename __schema { queryType { name } } PatientList { id } }',
    (id) => ({
      __typename: 'Query',
      __schema: { queryType: { name: 'Query' } },
      PatientList: [{ id }],
    }),
  ],
  [
    '{ p: PatientList { id } h: __type(name: "HumanName") { name kind } n: __type(name: "No") { name } }',
    (id) => ({ p: [{ id }], h: { name: 'HumanName', kind: 'OBJECT' }, n: null }),
  ],
  [
    `query ($part: Boolean = false) { ...both ... @skip(if: $part) { __schema { queryType { name } } } PatientList { id } }
       fragment both on Query { PatientConnection { count } __type(name: "Period") @include(if: $part) { name } }`,
    (id) => ({
      PatientConnection: { count: 1 },
      __schema: { queryType: { name: 'Query' } },
      PatientList: [{ id }],
    }),
  ],
  [
    `query ($no: Boolean = false) { __schema @include(if: $no) { queryType { name } }
       PatientList @include(if: $no) { id } }`,
    () => ({}),
  ],
  [
    `{ __schema { queryType { name } } ...more PatientList { id } __schema { mutationType { name } } }
       fragment more on Query { __schema { subscriptionType { name } } }`,
    (id) => ({
      __schema: {
        queryType: { name: 'Query' },
        subscriptionType: null,
        mutationType: { name: 'Mutation' },
      },
      PatientList: [{ id }],
    }),
  ],
]

t.test('combines introspection with other fields', async (t) => {
  const { id } = await admin.create({ resourceType: 'Patient' })
  for (const [query, data] of beside) {
    const { status, text } = await ask(admin, query)
    t.equal(status, 200)
    t.equal(text, JSON.stringify({ data: data(id) }))
  }
  const { client } = await createMember()
  for (const [query] of beside) t.equal((await ask(client, query)).status, 403)
  const failing = '{ Patient(id: "1") { id } __type(name: "Period") { name } }'
  t.match((await ask(admin, failing)).body, {
    data: { Patient: null, __type: { name: 'Period' } },
    errors: [{ message: 'Not found' }],
  })
  const { body } = await ask(admin, `{ name { family } __schema { queryType { name } } }`)
  t.match(body, { resourceType: 'OperationOutcome' })
  const own = await admin.post<Result>(`Patient/${id}/$graphql`, {
    query: '{ id __type(name: "Patient") { name } __schema { queryType { name } } }',
  })
  t.same(own.body, {
    data: { id, __type: { name: 'Patient' }, __schema: { queryType: { name: 'Patient' } } },
  })
  const two = 'query types { __schema { queryType { name } } } query own { PatientList { id } }'
  const chosen = { query: two, operationName: 'own' }
  t.equal((await client.post('$graphql', chosen)).status, 200)
})

t.test('compresses the types for clients that accept gzip', async (t) => {
  const query = { query: '{ __type(name: "Patient") { fields { name description } } }' }
  const packed = await admin.post<Result>('$graphql', query, { 'Accept-Encoding': 'gzip' })
  t.equal(packed.headers.get('content-encoding'), 'gzip')
  const plain = await admin.post<Result>('$graphql', query, { 'Accept-Encoding': 'identity' })
  t.equal(plain.headers.get('content-encoding'), null)
  t.equal(plain.text, packed.text)
  t.match(packed.headers.get('vary'), 'Accept-Encoding')
  const entry = { request: { method: 'POST', url: '$graphql' }, resource: query }
  const { body } = await admin.post('', { resourceType: 'Bundle', type: 'batch', entry: [entry] })
  const [{ resource }] = body.entry as [Raw]
  t.same(resource, JSON.parse(plain.text))
})

t.test('describes types and fields with the texts of the standard', async (t) => {
  const { body } = await ask(
    admin,
    `{ patient: __type(name: "Patient") { description fields { name description } }
       contact: __type(name: "PatientContact") { description fields { name description } }
       input: __type(name: "PatientCreate") { inputFields { name description } } }`,
  )
  const { patient, contact, input } = body.data
  t.match(patient.description, /Information about an individual or animal/)
  t.match(contact.description, /A contact party/)
  const said = (fields: readonly Raw[], name: string) =>
    fields.find((field) => field.name === name)?.description
  t.equal(said(patient.fields, 'birthDate'), 'The date of birth for the individual')
  t.equal(said(input.inputFields, 'birthDate'), 'The date of birth for the individual')
  t.equal(said(patient.fields, 'deceasedBoolean'), said(patient.fields, 'deceasedDateTime'))
  t.equal(said(contact.fields, 'id'), 'Unique id for inter-element referencing')
  t.equal(said(patient.fields, 'EncounterList'), null)
})

t.test('returns a schema that code generators accept', async (t) => {
  const { status, body } = await ask(
    admin,
    getIntrospectionQuery({
      descriptions: true,
      specifiedByUrl: true,
      directiveIsRepeatable: true,
      inputValueDeprecation: true,
      schemaDescription: true,
      oneOf: true,
    }),
  )
  t.equal(status, 200)
  const schema = buildClientSchema(body.data)
  t.same(validateSchema(schema), [])
  t.match(schema.getType('HumanName')?.description, 'Name of a human')
})

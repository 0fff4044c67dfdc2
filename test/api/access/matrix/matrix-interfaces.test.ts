/** Policy shapes applied to GraphQL, bots and Binary content. */
import t from 'tap'
import { openBotica } from '../../../fixtures/botica.ts'
import { aBot, execute, handler } from '../../../fixtures/bots/bots.ts'
import type { Client } from '../../../fixtures/client.ts'
import { ask } from '../../../fixtures/graphql.ts'
import { openClinics } from '../../../fixtures/policy/clinics.ts'
import { changeMembership, type Entry, memberUnder } from '../../../fixtures/policy/policy.ts'

const botica = await openBotica(t, { worker: true })
const { admin } = botica
const { a, b, inClinic, shapes, which } = await openClinics(botica)
const SHAPES: Readonly<Record<string, readonly Entry[]>> = {
  ...shapes,
  nothing: [{ resourceType: 'Basic', interaction: ['create'] }],
  // All observations, but only the patients of A.
  observer: [{ resourceType: 'Observation' }, ...inClinic.slice(0, 1)],
}

/** Returns the ids in the answer to a query, or the code of the first error. */
async function asked(client: Client, query: string): Promise<string> {
  const { status, body } = await ask(client, query)
  if (status !== 200) return String(status)
  const [error] = body.errors ?? []
  if (error !== undefined) return error.extensions?.code ?? error.message
  return which([...JSON.stringify(body.data).matchAll(/"id":"([^"]+)"/g)].map(([, id = '']) => id))
}

const inB = `{ managingOrganization: { reference: "Organization/${b.clinic.id}" } }`
/** Bot code that runs the operation of its input under the policy of the run. */
const CODE = handler(`
  const ids = (found) => found.map(({ id }) => id)
  try {
    switch (event.input.way) {
      case 'search': return ids(await medplum.searchResources('Patient', '_count=100'))
      case 'read of B': return ids([await medplum.readResource('Patient', '${b.patient.id}')])
      case 'create in B': {
        await medplum.createResource({ resourceType: 'Patient',
          managingOrganization: { reference: 'Organization/${b.clinic.id}' } })
        return 'created'
      }
      case 'GraphQL': {
        const { data, errors } = await medplum.graphql('{ PatientList { id } }')
        return errors ? errors[0].message : ids(data.PatientList)
      }
    }
  } catch (error) { return String(error.message) }`)

const told = (value: unknown): string =>
  Array.isArray(value) ? which(value.map(String)) : String(value)

/** Access path → outcome per shape, in order. */
const QUERIES: readonly (readonly [way: string, outcomes: string, query: string])[] = [
  ['a root of A', 'A A A forbidden forbidden A', `{ Patient(id: "${a.patient.id}") { id } }`],
  [
    'a root of B',
    'B not-found not-found forbidden forbidden not-found',
    `{ Patient(id: "${b.patient.id}") { id } }`,
  ],
  ['a list', 'AB A A forbidden forbidden A', '{ PatientList { id } }'],
  [
    'a list by value',
    'B - - forbidden forbidden -',
    '{ PatientList(identifier: "urn:matrix|b") { id } }',
  ],
  [
    'a connection',
    'AB A A forbidden forbidden A',
    '{ PatientConnection { edges { resource { id } } } }',
  ],
  [
    'a reference',
    'ABab Aa Aa forbidden forbidden Aab',
    '{ ObservationList { id subject { resource(optional: true) { ... on Patient { id } } } } }',
  ],
  [
    'a reference that must resolve',
    'AB A A forbidden forbidden not-found',
    '{ ObservationList { subject { resource { ... on Patient { id } } } } }',
  ],
  [
    'a reverse list',
    'ABab Aa Aa forbidden forbidden Aa',
    '{ PatientList { id ObservationList(_reference: subject) { id } } }',
  ],
  [
    'a nested reverse list behind a reference',
    'ABab Aa Aa forbidden forbidden Aab',
    `{ ObservationList { id subject { resource(optional: true) { ... on Patient { id
      ObservationList(_reference: subject) { id } } } } } }`,
  ],
  [
    'an update of B',
    'B not-found forbidden forbidden forbidden not-found',
    `mutation { PatientUpdate(id: "${b.patient.id}", res: { id: "${b.patient.id}",
      managingOrganization: { reference: "Organization/${b.clinic.id}" },
      identifier: [{ system: "urn:matrix", value: "b" }] }) { id } }`,
  ],
]

const members = await Promise.all(
  Object.values(SHAPES).map((entries) => memberUnder(botica, { entries })),
)

for (const [way, outcomes, query] of QUERIES) {
  t.test(`GraphQL: ${way}`, async (t) => {
    const expected = outcomes.split(' ')
    for (const [i, name] of Object.keys(SHAPES).entries()) {
      const client = members[i]?.client
      if (client !== undefined) t.equal(await asked(client, query), expected[i], name)
    }
  })
}

t.test('GraphQL: limits a create in B', async (t) => {
  const expected = ['201', 'forbidden', 'forbidden', '201', 'forbidden', 'forbidden']
  for (const [i, name] of Object.keys(SHAPES).entries()) {
    const client = members[i]?.client
    if (client === undefined) continue
    const { body } = await ask(client, `mutation { PatientCreate(res: ${inB}) { id } }`)
    const [error] = body.errors ?? []
    t.equal(error?.extensions?.code ?? '201', expected[i], name)
    if (error === undefined) await admin.del(`Patient/${body.data.PatientCreate.id}`)
  }
})

t.test('applies the policy of the owner to Binary content', async (t) => {
  const expected = ['200 200', '200 404', '200 404', '403 403', '403 403', '403 403']
  for (const [i, name] of Object.keys(SHAPES).entries()) {
    const client = members[i]?.client
    if (client === undefined) continue
    const answers = await Promise.all(
      [a, b].map(({ binary }) => client.get(`Binary/${binary.id}`, { Accept: '*/*' })),
    )
    t.equal(answers.map(({ status }) => status).join(' '), expected[i], name)
  }
})

/** Access path → outcome per shape, for any holder of the policy. */
const BOTS: readonly (readonly [way: string, outcomes: string])[] = [
  ['search', 'AB A A Forbidden Forbidden A'],
  ['read of B', 'B Not_found Not_found Forbidden Forbidden Not_found'],
  ['GraphQL', 'AB A A Forbidden Forbidden A'],
  ['create in B', 'created Forbidden Forbidden created Forbidden Forbidden'],
]

t.test('applies the policy of the bot, or of the caller when run as user', async (t) => {
  const asUser = await aBot(botica, CODE, { fields: { runAsUser: true } })
  const executing = { resourceType: 'Bot', interaction: ['read'] }
  for (const [i, [name, entries]] of Object.entries(SHAPES).entries()) {
    const own = await aBot(botica, CODE)
    const policy = await admin.create({ resourceType: 'AccessPolicy', resource: entries })
    const access = [{ policy: { reference: `AccessPolicy/${policy.id}` } }]
    await changeMembership(botica, `Bot/${own}`, { access })
    const member = await memberUnder(botica, { entries: [...entries, executing] })
    for (const [way, outcomes] of BOTS) {
      const expected = outcomes.split(' ')[i]?.replace('_', ' ')
      const answers = await Promise.all([
        execute(admin, own, { way }),
        execute(member.client, asUser, { way }),
      ])
      const said = answers.map(({ body, text }) => told(body ?? text))
      t.same(said, [expected, expected], `${way}: ${name}`)
    }
  }
})

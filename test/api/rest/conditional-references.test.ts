import { randomUUID } from 'node:crypto'
import t from 'tap'
import { openBotica, statementsAsked } from '../../fixtures/botica.ts'
import type { Resource } from '../../fixtures/fhir.ts'
import { anObservation, aPatient, MRN_SYSTEM } from '../../fixtures/resources.ts'

const botica = await openBotica(t)
const { client } = await botica.createMember()

const mrn = randomUUID()
const twin = randomUUID()
const withMrn = (value: string) => aPatient({ identifier: [{ system: MRN_SYSTEM, value }] })
const patient = await client.create(withMrn(mrn))
await client.create(withMrn(twin))
await client.create(withMrn(twin))

const search = (value: string) => `Patient?identifier=${MRN_SYSTEM}|${value}`
const literal = `Patient/${patient.id}`
const pointing = (reference: string) => anObservation(reference)

t.test('resolves conditional references of a create with one statement', async (t) => {
  const body = anObservation(search(mrn), { focus: [{ reference: search(mrn) }] })
  const cost = await statementsAsked(botica.services, client, async () => {
    const made = await client.post('Observation', body)
    t.equal(made.status, 201)
    t.match(made.body, { subject: { reference: literal }, focus: [{ reference: literal }] })
  })
  t.equal(cost, 2)
})

t.test('resolves conditional references in updates and conditional writes', async (t) => {
  const made = await client.create(pointing(literal))
  const put = await client.put(`Observation/${made.id}`, {
    ...made,
    focus: [{ reference: search(mrn) }],
  })
  t.match(put.body, { focus: [{ reference: literal }] })
  const value = randomUUID()
  const body = { ...pointing(search(mrn)), identifier: [{ system: MRN_SYSTEM, value }] }
  const query = `identifier=${MRN_SYSTEM}|${value}`
  const created = await client.post('Observation', body, { 'If-None-Exist': query })
  t.match(created.body, { subject: { reference: literal } })
  const updated = await client.put(`Observation?${query}`, {
    ...body,
    focus: [{ reference: search(mrn) }],
  })
  t.equal(updated.status, 200)
  t.match(updated.body, { subject: { reference: literal }, focus: [{ reference: literal }] })
})

const faults: [string, string, RegExp][] = [
  ['nothing', search(randomUUID()), /^Conditional reference '.*' did not match any resources$/],
  ['several resources', search(twin), /^Conditional reference '.*' matched multiple resources$/],
  ['no criteria', 'Patient?_count=1', /Search criteria are required/],
  ['a parameter without a value', `${search(mrn)}&name=`, /^Search parameter name needs a value$/],
  ['an unknown parameter', 'Patient?nmae=x', /nmae/],
  ['an unknown type', 'Nothing?name=x', /Unknown resource type/],
]
for (const [what, reference, text] of faults) {
  t.test(`rejects a conditional reference to ${what} at its element`, async (t) => {
    const alone = await client.post('Observation', pointing(reference))
    t.equal(alone.status, 400)
    t.match(alone.body, { issue: [{ details: { text }, expression: ['Observation.subject'] }] })
    const entry = [literal, reference].map((target) => ({
      request: { method: 'POST', url: 'Observation' },
      resource: pointing(target),
    }))
    const transaction = await client.post('', {
      resourceType: 'Bundle',
      type: 'transaction',
      entry,
    })
    t.equal(transaction.status, 400)
    t.match(transaction.body, {
      issue: [{ details: { text }, expression: ['Bundle.entry[1]', 'Observation.subject'] }],
    })
    const batch = await client.post<{ entry: { response: { status: string } }[] }>('', {
      resourceType: 'Bundle',
      type: 'batch',
      entry,
    })
    t.same(
      batch.body.entry.map(({ response }) => response.status),
      ['201', '400'],
    )
  })
}

t.test('finds no resources of other Projects by a conditional reference', async (t) => {
  const { admin } = await botica.createTenant()
  t.equal((await admin.post('Observation', pointing(search(mrn)))).status, 400)
})

t.test('resolves all conditional references of a transaction with one statement', async (t) => {
  const others = await Promise.all(
    Array.from({ length: 20 }, () => client.create(withMrn(randomUUID()))),
  )
  const readMrn = ({ identifier }: Resource) => (identifier as { value: string }[])[0]?.value ?? ''
  const entry = others.flatMap((other) => [
    { request: { method: 'POST', url: 'Observation' }, resource: pointing(search(readMrn(other))) },
    { request: { method: 'POST', url: 'Observation' }, resource: pointing(search(mrn)) },
  ])
  const cost = await statementsAsked(botica.services, client, async () => {
    const answer = await client.post<{ entry: { resource: Resource }[] }>('', {
      resourceType: 'Bundle',
      type: 'transaction',
      entry,
    })
    t.equal(answer.status, 200)
    t.match(
      answer.body.entry.map(({ resource }) => resource.subject),
      others.flatMap(({ id }) => [{ reference: `Patient/${id}` }, { reference: literal }]),
    )
  })
  t.equal(cost, 4, 'begin, searches, inserts, commit')
})

t.test('resolves a reference to a resource created in the bundle', async (t) => {
  const [mine, other, plain] = [randomUUID(), randomUUID(), randomUUID()]
  const query = (value: string) => `identifier=${MRN_SYSTEM}|${value}`
  const bundle = (type: string, ...targets: string[]) => ({
    resourceType: 'Bundle',
    type,
    entry: [
      ...targets.map((target) => ({
        request: { method: 'POST', url: 'Observation' },
        resource: pointing(target),
      })),
      { request: { method: 'PUT', url: `Patient?${query(mine)}` }, resource: withMrn(mine) },
      {
        request: { method: 'POST', url: 'Patient', ifNoneExist: query(other) },
        resource: withMrn(other),
      },
      { request: { method: 'POST', url: 'Patient' }, resource: withMrn(plain) },
    ],
  })
  const targets = [mine, other, plain].map(search)
  for (const type of ['transaction', 'batch']) {
    const { status, body } = await client.post<Answered>('', bundle(type, ...targets))
    t.equal(status, 200)
    const places = body.entry.map(({ response }) => response.location)
    t.same(
      body.entry.slice(0, 3).map(({ resource }) => resource?.subject),
      places.slice(3).map((reference) => ({ reference })),
      type,
    )
    await client.del(places[5] ?? '')
  }
  const twice = bundle('transaction', search(plain))
  twice.entry.push({ request: { method: 'POST', url: 'Patient' }, resource: withMrn(plain) })
  t.match(await client.post('', twice), {
    status: 400,
    body: { issue: [{ details: { text: /matched multiple resources$/ } }] },
  })
})

t.test('leaves other strings with a question mark unchanged', async (t) => {
  const made = await client.post('Observation', {
    ...pointing(literal),
    note: [{ text: 'Patient?name=x' }],
  })
  t.match(made, { status: 201, body: { note: [{ text: 'Patient?name=x' }] } })
})

interface Answered extends Resource {
  readonly entry: readonly {
    readonly response: { readonly location: string }
    readonly resource?: Resource
  }[]
}

t.test('resolves conditional references added by patches, alone and in bundles', async (t) => {
  const path = `Observation/${(await client.create(anObservation(literal))).id}`
  const asJson = [{ op: 'add', path: '/focus', value: [{ reference: search(mrn) }] }]
  const patched = await client.patch(path, asJson)
  t.match(patched, { status: 200, body: { focus: [{ reference: literal }] } })

  const parameters = (reference: string) => ({
    resourceType: 'Parameters',
    parameter: [
      {
        name: 'operation',
        part: [
          { name: 'type', valueCode: 'add' },
          { name: 'path', valueString: 'Observation' },
          { name: 'name', valueString: 'subject' },
          { name: 'value', valueReference: { reference } },
        ],
      },
    ],
  })
  const bare = { resourceType: 'Observation', status: 'final', code: { text: 'x' } }
  const other = `Observation/${(await client.create(bare)).id}`
  t.match(await client.patch(other, parameters(search(mrn))), {
    status: 200,
    body: { subject: { reference: literal } },
  })
  t.match(await client.patch(path, [{ ...asJson[0], value: [{ reference: search(twin) }] }]), {
    status: 400,
    body: { issue: [{ expression: ['Observation.focus[0]'] }] },
  })

  const fullUrl = `urn:uuid:${randomUUID()}`
  const operations = [
    { op: 'add', path: '/focus', value: [{ reference: search(mrn) }, { reference: fullUrl }] },
  ]
  const data = Buffer.from(JSON.stringify(operations)).toString('base64')
  const contentType = 'application/json-patch+json'
  const answer = await client.post<Answered>('', {
    resourceType: 'Bundle',
    type: 'transaction',
    entry: [
      {
        request: { method: 'PATCH', url: path },
        resource: { resourceType: 'Binary', contentType, data },
      },
      { fullUrl, request: { method: 'POST', url: 'Patient' }, resource: aPatient() },
    ],
  })
  t.equal(answer.status, 200)
  const [changed, made] = answer.body.entry
  t.match(changed?.resource, {
    focus: [{ reference: literal }, { reference: made?.response.location }],
  })
})

import { randomUUID } from 'node:crypto'
import t from 'tap'
import { openBotica, statementsAsked } from '../../../fixtures/botica.ts'
import type { Client } from '../../../fixtures/client.ts'
import type { Resource } from '../../../fixtures/fhir.ts'
import { anObservation, aPatient, MRN_SYSTEM, syntheaTexts } from '../../../fixtures/resources.ts'
import { countRoundTrips, countStatements } from '../../../fixtures/store/store.ts'

// Statements are counted in this thread.
const botica = await openBotica(t, { env: { LARGE_BODY_BYTES: '100000000' } })
const { client } = await botica.createMember()
const { services } = botica
await client.get('Patient')

interface ResponseBundle extends Resource {
  readonly entry: readonly {
    readonly response: { readonly status: string; readonly location: string }
    readonly resource?: Resource & { readonly id: string }
  }[]
}
interface Entry {
  readonly fullUrl?: string
  readonly request: Readonly<Record<string, string>>
  readonly resource?: Resource
}

const run = (type: string, entry: readonly Entry[]) =>
  client.post<ResponseBundle>('', { resourceType: 'Bundle', type, entry })
const post = (resource: Resource, more = {}): Entry => ({
  request: { method: 'POST', url: resource.resourceType, ...more },
  resource,
})
const put = (resource: Resource): Entry => ({
  request: { method: 'PUT', url: `${resource.resourceType}/${resource.id}` },
  resource,
})
const many = <T>(count: number, make: (i: number) => T): T[] =>
  Array.from({ length: count }, (_, i) => make(i))
const countTrips = (as: Client, work: () => Promise<unknown>) =>
  statementsAsked(services, as, work, countRoundTrips)
const withMrn = (value: string) => aPatient({ identifier: [{ system: MRN_SYSTEM, value }] })

const FRAME = 2

t.test('writes a Synthea record with one statement', async (t) => {
  for (const text of await syntheaTexts()) {
    const cost = await statementsAsked(services, client, async () => {
      t.equal(
        (await client.post('', text, { 'Content-Type': 'application/fhir+json' })).status,
        200,
      )
    })
    t.equal(cost, FRAME + 1)
  }
})

const aPatch = (operations: string): Resource => ({
  resourceType: 'Binary',
  contentType: 'application/json-patch+json',
  data: Buffer.from(operations).toString('base64'),
})

/** Returns 500 entries of every kind about 300 patients created by `asked`. */
async function mixed(asked: Client): Promise<Entry[]> {
  const mrn = randomUUID()
  const bundle = (entry: readonly Entry[]) => ({ resourceType: 'Bundle', type: 'batch', entry })
  const made = await asked.post<ResponseBundle>(
    '',
    bundle(many(300, (i) => post(withMrn(`${mrn}-${i}`)))),
  )
  const query = (i: number) => `identifier=${MRN_SYSTEM}|${mrn}-${i}`
  const entries = made.body.entry.map(({ resource }, i): Entry => {
    if (resource === undefined) throw new Error('A patient was not made')
    const url = `Patient/${resource.id}`
    const conditional = `Patient?${query(i)}`
    const changed = { ...withMrn(`${mrn}-${i}`), gender: 'other' }
    if (i < 60) return put({ ...resource, gender: 'other' })
    if (i < 90) return { request: { method: 'DELETE', url } }
    if (i < 110) return { request: { method: 'DELETE', url: conditional } }
    if (i < 210) return { request: { method: 'GET', url } }
    if (i < 240) return { request: { method: 'PUT', url: conditional }, resource: changed }
    const patch = aPatch('[{"op":"add","path":"/active","value":false}]')
    if (i < 260) return { request: { method: 'PATCH', url: conditional }, resource: patch }
    return { request: { method: 'PATCH', url }, resource: patch }
  })
  return [
    ...entries,
    ...many(100, () => post(anObservation(`Patient?${query(150)}`))),
    ...many(100, (i) => post(withMrn(`${mrn}-${250 + i}`), { ifNoneExist: query(250 + i) })),
  ]
}

async function mixedTransaction(as: Client) {
  const bundle = { resourceType: 'Bundle', type: 'transaction', entry: await mixed(as) }
  const answers: Record<string, number> = {}
  let statements = 0
  const trips = await countTrips(as, async () => {
    statements = await countStatements(services.database, async () => {
      const { body } = await as.post<ResponseBundle>('', bundle)
      for (const { response } of body.entry) {
        answers[response.status] = (answers[response.status] ?? 0) + 1
      }
    })
  })
  return { answers, statements, trips }
}

for (const [who, as] of [
  ['a member', client],
  ['a super admin', botica.superAdmin],
] as const) {
  t.test(`runs a transaction of 500 entries in five round trips for ${who}`, async (t) => {
    // Pipelined statements become two round trips if PostgreSQL answers the first before the second is ready, and a
    // session older than 2 s is read again.
    let made = await mixedTransaction(as)
    for (let more = 0; more < 9 && (made.trips > 5 || made.statements > 10); more++)
      made = await mixedTransaction(as)
    t.same(made.answers, { 200: 350, 201: 150 })
    // Criteria and rows to change, rows of conditional changes, writes, rows to return, commit.
    t.ok(made.trips <= 5, `${made.trips} round trips`)
    t.ok(made.statements <= 10, `${made.statements} statements`)
  })
}

t.test('begins a transaction with its first statement if it only creates', async (t) => {
  const trips = await countTrips(client, async () => {
    const entry = many(100, () => post(aPatient()))
    t.equal((await run('transaction', entry)).status, 200)
  })
  t.equal(trips, 2)
})

t.test('checks the references of a transaction with one statement', async (t) => {
  const strict = await botica.createTenant()
  const changed = { ...strict.project, checkReferencesOnWrite: true }
  t.equal((await botica.superAdmin.put(`Project/${strict.project.id}`, changed)).status, 200)
  const urn = `urn:uuid:${randomUUID()}`
  const entry = [...many(50, () => post(anObservation(urn))), { ...post(aPatient()), fullUrl: urn }]
  const bundle = { resourceType: 'Bundle', type: 'transaction', entry }
  const send = () => strict.admin.post<ResponseBundle>('', bundle)
  t.equal((await send()).status, 200)
  const cost = await statementsAsked(services, strict.admin, async () => {
    t.equal((await send()).status, 200)
  })
  t.equal(cost, FRAME + 2)

  const wrong = { ...bundle, entry: [...entry, post(anObservation(`Patient/${randomUUID()}`))] }
  const refused = await strict.admin.post('', wrong)
  t.equal(refused.status, 400)
  t.match(refused.body, {
    issue: [
      {
        code: 'structure',
        details: { text: 'Invalid reference (Not found)' },
        expression: ['Bundle.entry[51]', 'Observation.subject'],
      },
    ],
  })
})

t.test('reads many resources of a batch with one statement', async (t) => {
  const { id } = await client.create(aPatient())
  const url = `Patient/${id}`
  const cost = await statementsAsked(services, client, async () => {
    const answer = await run(
      'batch',
      many(200, () => ({ request: { method: 'GET', url } })),
    )
    t.ok(answer.body.entry.every(({ response }) => response.status === '200'))
  })
  t.equal(cost, 1)
  const admin = await statementsAsked(services, botica.superAdmin, async () => {
    const entry = many(200, () => ({ request: { method: 'GET', url } }))
    const bundle = { resourceType: 'Bundle', type: 'batch', entry }
    const answer = await botica.superAdmin.post<ResponseBundle>('', bundle)
    t.ok(answer.body.entry.every(({ response }) => response.status === '200'))
  })
  t.equal(admin, 1, 'a super admin reads those of another project')
})

t.test('deletes many resources of a batch with one statement, duplicates with two', async (t) => {
  const mrn = randomUUID()
  const made = await run(
    'batch',
    many(50, (i) => post(withMrn(`${mrn}-${i}`))),
  )
  const urls = made.body.entry.map(({ resource }) => `Patient/${resource?.id}`)
  const entries = [...urls, urls[7]].map((url = '') => ({ request: { method: 'DELETE', url } }))
  const cost = await statementsAsked(services, client, async () => {
    const answer = await run('batch', entries)
    t.ok(answer.body.entry.every(({ response }) => response.status === '200'))
  })
  t.equal(cost, 2)
  t.equal((await client.get(urls[7] ?? '')).status, 410)
  const found = await client.get(`${urls[7]}/_history`)
  t.equal((found.body as { total?: number }).total, 2, 'it was deleted once')
})

t.test('shares statements between the creates of a batch', async (t) => {
  const cost = await statementsAsked(services, client, async () => {
    const answer = await run(
      'batch',
      many(200, () => post(aPatient())),
    )
    t.ok(answer.body.entry.every(({ response }) => response.status === '201'))
  })
  t.ok(cost < 50, `${cost} statements`)
})

t.test('shares a transaction between conditional entries without a match', async (t) => {
  const mrn = randomUUID()
  const query = (i: number) => `identifier=${MRN_SYSTEM}|${mrn}-${i}`
  const entry = [
    ...many(100, (i) => post(withMrn(`${mrn}-${i}`), { ifNoneExist: query(i) })),
    ...many(50, (i): Entry => {
      const url = `Patient?${query(100 + i)}`
      return { request: { method: 'PUT', url }, resource: withMrn(`${mrn}-${100 + i}`) }
    }),
    post(withMrn(`${mrn}-7`), { ifNoneExist: query(7) }),
  ]
  const send = () => run('batch', entry)
  const trips = await countTrips(client, async () => {
    const { body } = await send()
    const statuses = body.entry.map(({ response }) => response.status)
    t.ok(statuses.slice(0, 150).every((status) => status === '201'))
    t.equal(statuses[150], '200')
    t.equal(body.entry[150]?.resource?.id, body.entry[7]?.resource?.id)
  })
  t.ok(trips <= 10, `${trips} round trips`)
  const again = await send()
  t.equal(again.body.entry.filter(({ response }) => response.status === '200').length, 151)
  const invalid = post(aPatient({ gender: 'robot', active: 'yes' }), { ifNoneExist: query(200) })
  const others = [201, 202].map((i) => post(withMrn(`${mrn}-${i}`), { ifNoneExist: query(i) }))
  const { body } = await run('batch', [...others, invalid])
  t.same(
    body.entry.map(({ response }) => response.status),
    ['201', '201', '400'],
  )
})

t.test('creates the other entries of a batch when one is rejected', async (t) => {
  const criteria = 'Patient?gender=female'
  const policy = await botica.admin.create({
    resourceType: 'AccessPolicy',
    resource: [{ resourceType: 'Patient', criteria }],
  })
  const { client: limited } = await botica.createMember({
    accessPolicy: { reference: `AccessPolicy/${policy.id}` },
  })
  const mrn = randomUUID()
  const entry = ['female', 'male', 'female'].map((gender, i) =>
    post(
      { ...withMrn(`${mrn}-${i}`), gender },
      { ifNoneExist: `identifier=${MRN_SYSTEM}|${mrn}-${i}` },
    ),
  )
  const bundle = { resourceType: 'Bundle', type: 'batch', entry }
  const { body } = await limited.post<ResponseBundle>('', bundle)
  t.same(
    body.entry.map(({ response }) => response.status),
    ['201', '403', '201'],
  )
})

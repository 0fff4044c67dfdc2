/** Imports a type guard for JSON. */
import { randomUUID } from 'node:crypto'
import t from 'tap'
import { isObject } from '../../../../shared/fhir/resource.ts'
import { openBotica } from '../../../fixtures/botica.ts'
import type { Resource } from '../../../fixtures/fhir.ts'
import { anObservation, aPatient, MRN_SYSTEM, syntheaBundles } from '../../../fixtures/resources.ts'

const botica = await openBotica(t)
const { client } = await botica.createMember()

interface ResponseEntry {
  readonly response: {
    readonly status: string
    readonly location?: string
    readonly etag?: string
    readonly lastModified?: string
    readonly outcome?: { readonly issue: readonly { details: { text: string } }[] }
  }
  readonly resource?: Resource
}
interface ResponseBundle extends Resource {
  readonly entry: readonly ResponseEntry[]
}
interface Entry {
  readonly fullUrl?: string
  readonly request?: Readonly<Record<string, string>>
  readonly resource?: Resource
}

function run(type: string, entry: readonly Entry[], headers?: Record<string, string>) {
  return client.post<ResponseBundle>('', { resourceType: 'Bundle', type, entry }, headers)
}

const post = (resource: Resource, fullUrl?: string, more = {}): Entry => ({
  ...(fullUrl === undefined ? {} : { fullUrl }),
  request: { method: 'POST', url: resource.resourceType, ...more },
  resource,
})
const get = (url: string): Entry => ({ request: { method: 'GET', url } })

const URN = 'urn:uuid:11111111-1111-4111-8111-111111111111'
const OTHER = 'urn:uuid:22222222-2222-4222-8222-222222222222'

t.test('returns a response at the position of each batch entry', async (t) => {
  const known = await client.create(aPatient())
  const answer = await run('batch', [
    get(`Patient/${known.id}`),
    post(aPatient()),
    post({ resourceType: 'Patient', foo: 1 }),
    get('Patient/nobody'),
    get('Nothing/1'),
    {},
    { request: { method: 'DELETE', url: `Patient/${known.id}` } },
  ])
  t.equal(answer.status, 200)
  t.equal(answer.body.type, 'batch-response')
  t.same(
    answer.body.entry.map(({ response }) => response.status),
    ['410', '201', '400', '404', '400', '400', '200'],
  )
  t.match(answer.body.entry[1], { response: { etag: 'W/"1"', location: /^Patient\// } })
  t.match(answer.body.entry[2]?.response.outcome, {
    issue: [{ details: { text: 'Invalid additional property "foo"' } }],
  })
})

t.test('accepts absolute URLs in entries', async (t) => {
  const { id } = await client.create(aPatient())
  const base = `${botica.baseUrl}fhir/R4/`
  const { body } = await run('batch', [
    get(`${base}Patient/${id}`),
    get(`${base}Patient?_id=${id}`),
  ])
  t.match(body.entry, [{ resource: { id } }, { resource: { resourceType: 'Bundle' } }])
})

for (const type of ['batch', 'transaction']) {
  t.test(`keeps the id of the match of a conditional update in a ${type}`, async (t) => {
    const mrn = randomUUID()
    const identifier = [{ system: MRN_SYSTEM, value: mrn }]
    const { id } = await client.create(aPatient({ identifier }))
    const request = { method: 'PUT', url: `Patient?identifier=${MRN_SYSTEM}|${mrn}` }
    const put = (sent: Readonly<Record<string, unknown>>) =>
      run(type, [{ request, resource: aPatient({ identifier, ...sent }) }])
    for (const sent of [{}, { id }]) t.equal((await put(sent)).body.entry[0]?.resource?.id, id)
    t.match((await put({ id: 'other' })).text, /Resource ID did not match resolved ID/)
  })
}

for (const type of ['batch', 'transaction']) {
  t.test(`resolves references between entries of a ${type} in any order`, async (t) => {
    const answer = await run(type, [
      post(anObservation(URN, { note: [{ text: `see ${URN} and ${OTHER}` }] }), OTHER),
      post(aPatient({ link: [{ other: { reference: URN }, type: 'seealso' }] }), URN),
    ])
    t.equal(answer.status, 200)
    const [observation, patient] = answer.body.entry.map(({ resource }) => resource)
    const reference = `Patient/${patient?.id}`
    t.match(observation, {
      subject: { reference },
      note: [{ text: `see ${reference} and Observation/${observation?.id}` }],
    })
    t.match(patient, { link: [{ other: { reference } }] })
  })
}

t.test('resolves relative references against the fullUrl of their entry', async (t) => {
  const patients = await Promise.all(['a', 'b', 'own'].map(() => client.create(aPatient())))
  const own = `Patient/${patients[2]?.id}`
  const url = (server: string, path: string) => `http://${server}.example.org/fhir/${path}`
  const entries = (fullUrls: readonly (string | undefined)[]) =>
    fullUrls.map((fullUrl) => post(anObservation(own), fullUrl))
  const answer = await run('transaction', [
    post(aPatient(), url('a', own)),
    post(aPatient(), url('b', own)),
    ...entries([url('a', 'Observation/9'), url('b', 'Observation/9'), URN, undefined]),
    {
      fullUrl: url('c', 'Observation/put'),
      request: { method: 'PUT', url: `Observation?identifier=${randomUUID()}` },
      resource: anObservation(own),
    },
  ])
  t.equal(answer.status, 200, answer.text)
  const [first, second, ...observations] = answer.body.entry.map(({ resource }) => resource)
  t.same(
    observations.map((observation) => observation?.subject),
    [`Patient/${first?.id}`, `Patient/${second?.id}`, own, own, own].map((reference) => ({
      reference,
    })),
  )
})

t.test('rolls back the transaction and names the failing entry', async (t) => {
  const mrn = `undone-${Date.now()}`
  const identifier = [{ system: MRN_SYSTEM, value: mrn }]
  const answer = await run('transaction', [
    post(aPatient({ identifier })),
    post({ resourceType: 'Patient', foo: 1 }),
  ])
  t.equal(answer.status, 400)
  t.match(answer.body, {
    resourceType: 'OperationOutcome',
    issue: [{ expression: ['Bundle.entry[1]', 'Patient.foo'] }],
  })
  const found = await client.get(`Patient?identifier=${MRN_SYSTEM}|${mrn}`)
  t.notOk(found.body.entry)
})

t.test('reads, updates and deletes in a transaction', async (t) => {
  const [first, second, third] = [
    await client.create(aPatient()),
    await client.create(aPatient()),
    await client.create(aPatient()),
  ]
  const patch = Buffer.from('[{"op":"replace","path":"/gender","value":"other"}]')
  const answer = await run('transaction', [
    get(`Patient/${second.id}`),
    {
      request: { method: 'PUT', url: `Patient/${second.id}`, ifMatch: 'W/"1"' },
      resource: { ...second, gender: 'female' },
    },
    { request: { method: 'DELETE', url: `Patient/${first.id}` } },
    {
      request: { method: 'PATCH', url: `Patient/${third.id}` },
      resource: {
        resourceType: 'Binary',
        contentType: 'application/json-patch+json',
        data: patch.toString('base64'),
      },
    },
  ])
  t.same(
    answer.body.entry.map(({ response }) => response.status),
    ['200', '200', '200', '200'],
  )
  t.equal(answer.body.entry[0]?.resource?.gender, 'female')
  t.equal(answer.body.entry[3]?.resource?.gender, 'other')
  t.equal((await client.get(`Patient/${first.id}`)).status, 410)
})

t.test('returns 412 for a stale If-Match in a transaction', async (t) => {
  const made = await client.create(aPatient())
  const answer = await run('transaction', [
    post(aPatient()),
    {
      request: { method: 'PUT', url: `Patient/${made.id}`, ifMatch: 'W/"7"' },
      resource: { ...made, gender: 'female' },
    },
  ])
  t.equal(answer.status, 412)
  t.match(answer.body, { id: 'precondition-failed', issue: [{ expression: ['Bundle.entry[1]'] }] })
})

t.test('rejects two changes of one resource in a transaction', async (t) => {
  const made = await client.create(aPatient())
  const put: Entry = { request: { method: 'PUT', url: `Patient/${made.id}` }, resource: made }
  const answer = await run('transaction', [put, put])
  t.equal(answer.status, 400)
  t.match(answer.text, 'Duplicate resource identity found in Bundle')
})

/** A patient, and a bundle entry that creates it if there is none. */
async function existing() {
  const value = randomUUID()
  const patient = aPatient({ identifier: [{ system: MRN_SYSTEM, value }] })
  const criteria = `identifier=${MRN_SYSTEM}|${value}`
  const { id } = await client.create(patient)
  return { patient, criteria, id, create: post(patient, undefined, { ifNoneExist: criteria }) }
}

t.test('rejects a transaction that deletes the match of a conditional create', async (t) => {
  const { patient, criteria, id, create } = await existing()
  for (const url of [`Patient/${id}`, `Patient?${criteria}`]) {
    const answer = await run('transaction', [create, { request: { method: 'DELETE', url } }])
    const details = { text: 'Duplicate resource identity found in Bundle' }
    const issue = [{ details, expression: ['Bundle.entry[0]'] }]
    t.match(answer, { status: 400, body: { issue } })
  }
  const put = { request: { method: 'PUT', url: `Patient/${id}` }, resource: { ...patient, id } }
  t.match((await run('transaction', [create, put])).body.entry, [
    { response: { status: '200' }, resource: { id } },
    { response: { status: '200' }, resource: { id } },
  ])
})

t.test('matches no resource that the same batch deletes', async (t) => {
  const [created, updated, patched] = [await existing(), await existing(), await existing()]
  const linked = await existing()
  const answer = await run('batch', [
    created.create,
    { request: { method: 'PUT', url: `Patient?${updated.criteria}` }, resource: updated.patient },
    {
      request: { method: 'PATCH', url: `Patient?${patched.criteria}` },
      resource: { resourceType: 'Binary', data: btoa('[{"op":"remove","path":"/gender"}]') },
    },
    post(anObservation(`Patient?${linked.criteria}`)),
    ...[created, updated, patched, linked].map(({ id, criteria }, i) => ({
      request: { method: 'DELETE', url: i === 0 ? `Patient?${criteria}` : `Patient/${id}` },
    })),
  ])
  t.same(
    answer.body.entry.map(({ response }) => response.status),
    ['201', '201', '404', '400', '200', '200', '200', '200'],
  )
  for (const [i, { id }] of [created, updated].entries()) {
    const made = answer.body.entry[i]?.resource?.id
    t.not(made, id)
    t.equal((await client.get(`Patient/${made}`)).status, 200)
    t.equal((await client.get(`Patient/${id}`)).status, 410)
  }
})

t.test('links to the match of a conditional create in a transaction', async (t) => {
  const mrn = `known-${Date.now()}`
  const known = await client.create(aPatient({ identifier: [{ system: MRN_SYSTEM, value: mrn }] }))
  const query = { ifNoneExist: `identifier=${MRN_SYSTEM}|${mrn}` }
  const answer = await run('transaction', [
    post(aPatient(), URN, query),
    post(anObservation(URN), OTHER),
  ])
  t.equal(answer.status, 200)
  t.equal(answer.body.entry[0]?.response.status, '200')
  t.match(answer.body.entry[1]?.resource, { subject: { reference: `Patient/${known.id}` } })
})

t.test('creates one resource for equal conditional creates in one bundle', async (t) => {
  const value = `twin-${Date.now()}`
  const identifier = [{ system: MRN_SYSTEM, value }]
  const query = { ifNoneExist: `identifier=${MRN_SYSTEM}|${value}` }
  const answer = await run('transaction', [
    post(aPatient({ identifier }), URN, query),
    post(aPatient({ identifier }), OTHER, query),
  ])
  t.same(
    answer.body.entry.map(({ response }) => response.status),
    ['201', '200'],
  )
  t.equal(answer.body.entry[0]?.resource?.id, answer.body.entry[1]?.resource?.id)
})

t.test('runs entries of a batch with equal criteria independently', async (t) => {
  const statuses = async (entries: readonly Entry[]) =>
    (await run('batch', entries)).body.entry.map(({ response }) => response.status)
  const equal = () => {
    const value = randomUUID()
    const criteria = `identifier=${MRN_SYSTEM}|${value}`
    return { criteria, patient: aPatient({ identifier: [{ system: MRN_SYSTEM, value }] }) }
  }
  const posts = equal()
  const query = { ifNoneExist: posts.criteria }
  const invalid = { ...posts.patient, gender: 'robot' }
  t.same(
    await statuses([
      post(invalid, undefined, query),
      post(posts.patient, undefined, query),
      post(posts.patient, undefined, query),
    ]),
    ['400', '201', '200'],
  )
  const puts = equal()
  const put = (resource: Resource) => ({
    request: { method: 'PUT', url: `Patient?${puts.criteria}` },
    resource,
  })
  t.same(
    await statuses([
      put({ ...puts.patient, gender: 'robot' }),
      put(puts.patient),
      post(puts.patient, undefined, { ifNoneExist: puts.criteria }),
    ]),
    ['400', '200', '201'],
  )
})

t.test('omits resources under return=minimal', async (t) => {
  const answer = await run('batch', [post(aPatient())], { Prefer: 'return=minimal' })
  t.match(answer.body.entry, [{ response: { status: '201', location: /^Patient\// } }])
  t.notOk(answer.body.entry[0]?.resource)
})

t.test('returns the exact time of each version, with and without the resource', async (t) => {
  const known = await client.create(aPatient())
  const url = `Patient/${known.id}`
  const { lastUpdated } = known.meta ?? {}
  const again = { request: { method: 'PUT', url }, resource: known }
  const ifNoneMatch = { request: { method: 'GET', url, ifNoneMatch: 'W/"1"' } }
  for (const prefer of ['return=minimal', 'return=representation', 'return=OperationOutcome']) {
    const [written] = (await run('transaction', [again], { Prefer: prefer })).body.entry
    t.match(written?.response, { status: '200', lastModified: lastUpdated }, prefer)
  }
  const [cut, whole, none] = (
    await run('batch', [get(`${url}?_elements=id`), get(url), ifNoneMatch])
  ).body.entry
  t.match(cut?.response, { status: '200', lastModified: lastUpdated })
  t.match(whole?.response, { status: '200', lastModified: lastUpdated })
  t.match(none?.response, { status: '304', lastModified: lastUpdated })
})

t.test('writes a whole patient record in one transaction', async (t) => {
  const [record] = await syntheaBundles()
  const answer = await client.post<ResponseBundle>('', record)
  t.equal(answer.status, 200)
  t.equal(answer.body.entry.length, record?.entry.length)
  t.ok(answer.body.entry.every(({ response }) => response.status === '201'))
  t.notMatch(answer.text, 'urn:uuid')
})

const refused: [string, unknown, string][] = [
  ['no bundle', aPatient(), 'Not a bundle'],
  ['a collection', { resourceType: 'Bundle', type: 'collection' }, 'Unrecognized bundle type: co'],
  ['a bundle without a type', { resourceType: 'Bundle' }, 'Unrecognized bundle type: undefined'],
  ['an empty bundle', { resourceType: 'Bundle', type: 'batch' }, 'Missing bundle entries'],
  [
    'a list of nothing',
    { resourceType: 'Bundle', type: 'batch', entry: [] },
    'Missing bundle entries',
  ],
  [
    '10001 entries',
    { resourceType: 'Bundle', type: 'batch', entry: Array(10_001).fill(0) },
    'More than 10000 bundle entries',
  ],
  [
    '2001 writes',
    { resourceType: 'Bundle', type: 'transaction', entry: Array(2001).fill(post(aPatient())) },
    'More than 2000 writes in a transaction',
  ],
]
for (const [name, body, text] of refused) {
  t.test(`rejects ${name}`, async (t) => {
    const answer = await client.post('', body)
    t.equal(answer.status, 400)
    t.ok(answer.text.includes(text), text)
  })
}

const oddEntries: [string, unknown, RegExp][] = [
  ['null', null, /Missing Bundle entry request/],
  ['a number', 1, /Missing Bundle entry request/],
  ['a request without a url', { request: { method: 'GET' } }, /Missing Bundle entry request url/],
  ['a method that is a number', { request: { method: 1, url: 'Patient' } }, /request method/],
  ['an unknown method', { request: { method: 'BREW', url: 'Patient' } }, /Method not allowed/],
  ['a bundle inside', { request: { method: 'POST', url: '/' } }, /Nested bundles/],
  ['a write without a resource', { request: { method: 'POST', url: 'Patient' } }, /entry resource/],
  ['an inherited method', { request: { method: 'constructor', url: 'Patient' } }, /not allowed/],
]
for (const [name, entry, text] of oddEntries) {
  t.test(`fails only the entry of ${name}`, async (t) => {
    const answer = await run('batch', [entry as Entry, post(aPatient())])
    t.equal(answer.status, 200)
    const [odd, fine] = answer.body.entry
    t.ok(isObject(odd?.response.outcome))
    t.match(odd?.response.outcome?.issue[0]?.details.text, text)
    t.equal(fine?.response.status, '201')
  })
}

import { randomUUID } from 'node:crypto'
import t from 'tap'
import { openBotica } from '../../fixtures/botica.ts'
import type { Resource } from '../../fixtures/fhir.ts'
import { anObservation, aPatient, MRN_SYSTEM } from '../../fixtures/resources.ts'

const botica = await openBotica(t)
const { client } = await botica.createMember()

interface SearchBundle extends Resource {
  readonly total?: number
  readonly link: readonly { readonly relation: string; readonly url: string }[]
  readonly entry?: readonly {
    readonly fullUrl?: string
    readonly search: { readonly mode: string }
    readonly resource: Resource
  }[]
}

/** Returns a patient with a unique MRN and the search that finds it. */
function known() {
  const value = randomUUID()
  const query = `identifier=${encodeURIComponent(`${MRN_SYSTEM}|${value}`)}`
  return { patient: aPatient({ identifier: [{ system: MRN_SYSTEM, value }] }), query }
}

function findLink(bundle: SearchBundle, relation: string): string | undefined {
  return bundle.link.find((link) => link.relation === relation)?.url
}

t.test('creates once with If-None-Exist and then returns the match', async (t) => {
  const { patient, query } = known()
  const first = await client.post('Patient', patient, { 'If-None-Exist': query })
  t.equal(first.status, 201)
  const second = await client.post('Patient', patient, { 'If-None-Exist': `Patient?${query}` })
  t.equal(second.status, 200)
  t.equal(second.body.id, first.body.id)
  t.equal(second.headers.get('etag'), 'W/"1"')
  t.ok(second.headers.get('location')?.endsWith(`Patient/${first.body.id}/_history/1`))
  const other = { ...patient, id: randomUUID() }
  const third = await client.post('Patient', other, { 'If-None-Exist': query })
  t.equal(third.status, 400)
  t.match(third.body, {
    issue: [
      { details: { text: 'Resource ID did not match resolved ID' }, expression: ['Patient.id'] },
    ],
  })
})

t.test('creates one resource for racing conditional creates', async (t) => {
  const { patient, query } = known()
  const answers = await Promise.all(
    Array.from({ length: 8 }, () => client.post('Patient', patient, { 'If-None-Exist': query })),
  )
  t.equal(answers.filter(({ status }) => status === 201).length, 1)
  t.equal(new Set(answers.map(({ body }) => body.id)).size, 1)
})

t.test('accepts :in with a ValueSet in criteria', async (t) => {
  const [url, system] = [
    `http://example.org/vs/${randomUUID()}`,
    `http://example.org/${randomUUID()}`,
  ]
  const include = [{ system, concept: [{ code: 'a' }, { code: 'b' }] }]
  const valueSet = { resourceType: 'ValueSet', url, status: 'active', compose: { include } }
  t.equal((await client.post('ValueSet', valueSet)).status, 201)
  const query = `code:in=${encodeURIComponent(url)}`
  const basic = (code: string) => ({ resourceType: 'Basic', code: { coding: [{ system, code }] } })
  const create = (code: string) => client.post('Basic', basic(code), { 'If-None-Exist': query })
  const first = await create('b')
  t.equal(first.status, 201)
  const second = await create('a')
  t.equal(second.status, 200)
  t.equal(second.body.id, first.body.id)
  t.equal((await client.put(`Basic?${query}`, basic('a'))).body.id, first.body.id)
  const fullUrl = `urn:uuid:${randomUUID()}`
  const entry = [
    {
      fullUrl,
      resource: basic('b'),
      request: { method: 'POST', url: 'Basic', ifNoneExist: query },
    },
    {
      resource: { ...basic('c'), subject: { reference: `Basic?${query}` } },
      request: { method: 'POST', url: 'Basic' },
    },
  ]
  const done = await client.post('', { resourceType: 'Bundle', type: 'transaction', entry })
  t.match(done.body, { entry: [{ response: { status: '200' } }, { response: { status: '201' } }] })
  const unknown = await client.post('Basic', basic('a'), { 'If-None-Exist': 'code:in=http://no' })
  t.equal(unknown.status, 400)
  t.match(unknown.body, { issue: [{ expression: ['code:in'] }] })
})

for (const type of ['batch', 'transaction']) {
  t.test(`links to the match of a conditional update in a ${type} by its fullUrl`, async (t) => {
    const { patient, query } = known()
    const { id } = await client.create(patient)
    const url = (path: string) => `http://source.example.org/fhir/${path}`
    const observations = ['Patient/1', url('Patient/1')].map((reference, i) => ({
      fullUrl: url(`Observation/${i}`),
      resource: anObservation(reference),
      request: { method: 'POST', url: 'Observation' },
    }))
    const entry = [
      ...observations,
      {
        fullUrl: url('Patient/1'),
        resource: patient,
        request: { method: 'PUT', url: `Patient?${query}` },
      },
    ]
    const { body } = await client.post('', { resourceType: 'Bundle', type, entry })
    const subject = { reference: `Patient/${id}` }
    const linked = { response: { status: '201' }, resource: { subject } }
    t.match(body, { entry: [linked, linked, { response: { status: '200' } }] })
  })

  t.test(`restores a deleted resource that a conditional update in a ${type} names`, async (t) => {
    const { superAdmin } = botica
    const { patient, query } = known()
    const id = randomUUID()
    const request = { method: 'PUT', url: `Patient?${query}` }
    const entry = [{ request, resource: { ...patient, id } }]
    const put = () => superAdmin.post('', { resourceType: 'Bundle', type, entry })
    t.match((await put()).body, { entry: [{ response: { status: '201' }, resource: { id } }] })
    t.equal((await superAdmin.del(`Patient/${id}`)).status, 200)
    t.match((await put()).body, {
      entry: [{ response: { status: '200' }, resource: { id, meta: { versionId: '3' } } }],
    })
  })
}

t.test('returns 412 for several matches of any conditional interaction', async (t) => {
  const { patient, query } = known()
  await client.create(patient)
  await client.create(patient)
  const answers = [
    await client.post('Patient', patient, { 'If-None-Exist': query }),
    await client.put(`Patient?${query}`, patient),
    await client.patch(`Patient?${query}`, [{ op: 'remove', path: '/gender' }]),
    await client.del(`Patient?${query}`),
  ]
  for (const { status, body } of answers) {
    t.equal(status, 412)
    t.equal(body.id, 'multiple-matches')
  }
})

t.test('creates by a conditional update, then updates', async (t) => {
  const { patient, query } = known()
  const made = await client.put(`Patient?${query}`, patient)
  t.equal(made.status, 201)
  const changed = await client.put(`Patient?${query}`, { ...patient, gender: 'female' })
  t.equal(changed.status, 200)
  t.equal(changed.body.id, made.body.id)
  t.equal(changed.headers.get('etag'), 'W/"2"')
})

t.test('rejects client ids in a conditional update without the right to choose them', async (t) => {
  const { patient, query } = known()
  const answer = await client.put(`Patient?${query}`, { ...patient, id: randomUUID() })
  t.equal(answer.status, 400)
  t.match(answer.text, 'Cannot perform create as update with client-assigned ID')
})

t.test('requires a match for a conditional patch', async (t) => {
  const { patient, query } = known()
  const patch = [{ op: 'replace', path: '/gender', value: 'other' }]
  t.equal((await client.patch(`Patient?${query}`, patch)).status, 404)
  await client.create(patient)
  const answer = await client.patch(`Patient?${query}`, patch)
  t.equal(answer.status, 200)
  t.equal(answer.body.gender, 'other')
})

t.test('returns 412 for If-Match without a match, and creates nothing', async (t) => {
  const { patient, query } = known()
  for (const header of ['W/"3"', '*']) {
    const { status } = await client.put(`Patient?${query}`, patient, { 'If-Match': header })
    t.equal(status, 412, header)
  }
  t.equal((await client.get<SearchBundle>(`Patient?${query}&_total=accurate`)).body.total, 0)
})

t.test('deletes one match, or as many as requested', async (t) => {
  const { patient, query } = known()
  t.equal((await client.del(`Patient?${query}`)).status, 200)
  const one = await client.create(patient)
  t.equal((await client.del(`Patient?${query}`)).body.id, 'ok')
  t.equal((await client.get(`Patient/${one.id}`)).status, 410)
  const made = [await client.create(patient), await client.create(patient)]
  t.equal((await client.del(`Patient?${query}&_count=2`)).status, 200)
  for (const { id } of made) t.equal((await client.get(`Patient/${id}`)).status, 410)
})

t.test('rejects an If-None-Exist that searches another type', async (t) => {
  const { patient, query } = known()
  const ifNoneExist = `Practitioner?${query}`
  const request = { method: 'POST', url: 'Patient', ifNoneExist }
  const entry = [{ resource: patient, request }]
  for (const { status, text } of [
    await client.post('Patient', patient, { 'If-None-Exist': ifNoneExist }),
    await client.post('', { resourceType: 'Bundle', type: 'transaction', entry }),
  ]) {
    t.equal(status, 400)
    t.match(text, 'If-None-Exist must search Patient, not Practitioner')
  }
  t.equal((await client.get<SearchBundle>(`Patient?${query}&_total=accurate`)).body.total, 0)
})

t.test('deletes one match at most when _count has no value', async (t) => {
  const { patient, query } = known()
  const made = [await client.create(patient), await client.create(patient)]
  const url = `Patient?${query}&_count=`
  t.equal((await client.del(url)).status, 412)
  for (const type of ['batch', 'transaction']) {
    const entry = [{ request: { method: 'DELETE', url } }]
    t.match(
      (await client.post('', { resourceType: 'Bundle', type, entry })).text,
      'matched multiple',
    )
  }
  for (const { id } of made) t.equal((await client.get(`Patient/${id}`)).status, 200)
})

const withoutCriteria: [string, () => Promise<{ status: number }>][] = [
  ['delete', () => client.del('Patient')],
  ['delete with a count', () => client.del('Patient?_count=5')],
  ['update', () => client.put('Patient', aPatient())],
  ['patch', () => client.patch('Patient', [])],
  ['create', () => client.post('Patient', aPatient(), { 'If-None-Exist': '' })],
  [
    'create with an unknown one',
    () => client.post('Patient', aPatient(), { 'If-None-Exist': 'x=1' }),
  ],
]
for (const [name, send] of withoutCriteria) {
  t.test(`requires search criteria for a conditional ${name}`, async (t) => {
    t.equal((await send()).status, 400)
  })
}

t.test('returns a Bundle of matches and links from a search', async (t) => {
  const { patient, query } = known()
  const made = [
    await client.create(patient),
    await client.create(patient),
    await client.create(patient),
  ]
  const first = await client.get<SearchBundle>(`Patient?${query}&_count=2`)
  t.equal(first.status, 200)
  t.match(first.body, { resourceType: 'Bundle', type: 'searchset' })
  t.notOk('total' in first.body)
  t.equal(first.body.entry?.length, 2)
  for (const { fullUrl, search, resource } of first.body.entry ?? []) {
    t.equal(search.mode, 'match')
    t.ok(fullUrl?.endsWith(`/fhir/R4/Patient/${resource.id}`))
  }
  t.match(findLink(first.body, 'self'), /_count=2&identifier=/)
  const next = new URL(findLink(first.body, 'next') ?? '')
  const second = await client.get<SearchBundle>(`${next.pathname}${next.search}`)
  t.notOk(findLink(second.body, 'next'))
  const seen = [first, second].flatMap(({ body }) => body.entry ?? [])
  t.same(seen.map(({ resource }) => resource.id).sort(), made.map(({ id }) => id).sort())
})

t.test('returns a total on request', async (t) => {
  const { patient, query } = known()
  await client.create(patient)
  const counted = await client.get<SearchBundle>(`Patient?${query}&_total=accurate`)
  t.equal(counted.body.total, 1)
  const summary = await client.get<SearchBundle>(`Patient?${query}&_summary=count`)
  t.equal(summary.body.total, 1)
  t.notOk(summary.body.entry)
})

t.test('combines a form with the query of its URL', async (t) => {
  const { patient, query } = known()
  const { id } = await client.create(patient)
  const form = { 'Content-Type': 'application/x-www-form-urlencoded' }
  const found = await client.post<SearchBundle>('Patient/_search?_count=1', query, form)
  t.equal(found.status, 200)
  t.equal(found.body.entry?.[0]?.resource.id, id)
  const object = Object.fromEntries(new URLSearchParams(query))
  const again = await client.post<SearchBundle>('Patient/_search', object)
  t.equal(again.body.entry?.[0]?.resource.id, id)
  t.equal(
    (await client.post('Patient/_search', '<a/>', { 'Content-Type': 'text/xml' })).status,
    415,
  )
})

t.test('returns 400 for an unknown parameter, or a warning under lenient handling', async (t) => {
  const { query } = known()
  const strict = await client.get(`Patient?nothing=1&${query}`)
  t.equal(strict.status, 400)
  t.match(strict.text, 'Unknown search parameter: nothing')
  const lenient = await client.get<SearchBundle>(`Patient?nothing=1&${query}`, {
    Prefer: 'handling=lenient',
  })
  t.equal(lenient.status, 200)
  t.match(lenient.body.entry, [
    { search: { mode: 'outcome' }, resource: { issue: [{ severity: 'warning' }] } },
  ])
  t.notMatch(findLink(lenient.body, 'self'), 'nothing')
})

t.test('rejects unsupported searches', async (t) => {
  for (const path of ['Binary', '?_type=Patient,Binary', '']) {
    t.equal((await client.get(path)).status, 400, path)
  }
})

t.test('rejects conditional headers that an interaction does not support', async (t) => {
  const { id } = (await client.post('Patient', aPatient())).body
  const path = `Patient/${id}`
  const tag = 'W/"1"'
  const patch = [{ op: 'add', path: '/active', value: true }]
  const batch = { resourceType: 'Bundle', type: 'batch', entry: [] }
  const json = { 'Content-Type': 'application/json-patch+json' }
  const values: Readonly<Record<string, string>> = {
    'If-Match': tag,
    'If-None-Match': '*',
    'If-None-Exist': 'name=x',
    'If-Unmodified-Since': 'Mon, 01 Jan 2001 00:00:00 GMT',
  }
  const wrong: [string, string, string, unknown, Record<string, string>][] = [
    ['If-Match', 'POST', 'Patient', aPatient(), {}],
    ['If-None-Match', 'POST', 'Patient', aPatient(), {}],
    ['If-None-Exist', 'PUT', path, { ...aPatient(), id }, {}],
    ['If-None-Exist', 'PATCH', path, patch, json],
    ['If-None-Match', 'PATCH', path, patch, json],
    ['If-None-Match', 'DELETE', path, undefined, {}],
    ['If-Match', 'DELETE', `Patient?_id=${id}`, undefined, {}],
    ['If-Match', 'POST', '', batch, {}],
    ['If-Unmodified-Since', 'PUT', path, { ...aPatient(), id }, {}],
    ['If-Unmodified-Since', 'DELETE', path, undefined, {}],
    ['If-None-Exist', 'POST', `${path}/$meta-add`, { resourceType: 'Parameters' }, {}],
    ['If-Match', 'POST', `${path}/$meta-add`, { resourceType: 'Parameters' }, {}],
  ]
  for (const [header, method, url, body, more] of wrong) {
    const value = values[header] ?? ''
    const headers = { ...more, [header]: value }
    const answer =
      method === 'POST'
        ? await client.post(url, body, headers)
        : method === 'PUT'
          ? await client.put(url, body, headers)
          : method === 'PATCH'
            ? await client.patch(url, body, headers)
            : await client.del(url, headers)
    const text = `${header} does not apply to this interaction`
    const issue = [{ code: 'not-supported', details: { text } }]
    t.match(answer, { status: 400, body: { issue } }, `${method} ${url} ${header}`)
  }
  t.equal((await client.get(path)).headers.get('etag'), tag)
  t.equal((await client.get(path, { 'If-Match': 'W/"9"' })).status, 200, 'a read has no effect')
  const found = await client.get(`Patient?_id=${id}`, { 'If-None-Match': tag })
  t.equal(found.status, 200)
})

t.test('rejects unsupported conditional headers in a bundle with their position', async (t) => {
  const entry = (request: object) => ({ resource: aPatient(), request })
  const send = (type: string, request: object) =>
    client.post('', {
      resourceType: 'Bundle',
      type,
      entry: [entry({ method: 'POST', url: 'Patient' }), entry(request)],
    })
  const cases: [object, string][] = [
    [{ method: 'POST', url: 'Patient', ifMatch: 'W/"1"' }, 'ifMatch'],
    [{ method: 'PUT', url: 'Patient/x', ifNoneExist: 'name=x' }, 'ifNoneExist'],
    [{ method: 'DELETE', url: 'Patient/x', ifNoneMatch: '*' }, 'ifNoneMatch'],
    [{ method: 'POST', url: 'Patient', ifNoneExist: 5 }, 'ifNoneExist'],
  ]
  for (const [request, member] of cases) {
    const place = `Bundle.entry[1].request.${member}`
    const whole = [{ expression: ['Bundle.entry[1]', place] }]
    t.match(await send('transaction', request), { status: 400, body: { issue: whole } })
    const issue = [{ expression: [place] }]
    t.match(await send('batch', request), {
      status: 200,
      body: {
        entry: [
          { response: { status: '201' } },
          { response: { status: '400', outcome: { issue } } },
        ],
      },
    })
  }
})

t.test('lists only applied preferences on a read', async (t) => {
  const { id } = (await client.post('Patient', aPatient())).body
  const read = await client.get(`Patient/${id}`, { Prefer: 'return=minimal, handling=strict' })
  t.match(read, { status: 200, body: { id } })
  t.equal(read.headers.get('preference-applied'), 'handling=strict')
})

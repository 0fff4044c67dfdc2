import { randomUUID } from 'node:crypto'
import t from 'tap'
import { openBotica } from '../../fixtures/botica.ts'
import type { Resource } from '../../fixtures/fhir.ts'
import { anObservation, aPatient } from '../../fixtures/resources.ts'

const botica = await openBotica(t)
const { admin } = botica
const projectId = botica.project.id
const { client } = await botica.createMember()
const { admin: stranger } = await botica.createTenant()

type Outcome = Resource & {
  readonly issue: readonly { code: string; details: { text: string }; expression?: string[] }[]
}
interface HistoryBundle extends Resource {
  readonly total: number
  readonly link: readonly { relation: string; url: string }[]
  readonly entry: readonly {
    readonly request: { method: string; url: string }
    readonly response: { status: string; etag: string }
    readonly resource?: Resource
  }[]
}

t.test('returns id, version, location and ETag of a created resource', async (t) => {
  const sent = aPatient({ id: 'mine', meta: { versionId: '9', tag: [{ code: 'x' }] } })
  const made = await client.post('Patient', sent)
  t.equal(made.status, 201)
  t.match(made.body.id, /^[0-9a-f]{8}-[0-9a-f]{4}-7[0-9a-f]{3}-[0-9a-f]{4}-[0-9a-f]{12}$/)
  t.match(made.body.meta, { versionId: '1', lastUpdated: /Z$/, tag: [{ code: 'x' }] })
  t.equal(made.headers.get('etag'), 'W/"1"')
  t.ok(made.headers.get('location')?.endsWith(`/fhir/R4/Patient/${made.body.id}/_history/1`))
  t.match(made.headers.get('content-type'), 'application/fhir+json')
  t.ok(made.headers.get('last-modified'))
})

t.test('returns the stored text on a read, including decimals', async (t) => {
  const valued = { valueQuantity: { value: 0, unit: 'kg' } }
  const sent = JSON.stringify(anObservation('Patient/x', valued)).replace(
    '"value":0',
    '"value":1.00',
  )
  const made = await client.post('Observation', sent, { 'Content-Type': 'application/fhir+json' })
  const read = await client.get(`Observation/${made.body.id}`)
  t.equal(read.status, 200)
  t.equal(read.text, made.text)
  t.match(read.text, '"value":1.00')
  t.ok(read.text.startsWith(`{"resourceType":"Observation","id":"${made.body.id}","meta":{`))
})

t.test('finds a UUID in upper case', async (t) => {
  const { id } = await client.create(aPatient())
  t.equal((await client.get(`Patient/${id.toUpperCase()}`)).status, 200)
})

t.test('shows platform meta in extended mode only', async (t) => {
  const { id } = await client.create(aPatient())
  const plain = await client.get(`Patient/${id}`)
  t.notOk(plain.body.meta?.project)
  const extended = await client.get(`Patient/${id}`, { 'X-Medplum': 'extended' })
  t.equal(extended.body.meta?.project, projectId)
  t.match(extended.body.meta?.author?.reference, /^ClientApplication\//)
})

t.test('accepts meta.lastUpdated from authorized importers only', async (t) => {
  const time = '2019-03-04T05:06:07.089Z'
  const sent = (lastUpdated: string, more: object = {}) =>
    aPatient({ ...more, meta: { lastUpdated, project: projectId } })
  const { superAdmin } = botica
  const made = await superAdmin.post('Patient', sent('2019-03-04T07:06:07.089+02:00'))
  t.match(made.body.meta, { versionId: '1', lastUpdated: time })
  t.equal(made.headers.get('last-modified'), 'Mon, 04 Mar 2019 05:06:07 GMT')
  t.equal((await admin.get(`Patient/${made.body.id}`)).text, made.text)
  const found = `Patient?_id=${made.body.id}&_lastUpdated=`
  t.match((await admin.get(`${found}lt2020`)).body, { entry: [{ resource: made.body }] })
  t.notOk((await admin.get(`${found}ge2020`)).body.entry)

  const at = `Patient/${randomUUID()}`
  const put = await superAdmin.put(at, sent(time, { id: at.slice('Patient/'.length) }))
  t.match(put, { status: 201, body: { meta: { lastUpdated: time } } })
  const entry = [time, undefined].map((lastUpdated) => ({
    request: { method: 'POST', url: 'Patient' },
    resource: aPatient(lastUpdated === undefined ? {} : { meta: { lastUpdated } }),
  }))
  const { body } = await superAdmin.post<{ entry: { response: { lastModified: string } }[] }>('', {
    resourceType: 'Bundle',
    type: 'transaction',
    entry,
  })
  t.equal(body.entry[0]?.response.lastModified, time)
  t.not(body.entry[1]?.response.lastModified, time)

  const past = await superAdmin.post('Patient', sent('2999-01-01T00:00:00Z'))
  t.ok(Date.parse(past.body.meta?.lastUpdated ?? '') < Date.parse('2999-01-01'))
  t.equal((await superAdmin.post('Patient', sent('2019-03-04'))).status, 400)
  const { lastUpdated } = (await admin.create(sent(time))).meta ?? {}
  t.not(lastUpdated, time)
  const changed = await superAdmin.put(at, { ...put.body, gender: 'other' })
  t.match(changed, { status: 200, body: { meta: { versionId: '2' } } })
  t.not(changed.body.meta?.lastUpdated, time)
})

t.test('creates a version for a changed update only', async (t) => {
  const made = await client.create(aPatient())
  const changed = await client.put(`Patient/${made.id}`, { ...made, gender: 'female' })
  t.equal(changed.status, 200)
  t.equal(changed.headers.get('etag'), 'W/"2"')
  const again = await client.put(`Patient/${made.id}`, { ...made, gender: 'female' })
  t.equal(again.status, 200)
  t.equal(again.headers.get('etag'), 'W/"2"')
  const first = await client.get(`Patient/${made.id}/_history/1`)
  t.equal(first.body.gender, 'male')
})

t.test('rejects an update with a stale version', async (t) => {
  const made = await client.create(aPatient())
  const path = `Patient/${made.id}`
  const second = { ...made, gender: 'other' }
  t.equal((await client.put(path, second, { 'If-Match': 'W/"1"' })).status, 200)
  const stale = await client.put(path, { ...made, gender: 'unknown' }, { 'If-Match': 'W/"1"' })
  t.equal(stale.status, 412)
  t.equal(stale.body.id, 'precondition-failed')
  const listed = { 'If-Match': 'W/"1", "2"' }
  t.equal((await client.put(path, { ...made, gender: 'unknown' }, listed)).status, 200)
  t.equal((await client.put(path, made, { 'If-Match': 'W/"x"' })).status, 412)
  t.equal((await client.put(path, made, { 'If-None-Match': '*' })).status, 412)
  t.equal((await client.del(path, { 'If-Match': 'W/"1"' })).status, 412)
})

t.test('requires matching id and type on an update', async (t) => {
  const made = await client.create(aPatient())
  const { id: _id, ...nameless } = made
  const wrong: [Resource, string][] = [
    [{ ...made, id: 'other' }, 'Incorrect resource ID'],
    [nameless, 'Missing id'],
    [{ ...made, resourceType: 'Group' }, 'Incorrect resource type'],
  ]
  for (const [body, text] of wrong) {
    const answer = await client.put<Outcome>(`Patient/${made.id}`, body)
    t.equal(answer.status, 400)
    t.ok(answer.body.issue[0]?.details.text.startsWith(text), text)
  }
})

t.test('creates by update only for clients that may choose ids', async (t) => {
  const id = randomUUID()
  const body = aPatient({ id })
  t.equal((await client.put(`Patient/${id}`, body)).status, 404)
  t.equal((await botica.superAdmin.put(`Patient/${id}`, body)).status, 201)
})

t.test('changes only patched elements and keeps decimals', async (t) => {
  const made = await client.create(aPatient())
  const path = `Patient/${made.id}`
  const answer = await client.patch(path, [
    { op: 'test', path: '/gender', value: 'male' },
    { op: 'replace', path: '/gender', value: 'female' },
    { op: 'add', path: '/telecom/-', value: { system: 'phone', value: '1' } },
  ])
  t.equal(answer.status, 200)
  t.match(answer.body, { gender: 'female', telecom: [{ value: '1' }], birthDate: '1974-12-25' })
  const refused: [unknown, string][] = [
    [[{ op: 'test', path: '/gender', value: 'male' }], 'Patch operation 0 (/gender) test failed'],
    [[{ op: 'replace', path: '/id', value: 'x' }], 'Incorrect ID'],
    [[{ op: 'add', path: '/foo', value: 1 }], 'Invalid additional property "foo"'],
    [{ op: 'add' }, 'Patch body must be an array'],
  ]
  for (const [patch, text] of refused) {
    const failed = await client.patch<Outcome>(path, patch)
    t.equal(failed.status, 400, text)
    t.equal(failed.body.issue[0]?.details.text, text)
  }
  const empty = await client.patch<Outcome>(path, '', { 'Content-Type': 'application/json' })
  t.equal(empty.body.issue[0]?.details.text, 'Empty patch body')
})

t.test('returns 410 for a deleted resource, keeps its history and restores it', async (t) => {
  const made = await client.create(aPatient())
  const path = `Patient/${made.id}`
  const deleted = await client.del(path)
  t.equal(deleted.status, 200)
  t.equal(deleted.body.id, 'ok')
  t.equal(deleted.headers.get('etag'), 'W/"2"')
  const read = await client.get<Outcome>(path)
  t.equal(read.status, 410)
  t.match(read.body, { id: 'gone', issue: [{ code: 'deleted' }] })
  t.equal((await client.del(path)).status, 200)
  t.equal((await client.get(`${path}/_history/1`)).status, 200)
  t.equal((await client.get(`${path}/_history/2`)).status, 410)
  const back = await client.put(path, made)
  t.equal(back.status, 200)
  t.equal(back.headers.get('etag'), 'W/"3"')
  const history = await client.get<HistoryBundle>(`${path}/_history`)
  t.equal(history.body.total, 3)
  t.match(
    history.body.entry.map(({ request, response }) => [request.method, response.status]),
    [
      ['PUT', '200'],
      ['DELETE', '410'],
      ['POST', '201'],
    ],
  )
  t.notOk(history.body.entry[1]?.resource)
})

t.test('pages a history, newest first', async (t) => {
  const made = await client.create(aPatient())
  const path = `Patient/${made.id}`
  for (const gender of ['female', 'other', 'unknown']) await client.put(path, { ...made, gender })
  const page = await client.get<HistoryBundle>(`${path}/_history?_count=2&_offset=1`)
  t.equal(page.body.total, 4)
  t.match(
    page.body.entry.map(({ response }) => response.etag),
    ['W/"3"', 'W/"2"'],
  )
  const next = page.body.link.find(({ relation }) => relation === 'next')
  t.match(next?.url, /_offset=3/)
  t.equal((await client.get(`${path}/_history?_count=x`)).status, 400)
  t.equal((await client.get(`${path}/_history?_offset=10001`)).status, 400)
})

t.test('returns 304 for an unchanged resource', async (t) => {
  const { id } = await client.create(aPatient())
  const first = await client.get(`Patient/${id}`)
  const modified = first.headers.get('last-modified') ?? ''
  const fresh: Record<string, string>[] = [
    { 'If-None-Match': 'W/"1"' },
    { 'If-None-Match': '"7", W/"1"' },
    { 'If-None-Match': '*' },
    { 'If-Modified-Since': modified },
  ]
  for (const headers of fresh) {
    const answer = await client.get(`Patient/${id}`, headers)
    t.equal(answer.status, 304)
    t.equal(answer.text, '')
    t.equal(answer.headers.get('etag'), 'W/"1"')
  }
  const stale = { 'If-None-Match': 'W/"7"', 'If-Modified-Since': modified }
  t.equal((await client.get(`Patient/${id}`, stale)).status, 200)
})

t.test('answers HEAD as GET without a body', async (t) => {
  const { id } = await client.create(aPatient())
  const answer = await fetch(`${botica.baseUrl}fhir/R4/Patient/${id}`, {
    method: 'HEAD',
    headers: { Authorization: `Bearer ${client.token}` },
  })
  t.equal(answer.status, 200)
  t.equal(answer.headers.get('etag'), 'W/"1"')
  t.equal(await answer.text(), '')
})

t.test('starts no work on HEAD', async (t) => {
  const headers = { Authorization: `Bearer ${client.token}` }
  for (const path of ['$export', 'Patient/$export', 'Bot/some/$execute', '$nobody-knows']) {
    const answer = await fetch(`${botica.baseUrl}fhir/R4/${path}`, { method: 'HEAD', headers })
    t.equal(answer.status, 405, path)
    t.equal(answer.headers.get('allow'), 'GET, POST')
  }
  const exported = await client.put('Patient/$export', {})
  t.match([exported.status, exported.headers.get('allow')], [405, 'GET, POST'])
  const { id } = await client.create(aPatient())
  const url = `${botica.baseUrl}fhir/R4/Patient/${id}/$everything`
  t.equal((await fetch(url, { method: 'HEAD', headers })).status, 200)
})

t.test('applies Prefer to the response of a write', async (t) => {
  const minimal = await client.post('Patient', aPatient(), { Prefer: 'return=minimal' })
  t.equal(minimal.status, 201)
  t.equal(minimal.text, '')
  t.equal(minimal.headers.get('preference-applied'), 'return=minimal')
  t.ok(minimal.headers.get('location'))
  const told = { Prefer: 'handling=lenient, return=OperationOutcome' }
  const outcome = await client.post('Patient', aPatient(), told)
  t.equal(outcome.status, 201)
  t.match(outcome.body, { resourceType: 'OperationOutcome', id: 'created' })
})

t.test('tags resources shortened by _elements and _summary', async (t) => {
  const { id } = await client.create(aPatient())
  const elements = await client.get(`Patient/${id}?_elements=birthDate`)
  t.match(elements.body, { id, birthDate: '1974-12-25', meta: { tag: [{ code: 'SUBSETTED' }] } })
  t.notOk(elements.body.name)
  const summary = await client.get(`Patient/${id}?_summary=true`)
  t.ok(summary.body.name)
  t.equal((await client.get(`Patient/${id}?_summary=x`)).status, 400)
})

t.test('indents resources and outcomes with _pretty', async (t) => {
  const { id } = await client.create(aPatient())
  t.match((await client.get('Patient/nobody?_pretty=true')).text, /^{\n {2}"resourceType"/)
  t.match((await client.get(`Patient/${id}?_pretty=true`)).text, /^{\n {2}"resourceType"/)
})

t.test('hides resources from another project', async (t) => {
  const made = await client.create(aPatient())
  const path = `Patient/${made.id}`
  t.equal((await stranger.get(path)).status, 404)
  t.equal((await stranger.get(`${path}/_history`)).status, 404)
  t.equal((await stranger.get(`${path}/_history/1`)).status, 404)
  t.equal((await stranger.put(path, made)).status, 404)
  t.equal((await stranger.del(path)).status, 404)
  t.equal((await client.get(path)).status, 200)
})

t.test('returns a stored OperationOutcome unchanged', async (t) => {
  const made = await client.create({
    resourceType: 'OperationOutcome',
    issue: [{ severity: 'error', code: 'invalid' }],
  })
  t.notOk(made.extension)
  t.notOk((await client.get(`OperationOutcome/${made.id}`)).body.extension)
})

t.test('keeps a decimal when another element is patched', async (t) => {
  const sent = JSON.stringify(anObservation('Patient/x')).replace('"value":72', '"value":72.0')
  const made = await client.post('Observation', sent, { 'Content-Type': 'application/fhir+json' })
  const path = `Observation/${made.body.id}`
  const answer = await client.patch(path, [{ op: 'add', path: '/language', value: 'en' }])
  t.match(answer.text, '"value":72.0')
})

import t from 'tap'
import { openBotica } from '../../fixtures/botica.ts'
import { aPatient } from '../../fixtures/resources.ts'

const botica = await openBotica(t)
const { admin } = botica

const tag = { system: 'https://example.org/tags', code: 'vip' }
const withMeta = (meta: object) => ({
  resourceType: 'Parameters',
  parameter: [{ name: 'meta', valueMeta: meta }],
})

t.test('adds, returns and removes tags', async (t) => {
  const { id } = await admin.create(aPatient())

  const added = await admin.post(`Patient/${id}/$meta-add`, withMeta({ tag: [tag] }))
  t.equal(added.status, 200)
  t.match(added.body, {
    parameter: [{ name: 'return', valueMeta: { versionId: '2', tag: [tag] } }],
  })
  const again = await admin.post(`Patient/${id}/$meta-add`, withMeta({ tag: [tag] }))
  t.match(again.body, { parameter: [{ valueMeta: { versionId: '2' } }] }, 'no new version')
  const shown = await admin.get(`Patient/${id}/$meta`)
  t.match(shown.body, { parameter: [{ name: 'return', valueMeta: { tag: [tag] } }] })
  const found = await admin.get<{ entry: unknown[] }>(`Patient?_tag=${tag.system}|vip&_id=${id}`)
  t.equal(found.body.entry.length, 1)

  const other = { tag: [{ system: tag.system, code: 'other' }] }
  const missed = await admin.post(`Patient/${id}/$meta-delete`, withMeta(other))
  t.match(missed.body, { parameter: [{ valueMeta: { versionId: '2', tag: [tag] } }] })
  const removed = await admin.post(`Patient/${id}/$meta-delete`, withMeta({ tag: [tag] }))
  t.match(removed.body, { parameter: [{ valueMeta: { versionId: '3' } }] })
  t.notOk(removed.text.includes('vip'))
})

t.test('accepts plain JSON in place of Parameters', async (t) => {
  const { id } = await admin.create(aPatient())
  const added = await admin.post(`Patient/${id}/$meta-add`, { meta: { tag: [tag] } })
  t.match(added, {
    status: 200,
    body: { parameter: [{ name: 'return', valueMeta: { tag: [tag] } }] },
  })
})

t.test(
  'rejects elements of meta that do not exist, and ignores those that the server sets',
  async (t) => {
    const { id } = await admin.create(aPatient())
    const path = `Patient/${id}/$meta-add`
    const misspelt = await admin.post(path, withMeta({ tags: [tag] }))
    t.match(misspelt, { status: 400, body: { issue: [{ expression: ['meta.tags'] }] } })
    const whole = { versionId: '1', lastUpdated: '2026-01-01T00:00:00Z', tag: [tag] }
    t.equal((await admin.post(path, withMeta(whole))).status, 200)
  },
)

t.test('names the parameter of an operation that cannot be read', async (t) => {
  const { id } = await admin.create(aPatient())
  for (const [path, name] of [
    [`Patient/${id}/$everything?start=nope`, 'start'],
    [`Patient/${id}/$everything?_type=Nope`, '_type'],
    [`Patient/${id}/$everything?_since=nope`, '_since'],
    [`DocumentReference/$docref?patient=${id}&start=nope`, 'start'],
    ['Patient/$csv', '_fields'],
    ['Patient/$csv?_fields=name&_count=x', '_count'],
  ] as const) {
    const answer = await admin.get(path)
    t.match(answer, { status: 400, body: { issue: [{ expression: [name] }] } }, answer.text)
  }
})

t.test('rejects invalid meta without a change', async (t) => {
  const { id } = await admin.create(aPatient())
  const path = `Patient/${id}/$meta-add`
  const bodies = [
    {},
    { meta: 'vip' },
    { meta: [{ tag: [tag] }, { tag: [tag] }] },
    [],
    { resourceType: 'Patient' },
    { resourceType: 'Parameters', parameter: {} },
    { resourceType: 'Parameters', parameter: [{ valueMeta: {} }] },
    { resourceType: 'Parameters', parameter: [{ name: 'meta', valueString: 'x' }] },
    withMeta({ tag: 'vip' }),
    withMeta({ tag: [{ cod: 'vip' }] }),
  ]
  for (const body of bodies) {
    const { status, body: outcome } = await admin.post(path, body)
    t.equal(status, 400, JSON.stringify(body))
    t.equal(outcome.resourceType, 'OperationOutcome')
  }
  t.equal((await admin.post(path)).status, 400)
  t.equal((await admin.get(path)).status, 405)
  t.match(await admin.get(`Patient/${id}`), { body: { meta: { versionId: '1' } } })
})

t.test('limits an operation to readable resources', async (t) => {
  const { admin: stranger } = await botica.createTenant()
  const { id } = await admin.create(aPatient())
  t.equal((await stranger.get(`Patient/${id}/$meta`)).status, 404)
  const added = await stranger.post(`Patient/${id}/$meta-add`, withMeta({ tag: [tag] }))
  t.equal(added.status, 404)
})

t.test('returns the requested format', async (t) => {
  const { id } = await admin.create(aPatient())
  const pretty = await admin.get(`Patient/${id}/$meta?_pretty=true`)
  t.match(pretty.text, '\n  "')
  const plain = await admin.get(`Patient/${id}/$meta`, { Accept: 'application/json' })
  t.equal(plain.headers.get('content-type'), 'application/json; charset=utf-8')
  t.equal((await admin.get(`Patient/${id}/$meta?_format=xml`)).status, 406)
  t.equal((await admin.get(`Patient/${id}/$nothing`)).status, 404)
  t.equal((await admin.get('$nothing')).status, 404)
})

t.test('omits empty elements', async (t) => {
  const { admin: fresh } = await botica.createTenant()
  t.same((await fresh.get('Basic/$meta')).body, { resourceType: 'Parameters' })
})

t.test('names the request in an operation’s outcome', async (t) => {
  const answers = [
    await admin.post('Patient/$validate', aPatient()),
    await admin.post('Patient/$validate', aPatient({ nonsense: 1 })),
  ]
  for (const { headers, body } of answers) {
    const parts = [{ url: 'requestId', valueId: headers.get('x-request-id') }]
    t.match(body, { extension: [{ extension: parts }] })
  }
})

/** Members of a bundle that would be ignored or are ambiguous are rejected with their path, and ids of other resources. */
import { randomUUID } from 'node:crypto'
import t, { type Test } from 'tap'
import { openBotica } from '../../../fixtures/botica.ts'
import type { OperationOutcome, Resource } from '../../../fixtures/fhir.ts'
import { anObservation, aPatient } from '../../../fixtures/resources.ts'

const botica = await openBotica(t)
const { client } = await botica.createMember()

interface ResponseBundle extends Resource {
  readonly entry: readonly {
    readonly response: { readonly status: string; readonly outcome?: OperationOutcome }
  }[]
}

const send = <T>(type: string, entry: readonly object[], more = {}) =>
  client.post<T>('', { resourceType: 'Bundle', type, entry, ...more })

/** Requires status 400 with the path, of the entry in a batch and of the whole transaction. */
async function rejects(t: Test, entries: readonly object[], index: number, path: string) {
  const whole = await send<OperationOutcome>('transaction', entries)
  t.equal(whole.status, 400, whole.text)
  t.match(whole.body.issue[0]?.expression?.at(-1), path)
  const { body } = await send<ResponseBundle>('batch', entries)
  t.match(body.entry[index]?.response, {
    status: '400',
    outcome: { issue: [{ expression: [path] }] },
  })
}

const create = (more = {}, request = {}) => ({
  resource: aPatient(),
  request: { method: 'POST', url: 'Patient', ...request },
  ...more,
})

t.test('rejects an unknown member of an entry, such as a misspelt condition', async (t) => {
  const misspelt = create({}, { ifNoneExists: 'identifier=urn:mrn|1' })
  await rejects(t, [create(), misspelt], 1, 'Bundle.entry[1].request.ifNoneExists')
  await rejects(t, [create({ fullURL: 'urn:uuid:1' })], 0, 'Bundle.entry[0].fullURL')
})

t.test('rejects an unknown member of a bundle', async (t) => {
  const answer = await send('batch', [create()], { entries: [] })
  t.match(answer, {
    status: 400,
    body: { issue: [{ code: 'structure', expression: ['Bundle.entries'] }] },
  })
})

t.test('accepts all members that FHIR defines', async (t) => {
  const more = {
    id: 'e1',
    link: [{ relation: 'self', url: 'urn:x' }],
    search: { mode: 'match' },
    response: { status: '200' },
    extension: [{ url: 'urn:x', valueString: 'x' }],
    _fullUrl: { id: 'f1' },
  }
  const head = { id: 'b1', meta: {}, timestamp: '2026-01-01T00:00:00Z', total: 1, link: [] }
  const answer = await send<ResponseBundle>('batch', [create(more, { id: 'r1' })], head)
  t.equal(answer.status, 200, answer.text)
  t.equal(answer.body.entry[0]?.response.status, '201')
})

t.test('rejects a second entry with the same fullUrl', async (t) => {
  const fullUrl = 'urn:uuid:11111111-1111-4111-8111-111111111111'
  const observation = {
    resource: anObservation(fullUrl),
    request: { method: 'POST', url: 'Observation' },
  }
  const entries = [create({ fullUrl }), observation, create({ fullUrl })]
  await rejects(t, entries, 2, 'Bundle.entry[2].fullUrl')
})

t.test('rejects an ifNoneExist that names another entry', async (t) => {
  const fullUrl = `urn:uuid:${randomUUID()}`
  const observation = (value: string, name = 'subject') => ({
    resource: anObservation(fullUrl),
    request: { method: 'POST', url: 'Observation', ifNoneExist: `${name}=${value}` },
  })
  for (const value of [fullUrl, encodeURIComponent(fullUrl), fullUrl.toUpperCase()]) {
    const place = 'Bundle.entry[0].request.ifNoneExist'
    await rejects(t, [observation(value), create({ fullUrl })], 0, place)
  }
  const identifier = observation(`urn:ietf:rfc:3986|urn:uuid:${randomUUID()}`, 'identifier')
  const answer = await send('transaction', [identifier, create({ fullUrl })])
  t.equal(answer.status, 200, answer.text)
})

t.test('rejects a time of ifModifiedSince that cannot be read', async (t) => {
  const request = { method: 'GET', url: 'Patient/1', ifModifiedSince: 'yesterday' }
  await rejects(t, [{ request }], 0, 'Bundle.entry[0].request.ifModifiedSince')
})

t.test('rejects a patch whose Binary is not a JSON Patch', async (t) => {
  const { id } = await client.create(aPatient())
  const data = Buffer.from('[{"op":"add","path":"/active","value":true}]').toString('base64')
  const patch = (contentType: string) => ({
    resource: { resourceType: 'Binary', contentType, data },
    request: { method: 'PATCH', url: `Patient/${id}` },
  })
  await rejects(t, [patch('text/plain')], 0, 'Bundle.entry[0].resource.contentType')
  const { body } = await send<ResponseBundle>('batch', [patch('application/json-patch+json')])
  t.equal(body.entry[0]?.response.status, '200')
})

t.test('keeps a resource that a conditional update names without matching it', async (t) => {
  const { superAdmin } = botica
  const { id } = await superAdmin.create(aPatient())
  const url = `Patient?identifier=${randomUUID()}`
  const entry = [{ request: { method: 'PUT', url }, resource: { ...aPatient(), id } }]
  t.equal((await superAdmin.put(url, { ...aPatient(), id })).status, 409)
  const bundle = { resourceType: 'Bundle', entry }
  t.equal((await superAdmin.post('', { ...bundle, type: 'transaction' })).status, 409)
  t.match((await superAdmin.post('', { ...bundle, type: 'batch' })).body, {
    entry: [{ response: { status: '409' } }],
  })
  t.match((await superAdmin.get(`Patient/${id}`)).body, { meta: { versionId: '1' } })
})

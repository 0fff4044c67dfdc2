/** For any body, the event loop of web serves other requests and no response is a 5xx. */
import { randomUUID } from 'node:crypto'
import { once } from 'node:events'
import { Readable } from 'node:stream'
import { setTimeout as delay } from 'node:timers/promises'
import type { Worker } from 'node:worker_threads'
import { gzipSync } from 'node:zlib'
import t from 'tap'
import { cpuMs, watchTurns } from '../../fixtures/attacks/turns.ts'
import { openBotica, until } from '../../fixtures/botica.ts'
import type { Resource } from '../../fixtures/fhir.ts'
import { aPatient, MRN_SYSTEM } from '../../fixtures/resources.ts'
import { holdRow, waitingFor } from '../../fixtures/store/held-rows.ts'

const botica = await openBotica(t)
const { admin, anonymous, baseUrl } = botica
const json = { 'Content-Type': 'application/fhir+json' }

interface Outcome {
  readonly resourceType: 'OperationOutcome'
  readonly issue: readonly { readonly code: string; readonly details: { readonly text: string } }[]
}

const MB = 1_000_000
const aBody = (members: string) => `{"resourceType":"Patient",${members}}`
const many = (bytes: number, make: (i: number) => string) =>
  Array.from({ length: bytes / make(99_999).length }, (_, i) => make(i)).join(',')
const long = (bytes: number, text: string) => text.repeat(bytes / text.length)

t.test('answers a body of 2 MB of unknown keys in few turns', async (t) => {
  const text = aBody(many(2 * MB, (i) => `"k${i}":1`))
  const parse = cpuMs(() => JSON.parse(text))
  const body = Buffer.from(text)

  const stop = watchTurns()
  const answer = await admin.post<Outcome>('Patient', body, json)
  const { longest } = stop()

  t.equal(answer.status, 400)
  t.equal(answer.body.issue.length, 100)
  t.match(answer.body.issue[0]?.details.text, 'Invalid additional property')
  t.ok(longest < 3 * parse, `takes ${longest} ms, less than ${3 * parse} ms`)
})

t.test('answers other requests while it validates a large body', async (t) => {
  const patient = await admin.create(aPatient())
  const body = Buffer.from(aBody(many(2 * MB, (i) => `"k${i}":1`)))
  let isOver = false
  const { resolve, promise: isSent } = Promise.withResolvers<void>()
  const stream = Readable.from(pieces(body, resolve))
  const large = fetch(`${baseUrl}fhir/R4/Patient`, {
    method: 'POST',
    headers: { ...json, Authorization: `Bearer ${admin.token}` },
    body: Readable.toWeb(stream) as ReadableStream,
    duplex: 'half',
  } as RequestInit).then(async (response) => {
    isOver = true
    await response.arrayBuffer()
    return response.status
  })

  await isSent
  let before = 0
  for (let i = 0; i < 10; i++) {
    t.equal((await admin.get(`Patient/${patient.id}`)).status, 200)
    if (!isOver) before++
  }
  t.ok(before > 0, 'some are answered before it')
  t.equal(await large, 400)
})

function* pieces(body: Buffer, sent: () => void) {
  for (let at = 0; at < body.length; at += 65_536) yield body.subarray(at, at + 65_536)
  sent()
}

const BODIES: [name: string, path: string, body: string, status: number][] = [
  ['a code of 10 MB', 'Patient', aBody(`"gender":"${long(10 * MB, 'a ')}b"`), 400],
  ['a language of 1 MB', 'Patient', aBody(`"language":"${long(MB, 'a ')}b"`), 201],
  ['a long OID', 'Patient', aBody(`"implicitRules":"urn:oid:1${long(2 * MB, '.1')}"`), 400],
  ['a date of 2 MB', 'Patient', aBody(`"birthDate":"${long(2 * MB, '1')}"`), 400],
  ['a text of digits', 'Patient', aBody(`"name":[{"text":":${long(MB, '1')}"}]`), 201],
  ['a date of digits', 'Patient', aBody(`"birthDate":":${long(8 * MB, '1')}"`), 400],
  ['empty objects', 'Patient', aBody(`"name":[${many(2 * MB, () => '{}')}]`), 400],
  ['decimals', 'Patient', aBody(`"active":[${many(2 * MB, () => '1.0')}]`), 400],
  ['many extensions', 'Patient', aBody(`"extension":[${many(MB, anExtension)}]`), 201],
  ['many names', 'Patient', aBody(`"name":[${many(2 * MB, (i) => `{"family":"${i}"}`)}]`), 400],
  ['many levels', 'Patient', '['.repeat(2 * MB), 400],
  ['keys in $validate', 'Patient/$validate', aBody(many(MB, (i) => `"k${i}":1`)), 400],
  ['keys in an entry', '', aTransaction(aBody(many(MB, (i) => `"k${i}":1`))), 400],
  ['many elements', 'StructureDefinition', aStructure(many(MB, anElement)), 400],
  ['search parameters', 'Patient/_search', `{"name":[${many(2 * MB, () => '"a"')}]}`, 400],
  ['a GraphQL query', '$graphql', JSON.stringify({ query: `{${long(2 * MB, ' a')}}` }), 413],
  ['a Binary as a resource', 'Binary', aBinary(many(MB, () => '1.0')), 400],
  ['JSON as content', 'Binary', `{"a":[${many(MB, () => '1.0')}]}`, 201],
  ['a mail', '/email/v1/send', `{"to":[${many(MB, () => '1.0')}]}`, 400],
  ['an admin route', '/admin/projects/x/client', `{"name":[${many(MB, () => '1.0')}]}`, 413],
]

function anExtension(i: number): string {
  return `{"url":"http://example.org/${i}","valueCode":"x"}`
}

function anElement(i: number): string {
  return `{"id":"Patient.a${i}","path":"Patient.a${i}"}`
}

function aBinary(values: string): string {
  return `{"resourceType":"Binary","contentType":"text/plain","data":[${values}]}`
}

function aTransaction(resource: string): string {
  const entry = `{"request":{"method":"POST","url":"Patient"},"resource":${resource}}`
  return `{"resourceType":"Bundle","type":"transaction","entry":[${entry}]}`
}

function aStructure(elements: string): string {
  const head =
    '"resourceType":"StructureDefinition","url":"http://example.org/s","name":"S","status":"active"'
  const rest = '"kind":"resource","abstract":false,"type":"Patient"'
  return `{${head},${rest},"differential":{"element":[${elements}]}}`
}

// The first query loads the library, which the web process does at its start.
await admin.post('$graphql', { query: '{PatientList{id}}' })

for (const [name, path, body, status] of BODIES) {
  t.test(`${name}: returns ${status} and keeps the event loop free`, async (t) => {
    const bytes = Buffer.from(body)
    // The time that this process takes to send a body of this size.
    const other = cpuMs(() => JSON.parse(`[${long(body.length, '{"a":[1]},')}1]`))

    const stop = watchTurns()
    const answer = await admin.post(path, bytes, json)
    const { longest } = stop()

    t.equal(answer.status, status, answer.text.slice(0, 300))
    t.ok(longest < other + 50, `takes ${longest} ms, at most ${other + 50} ms`)
  })
}

t.test('accepts a thousand search parameters', async (t) => {
  const form = { 'Content-Type': 'application/x-www-form-urlencoded' }
  const search = (count: number) =>
    admin.post('Patient/_search', Array<string>(count).fill('name=a').join('&'), form)
  t.equal((await search(1000)).status, 200)
  t.match(await search(1001), { status: 400, body: { issue: [{ code: 'too-costly' }] } })
})

t.test('checks token and rate limit before a large body', async (t) => {
  const body = aBody(`"name":[${many(MB, (i) => `{"text":"${i}"}`)}]`)
  t.equal((await anonymous.post('Patient', body, json)).status, 401)
  const resource = [{ resourceType: 'Patient' }]
  const policy = await admin.create({ resourceType: 'AccessPolicy', resource })
  const member = await botica.createMember({
    accessPolicy: { reference: `AccessPolicy/${policy.id}` },
  })
  const ipAccessRule = [{ value: '127.0.0.0/8', action: 'block' }]
  await admin.put(`AccessPolicy/${policy.id}`, { ...policy, ipAccessRule })
  t.equal((await member.client.post('Patient', body, json)).status, 403)
})

t.test('accepts large bodies that are compressed or have no Content-Length', async (t) => {
  const body = aBody(`"name":[${many(MB, (i) => `{"text":"${i}"}`)}]`)
  const made = await admin.post('Patient', gzipSync(body), { ...json, 'Content-Encoding': 'gzip' })
  t.equal(made.status, 201)
  t.equal((await admin.get(`Patient/${made.body.id}`)).text.length, made.text.length)
  t.equal((await admin.put(`Patient/${made.body.id}`, { ...made.body, active: true })).status, 200)
  t.equal((await admin.get(`Patient/${made.body.id}`)).body.active, true)
})

t.test('returns 503 when the thread dies, and serves the next request', async (t) => {
  const other = await openBotica(t)
  const body = Buffer.from(aBody(many(2 * MB, (i) => `"k${i}":1`)))
  const started = once(process, 'worker')
  const large = other.admin.post('Patient', body, json)
  const [worker] = (await started) as [Worker]
  await worker.terminate()

  const answer = await large
  t.equal(answer.status, 503)
  t.equal(answer.headers.get('retry-after'), '2')
  const valid = aBody(`"name":[${many(MB, (i) => `{"text":"${i}"}`)}]`)
  t.equal((await other.admin.post('Patient', valid, json)).status, 201)
})

t.test('starts no bundle whose caller has left while it waited', async (t) => {
  // The thread runs one bundle at a time.
  const env = { WEB_MEMORY_MB: '256', LARGE_BODY_BYTES: '1024' }
  const { admin, baseUrl, services } = await openBotica(t, { env })
  const name = [{ text: long(2000, 'x') }]
  const aBundle = (method: string, url: string, resource: Resource) => ({
    resourceType: 'Bundle',
    type: 'transaction',
    entry: [{ request: { method, url }, resource: { ...resource, name } }],
  })
  const made = await admin.create(aPatient())
  const { pid, release } = await holdRow(services.database, made.id)
  const first = admin.post('', aBundle('PUT', `Patient/${made.id}`, made))
  await until(async () => (await waitingFor(services.database, pid)).length > 0, 60_000)

  const mrn = randomUUID()
  const patient = aPatient({ identifier: [{ system: MRN_SYSTEM, value: mrn }] })
  const leaving = new AbortController()
  const second = fetch(`${baseUrl}fhir/R4/`, {
    method: 'POST',
    headers: { ...json, Authorization: `Bearer ${admin.token}` },
    body: JSON.stringify(aBundle('POST', 'Patient', patient)),
    signal: leaving.signal,
  })
  second.catch(() => undefined)
  // Until it waits in the thread, which nothing shows.
  await delay(2000)
  leaving.abort()
  await t.rejects(second)
  await delay(500)
  await release()
  t.equal((await first).status, 200)
  t.equal((await admin.post('', aBundle('POST', 'Patient', aPatient()))).status, 200)
  t.match(await admin.get(`Patient?identifier=${MRN_SYSTEM}|${mrn}&_total=accurate`), {
    body: { total: 0 },
  })
})

import { gunzipSync } from 'node:zlib'
import t from 'tap'
import { openBotica } from '../../fixtures/botica.ts'
import { fetchManifest, kickOff } from '../../fixtures/exports/exports.ts'
import { anOrganization } from '../../fixtures/resources.ts'
import { createDatabase } from '../../fixtures/store/own-database.ts'

const botica = await openBotica(t, {
  worker: true,
  env: { DATABASE_URL: await createDatabase(t) },
})
const { admin } = botica
const { client } = await botica.createMember()

const json = { 'Content-Type': 'application/fhir+json' }
const entry = Array.from({ length: 50 }, () => ({
  request: { method: 'POST', url: 'Organization' },
  resource: anOrganization(),
}))
await admin.post('', JSON.stringify({ resourceType: 'Bundle', type: 'batch', entry }), json)
const url = await kickOff(client, '$export?_type=Organization')
const { output } = await fetchManifest(client, url)
const file = output[0]?.url ?? ''

interface Got {
  readonly status: number
  readonly headers: Headers
  readonly bytes: Buffer
}

/** Requests a file without decompression, which fetch would apply. */
async function get(headers: Record<string, string>, method = 'GET'): Promise<Got> {
  const { request } = await import('node:http')
  const { promise, resolve, reject } = Promise.withResolvers<Got>()
  const authorization = { Authorization: `Bearer ${client.token}` }
  const asked = request(file, { method, headers: { ...authorization, ...headers } }, (response) => {
    const chunks: Buffer[] = []
    response.on('data', (chunk: Buffer) => chunks.push(chunk))
    response.on('end', () => {
      const found = new Headers()
      for (const [name, value] of Object.entries(response.headers)) found.set(name, String(value))
      resolve({ status: response.statusCode ?? 0, headers: found, bytes: Buffer.concat(chunks) })
    })
  })
  asked.on('error', reject)
  asked.end()
  return promise
}

const whole = (await get({})).bytes
const FORMS = [
  ['plain', {}],
  ['packed', { 'Accept-Encoding': 'gzip' }],
] as const

t.test('serves the same lines in both forms', async (t) => {
  const packed = await get({ 'Accept-Encoding': 'gzip' })
  t.equal(packed.headers.get('content-encoding'), 'gzip')
  t.ok(gunzipSync(packed.bytes).equals(whole))
  t.ok(packed.bytes.length < whole.length)
  const lines = whole.toString().split('\n')
  t.equal(lines.pop(), '', 'ends the last line with a line feed')
  t.equal(lines.length, 50)
  for (const line of lines) t.equal(JSON.parse(line).resourceType, 'Organization')
})

for (const [form, headers] of FORMS) {
  t.test(`serves a ${form} file with the headers for caching and resuming`, async (t) => {
    const all = await get(headers)
    const etag = all.headers.get('etag') ?? ''
    t.equal(all.headers.get('content-type'), 'application/fhir+ndjson')
    t.equal(all.headers.get('content-length'), String(all.bytes.length))
    t.equal(all.headers.get('cache-control'), 'private, no-store')
    t.equal(all.headers.get('vary')?.includes('Accept-Encoding'), true)
    t.equal(all.headers.get('accept-ranges'), 'bytes')
    t.equal(all.headers.get('x-content-type-options'), 'nosniff')
    t.match(all.headers.get('content-disposition'), /^attachment/)

    const head = await get(headers, 'HEAD')
    t.equal(head.status, 200)
    t.equal(head.headers.get('content-length'), String(all.bytes.length))
    t.equal(head.headers.get('etag'), etag)
    t.equal(head.bytes.length, 0)

    t.equal((await get({ ...headers, 'If-None-Match': etag })).status, 304)
    t.equal((await get({ ...headers, 'If-None-Match': '"other"' })).status, 200)

    const size = all.bytes.length
    for (const [range, start, end] of [
      ['bytes=0-9', 0, 9],
      ['bytes=7-', 7, size - 1],
      ['bytes=-5', size - 5, size - 1],
      [`bytes=100-${size + 100}`, 100, size - 1],
    ] as const) {
      const part = await get({ ...headers, Range: range })
      t.equal(part.status, 206, range)
      t.equal(part.headers.get('content-range'), `bytes ${start}-${end}/${size}`)
      t.ok(part.bytes.equals(all.bytes.subarray(start, end + 1)), range)
    }
    const beyond = await get({ ...headers, Range: `bytes=${size}-` })
    t.equal(beyond.status, 416)
    t.equal(beyond.headers.get('content-range'), `bytes */${size}`)
    const same = await get({ ...headers, Range: 'bytes=0-9', 'If-Range': etag })
    t.equal(same.status, 206)
    const changed = await get({ ...headers, Range: 'bytes=0-9', 'If-Range': '"other"' })
    t.equal(changed.status, 200)
  })
}

t.test('gives compressed and plain files different ETags', async (t) => {
  const tags = await Promise.all(FORMS.map(async ([, headers]) => (await get(headers)).headers))
  t.not(tags[0]?.get('etag'), tags[1]?.get('etag'))
})

t.test('serves files as NDJSON and rejects other formats', async (t) => {
  for (const accept of ['application/fhir+ndjson', 'application/ndjson', '*/*']) {
    t.equal((await get({ Accept: accept })).status, 200, accept)
  }
  for (const accept of [
    'text/csv',
    'application/fhir+ndjson;q=0, */*',
    'text/csv, application/*; Q=0.00, */*',
    '*/*;q=0',
  ]) {
    t.equal((await get({ Accept: accept })).status, 406, accept)
  }
  const last = 'application/fhir+ndjson;q=0.1, */*;q=0'
  t.equal(
    (await get({ Accept: last })).status,
    200,
    'accepts the format with the lowest quality value',
  )
})

t.test('returns 404 for names outside the manifest and 401 without a token', async (t) => {
  for (const name of [
    '2.Organization.ndjson',
    '01.Organization.ndjson',
    '1.Patient.ndjson',
    '..%2F..%2Fetc',
    'a',
    '',
  ]) {
    t.equal((await client.get(`${url}/files/${name}`)).status, 404, name)
  }
  t.equal((await botica.anonymous.get(file)).status, 401)
  t.equal((await client.get(`${url.slice(0, -36)}${'-'.repeat(36)}`)).status, 404)
  t.equal((await client.post(url, {})).status, 405)
})

import { randomBytes } from 'node:crypto'
import t from 'tap'
import { type Binary, download, upload } from '../../fixtures/binaries.ts'
import { openBotica } from '../../fixtures/botica.ts'
import type { Client } from '../../fixtures/client.ts'
import { aPatient } from '../../fixtures/resources.ts'

const botica = await openBotica(t)
const { admin } = botica
const FHIR = { Accept: 'application/fhir+json' }
const text = 'Grüße, 健康'

const raw = (path: string, client: Client = admin, headers: Record<string, string> = {}) =>
  download(botica, path, client, { headers })

t.test('stores content of any type unchanged and returns its URL', async (t) => {
  const bytes = randomBytes(300_000)
  const made = await admin.post<Binary>('Binary', bytes, { 'Content-Type': 'image/png' })
  t.equal(made.status, 201)
  const { id } = made.body
  t.equal(made.headers.get('location'), `${botica.baseUrl}fhir/R4/Binary/${id}/_history/1`)
  t.same(Object.keys(made.body), ['resourceType', 'id', 'meta', 'contentType', 'url'])
  t.match(made.body, { resourceType: 'Binary', meta: { versionId: '1' }, contentType: 'image/png' })

  const read = await raw(`Binary/${id}`)
  t.equal(read.status, 200)
  t.ok(read.bytes.equals(bytes))
  t.match(Object.fromEntries(read.headers), {
    'content-type': 'image/png',
    'content-length': '300000',
    'accept-ranges': 'bytes',
    etag: '"1"',
    'x-content-type-options': 'nosniff',
    'content-security-policy': /^sandbox/,
  })
  t.ok((await raw(made.body.url)).bytes.equals(bytes))
})

t.test('content without a type, and no content at all, are stored', async (t) => {
  const untyped = await admin.post<Binary>('Binary', randomBytes(3))
  t.match(untyped.body, { contentType: 'application/octet-stream' })
  for (const body of ['', undefined]) {
    const empty = await admin.post<Binary>('Binary', body, { 'Content-Type': 'text/plain' })
    t.equal(empty.status, 201)
    const read = await raw(`Binary/${empty.body.id}`)
    t.equal(read.status, 200)
    t.equal(read.headers.get('content-length'), '0')
    t.equal(read.bytes.length, 0)
  }
})

t.test('selects the resource or its content by Accept and _raw', async (t) => {
  const { id } = await upload(admin, text, 'text/plain')
  const asked: readonly [string, Record<string, string>, RegExp][] = [
    ['', FHIR, /^application\/fhir\+json/],
    ['', { Accept: 'application/fhir+json, */*; q=0.1' }, /^application\/fhir\+json/],
    ['?_format=json', { Accept: '*/*' }, /^application\/fhir\+json/],
    ['?_raw=true', FHIR, /^text\/plain$/],
    ['', { Accept: '*/*' }, /^text\/plain$/],
    ['', { Accept: 'image/png' }, /^text\/plain$/],
    ['', { Accept: 'application/json' }, /^text\/plain$/],
    ['/_history/1', { Accept: '*/*' }, /^text\/plain$/],
    ['/_history/1', FHIR, /^application\/fhir\+json/],
  ]
  for (const [query, headers, type] of asked) {
    const read = await raw(`Binary/${id}${query}`, admin, headers)
    t.match(read.headers.get('content-type') ?? '', type, `${query} ${headers.Accept}`)
  }
})

t.test('returns content in the resource only on request, and not above 10 MiB', async (t) => {
  const { id } = await upload(admin, text, 'text/plain')
  t.notOk((await admin.get(`Binary/${id}`, FHIR)).body.data)
  const whole = await admin.get(`Binary/${id}?_data=true`, FHIR)
  t.equal(Buffer.from(String(whole.body.data), 'base64').toString(), text)
  const largest = await upload(admin, Buffer.alloc(10 * 1024 * 1024), 'image/png')
  t.ok((await admin.get(`Binary/${largest.id}?_data=true`, FHIR)).body.data)
  const large = await upload(admin, Buffer.alloc(10 * 1024 * 1024 + 1), 'image/png')
  t.notOk((await admin.get(`Binary/${large.id}?_data=true`, FHIR)).body.data)
})

t.test('a resource with data is stored as its content', async (t) => {
  const data = Buffer.from(text).toString('base64')
  const made = await admin.post<Binary>('Binary', {
    resourceType: 'Binary',
    contentType: 'text/plain',
    data,
  })
  t.equal(made.status, 201)
  t.notOk(made.body.data)
  t.equal((await raw(`Binary/${made.body.id}`)).bytes.toString(), text)
  const row = await botica.services.repository.readMany({ ...(await principal()) }, [
    { type: 'Binary', id: made.body.id },
  ])
  t.notMatch(row[0]?.content ?? '', data)
  const read = await admin.get<Binary>(`Binary/${made.body.id}`, FHIR)
  t.match(read.body, { resourceType: 'Binary', contentType: 'text/plain', data })
  t.equal((await admin.get<Binary>(`Binary/${made.body.id}/_history/1`, FHIR)).body.data, data)
  const part = await admin.get<Binary>(`Binary/${made.body.id}?_elements=contentType`, FHIR)
  t.notOk(part.body.data)
  const again = await admin.put<Binary>(`Binary/${made.body.id}`, read.body)
  t.equal(again.body.meta?.versionId, '1', 'accepts the content as it was read')
  const large = Buffer.alloc(5 * 1024 * 1024 + 1).toString('base64')
  const { body } = await admin.post<Binary>('Binary', { ...read.body, data: large })
  const shown = await admin.get<Binary>(`Binary/${body.id}`, FHIR)
  t.notOk(shown.body.data)
  t.ok(shown.body.url)
})

t.test('pages that are named may show attachments in a frame', async (t) => {
  const env = { FRAME_ANCESTORS: 'https://app.example.org, https://*.example.com' }
  const framed = await openBotica(t, { env })
  const createPolicy = async (type: string) => {
    const { url } = await upload(framed.admin, 'x', type)
    return (await download(framed, url)).headers.get('content-security-policy')
  }
  const ancestors = 'frame-ancestors https://app.example.org https://*.example.com'
  t.equal(await createPolicy('application/pdf'), ancestors)
  t.match(await createPolicy('text/html'), /^sandbox; default-src 'none'; frame-ancestors 'none'/)
  const { url } = await upload(admin, 'x', 'application/pdf')
  t.match((await download(botica, url)).headers.get('content-security-policy'), /^sandbox/)
})

async function principal() {
  const session = await botica.services.principals.forProfile(
    `ClientApplication/${botica.adminCredentials.id}`,
  )
  if (session === undefined) throw new Error('The client has no session')
  return session.principal
}

t.test('stores FHIR JSON of other types as content', async (t) => {
  for (const body of [JSON.stringify(aPatient()), '{"a":1}', '[1', 'plain text']) {
    const { id } = await upload(admin, body, 'application/fhir+json')
    t.equal((await raw(`Binary/${id}?_raw=true`)).bytes.toString(), body)
  }
  const large = JSON.stringify({ a: 'x'.repeat(17 * 1024 * 1024) })
  const { id } = await upload(admin, large, 'application/fhir+json')
  t.equal((await raw(`Binary/${id}?_raw=true`)).bytes.length, large.length)
})

t.test('rejects malformed resources', async (t) => {
  const base = { resourceType: 'Binary', contentType: 'text/plain' }
  const refused: readonly [unknown, number, RegExp][] = [
    [{ ...base, data: 'a' }, 400, /Invalid base64Binary/],
    [{ ...base, data: 'ab=c' }, 400, /Invalid base64Binary/],
    [{ ...base, data: 'äöüß' }, 400, /Invalid base64Binary/],
    [{ ...base, data: '' }, 400, /Invalid base64Binary/],
    [{ ...base, data: 7 }, 400, /Invalid base64Binary/],
    [{ resourceType: 'Binary', data: 'AAAA' }, 400, /Missing required property/],
    [{ ...base, colour: 'red' }, 400, /Invalid additional property/],
    [{ ...base, securityContext: { display: 'x' } }, 400, /securityContext/],
    [{ ...base, securityContext: { reference: 'Binary/1' } }, 400, /securityContext/],
    [{ ...base, data: 'A'.repeat(17 * 1024 * 1024) }, 413, /too large/],
    ['{"resourceType":"Binary","contentType":', 400, /could not be parsed/],
  ]
  for (const [body, status, message] of refused) {
    const answer = await admin.post('Binary', body, { 'Content-Type': 'application/fhir+json' })
    t.equal(answer.status, status)
    t.match(answer.text, message)
  }
})

t.test('rejects or neutralizes dangerous headers and names', async (t) => {
  const type = { 'Content-Type': 'text/plain' }
  const long = 'x'.repeat(20_000)
  for (const context of ['Patient', 'Patient/1 Patient/2', `Patient/${long}`, 'Binary/1', 'No/1']) {
    const answer = await admin.post('Binary', 'x', { ...type, 'X-Security-Context': context })
    t.equal(answer.status, 400, context.slice(0, 40))
  }
  const names: readonly [string, RegExp][] = [
    ['a".txt', /^inline; filename="a\\"\.txt"$/],
    ['../../etc/pass\r\nwd', /^inline; filename=passwd$/],
    ['C:\\ü.txt', /^inline; filename="\?\.txt"; filename\*=UTF-8''%C3%BC\.txt$/],
    [long, /^inline; filename=x{255}$/],
  ]
  for (const [name, disposition] of names) {
    const { id } = await upload(admin, 'x', 'text/plain', `?_filename=${encodeURIComponent(name)}`)
    const read = await raw(`Binary/${id}`)
    t.match(read.headers.get('content-disposition') ?? '', disposition)
  }
  const odd = await admin.post<Binary>('Binary', {
    resourceType: 'Binary',
    contentType: 'text/ü x',
  })
  t.equal(
    (await raw(`Binary/${odd.body.id}`)).headers.get('content-type'),
    'application/octet-stream',
  )
  const wide = await admin.post('Binary', 'x', { ...type, ['X'.repeat(30_000)]: 'x' })
  t.equal(wide.status, 201)
})

t.test('never runs HTML or SVG in the service’s origin', async (t) => {
  for (const type of ['text/html', 'image/svg+xml', 'application/xhtml+xml', 'text/javascript']) {
    const { id, url } = await upload(admin, '<script>1</script>', type, '?_filename=a.html')
    for (const read of [await raw(`Binary/${id}`), await download(botica, url)]) {
      t.match(read.headers.get('content-disposition') ?? '', /^attachment; filename=a.html$/)
      t.match(read.headers.get('content-security-policy') ?? '', /^sandbox; default-src 'none'/)
      t.equal(read.headers.get('x-content-type-options'), 'nosniff')
    }
  }
})

t.test('a change of the content creates a version and keeps the old one', async (t) => {
  const { id } = await upload(admin, 'one', 'text/plain', '?_filename=a.txt')
  const put = await admin.put<Binary>(`Binary/${id}`, 'two', { 'Content-Type': 'text/csv' })
  t.equal(put.status, 200)
  t.match(put.body, { contentType: 'text/csv', meta: { versionId: '2' } })
  t.equal((await raw(`Binary/${id}`)).bytes.toString(), 'two')
  t.equal((await raw(`Binary/${id}/_history/1`)).bytes.toString(), 'one')
  const same = await admin.put<Binary>(`Binary/${id}`, 'two', { 'Content-Type': 'text/csv' })
  t.equal(same.body.meta?.versionId, '2')

  const kept = await admin.put<Binary>(`Binary/${id}`, { ...put.body, contentType: 'text/plain' })
  t.match(kept.body, { contentType: 'text/plain', meta: { versionId: '3' } })
  t.equal((await raw(`Binary/${id}`)).bytes.toString(), 'two')
  const data = Buffer.from('three').toString('base64')
  t.equal((await admin.put(`Binary/${id}`, { ...kept.body, data })).status, 200)
  const patched = await admin.patch(`Binary/${id}`, [
    { op: 'replace', path: '/contentType', value: 'text/csv' },
    { op: 'add', path: '/data', value: 'AAAA' },
  ])
  t.match(patched.body, { contentType: 'text/csv', meta: { versionId: '5' } })
  t.equal((await raw(`Binary/${id}`)).bytes.toString(), 'three')
  t.equal((await admin.put(`Binary/${id}`, { ...kept.body, id: 'other' })).status, 400)
  const stale = { 'Content-Type': 'text/plain', 'If-Match': 'W/"1"' }
  t.equal((await admin.put(`Binary/${id}`, 'x', stale)).status, 412)

  const history = await admin.get<{ entry: { resource?: Binary; request: { url: string } }[] }>(
    `Binary/${id}/_history`,
  )
  t.same(
    history.body.entry.map(({ resource }) => resource?.meta?.versionId),
    ['5', '4', '3', '2', '1'],
  )
  t.equal(history.body.entry[0]?.request.url, `Binary/${id}`)
  t.equal((await admin.del(`Binary/${id}`)).status, 200)
  t.equal((await raw(`Binary/${id}`)).status, 410)
  t.equal((await raw(`Binary/${id}/_history/1`)).bytes.toString(), 'one')
})

t.test('Binaries of a bundle keep their content in the storage', async (t) => {
  const data = Buffer.from(text).toString('base64')
  const resource = { resourceType: 'Binary', contentType: 'text/plain', data }
  for (const type of ['batch', 'transaction']) {
    const answer = await admin.post<{ entry: { resource: Binary }[] }>('', {
      resourceType: 'Bundle',
      type,
      entry: [{ resource, request: { method: 'POST', url: 'Binary' } }],
    })
    const [entry] = answer.body.entry
    t.equal((await download(botica, String(entry?.resource.url))).bytes.toString(), text)
    const read = await admin.post<{ entry: { resource: Binary }[] }>('', {
      resourceType: 'Bundle',
      type,
      entry: [{ request: { method: 'GET', url: `Binary/${entry?.resource.id}` } }],
    })
    t.match(read.body.entry[0]?.resource, { id: entry?.resource.id, url: /storage/ })
  }
})

t.test('rejects searches and conditions on Binary', async (t) => {
  t.equal((await admin.get('Binary?_id=1')).status, 400)
  const condition = { 'Content-Type': 'text/plain', 'If-None-Exist': '_id=1' }
  t.match((await admin.post('Binary', 'x', condition)).text, /Cannot search on Binary/)
})

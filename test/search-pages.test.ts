/** Large pages leave the server in pieces, and are what they would be in one. */
import { once } from 'node:events'
import http from 'node:http'
import t from 'tap'
import { openBotica } from './fixtures/botica.ts'
import type { Raw } from './fixtures/oracle-values.ts'

const { admin, baseUrl } = await openBotica(t)
const filler = 'é'.repeat(20_000)
await Promise.all(
  Array.from({ length: 60 }, (_, i) =>
    admin.create({
      resourceType: 'Basic',
      code: { text: `${i}` },
      extension: [{ url: 'urn:filler', valueString: filler }],
    }),
  ),
)
const url = `${baseUrl}fhir/R4/Basic?_count=1000&_total=accurate`
const headers = { Authorization: `Bearer ${admin.token}` }

t.test('a large page is whole, and says what a small one says', async (t) => {
  const plain = { 'Accept-Encoding': 'identity' }
  const large = await admin.get<Raw>('Basic?_count=1000&_total=accurate', plain)
  t.equal(large.status, 200)
  t.equal(large.headers.get('content-length'), null)
  t.match(large.headers.get('content-type'), 'application/fhir+json')
  t.equal(large.body.total, 60)
  t.equal(large.body.entry.length, 60)
  const pages: Raw[] = []
  for (let next = 'Basic?_count=5'; next !== ''; ) {
    const small = await admin.get<Raw>(next, plain)
    t.not(small.headers.get('content-length'), null)
    pages.push(...small.body.entry)
    next = small.body.link.find(({ relation }: Raw) => relation === 'next')?.url ?? ''
  }
  t.same(large.body.entry, pages)
})

t.test('a large page is compressed for who takes it so', async (t) => {
  const answer = await admin.get<Raw>('Basic?_count=1000', { 'Accept-Encoding': 'gzip' })
  t.equal(answer.headers.get('content-encoding'), 'gzip')
  t.equal(answer.body.entry.length, 60)
})

t.test('indented, and in a batch, a large page is one text', async (t) => {
  const indented = await admin.get<Raw>('Basic?_count=1000&_pretty=true')
  t.equal(indented.body.entry.length, 60)
  t.match(indented.text, '\n  "entry": [')
  const batch = await admin.post<Raw>('', {
    resourceType: 'Bundle',
    type: 'batch',
    entry: [{ request: { method: 'GET', url: 'Basic?_count=1000' } }],
  })
  t.equal(batch.body.entry[0].resource.entry.length, 60)
})

t.test('addresses of Binaries are signed in a large page, too', async (t) => {
  const binary = await admin.create({
    resourceType: 'Binary',
    contentType: 'text/plain',
    data: 'eA==',
  })
  const attachment = { contentType: 'text/plain', url: `Binary/${binary.id}` }
  await admin.create({
    resourceType: 'Basic',
    code: { text: 'signed' },
    extension: [{ url: 'urn:attachment', valueAttachment: attachment }],
  })
  const { body } = await admin.get<Raw>('Basic?_count=1000')
  t.equal(body.entry.length, 61)
  t.match(body.entry[0].resource.extension[0].valueAttachment.url, /\/storage\/.*Signature/)
})

t.test('a caller that reads slowly holds back what it does not read, and may go', async (t) => {
  const request = http.get(url, { headers })
  const [response] = await once(request, 'response')
  response.pause()
  t.equal(response.statusCode, 200)
  request.destroy()
  t.equal((await admin.get('Basic?_count=1')).status, 200, 'others are answered')
})

/** Large pages are streamed in chunks with unchanged content. */
import t from 'tap'
import { openBotica } from '../../fixtures/botica.ts'
import type { Raw } from '../../fixtures/oracle/values.ts'

const botica = await openBotica(t)
const { admin, baseUrl } = botica
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
const headers = { Authorization: `Bearer ${admin.token}` }

t.test('returns a complete large page with the content of small ones', async (t) => {
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

t.test('compresses a large page for clients that accept it', async (t) => {
  const answer = await admin.get<Raw>('Basic?_count=1000', { 'Accept-Encoding': 'gzip' })
  t.equal(answer.headers.get('content-encoding'), 'gzip')
  t.equal(answer.body.entry.length, 60)
})

t.test('indents a large page and returns it in a batch', async (t) => {
  const indented = await admin.get<Raw>('Basic?_count=1000&_pretty=true')
  t.equal(indented.body.entry.length, 60)
  t.equal(indented.text, JSON.stringify(indented.body, null, 2))
  const batch = await admin.post<Raw>('', {
    resourceType: 'Bundle',
    type: 'batch',
    entry: [{ request: { method: 'GET', url: 'Basic?_count=1000' } }],
  })
  t.equal(batch.body.entry[0].resource.entry.length, 60)
})

t.test('signs Binary URLs in a large page', async (t) => {
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
  const { body, headers } = await admin.get<Raw>('Basic?_count=1000', {
    'Accept-Encoding': 'identity',
  })
  t.equal(headers.get('content-length'), null)
  t.equal(body.entry.length, 61)
  t.match(body.entry[0].resource.extension[0].valueAttachment.url, /\/storage\/.*Signature/)
})

t.test('streams a large history', async (t) => {
  const plain = { 'Accept-Encoding': 'identity' }
  const [binary] = (await admin.get<Raw>('Binary/_history')).body.entry
  const large = await admin.get<Raw>('Basic/_history?_count=1000&_total=accurate', plain)
  t.equal(large.headers.get('content-length'), null)
  t.equal(large.body.total, 61)
  t.match(large.body.entry[0].resource.extension[0].valueAttachment.url, /\/storage\/.*Signature/)
  t.match(large.body.entry[0].request, { method: 'POST', url: 'Basic' })
  const pages: Raw[] = []
  for (let next = 'Basic/_history?_count=5'; next !== ''; ) {
    const small = await admin.get<Raw>(next, plain)
    t.not(small.headers.get('content-length'), null)
    pages.push(...small.body.entry)
    next = small.body.link.find(({ relation }: Raw) => relation === 'next')?.url ?? ''
  }
  const named = ({ fullUrl, request, response }: Raw) => ({ fullUrl, request, response })
  t.same(large.body.entry.map(named), pages.map(named))
  t.equal(binary.request.url, 'Binary', 'the address of a request is not signed')
})

t.test('answers HEAD of a large page with the headers of GET and no body', async (t) => {
  for (const path of ['Basic?_count=1000', 'Basic/_history?_count=1000']) {
    const [head, get] = await Promise.all(
      ['HEAD', 'GET'].map((method) => fetch(`${baseUrl}fhir/R4/${path}`, { method, headers })),
    )
    t.equal(head?.status, 200)
    for (const name of ['content-type', 'cache-control', 'vary']) {
      t.equal(head?.headers.get(name), get?.headers.get(name), name)
    }
    t.equal(await head?.text(), '')
    t.match(await get?.text(), /\]\}$/)
  }
})

t.test('leads to the last page, beyond the largest offset', async (t) => {
  const { admin: other } = await botica.createTenant()
  const { id } = await other.create({ resourceType: 'Basic', code: { text: 'copied' } })
  await botica.services.database.query({
    text: `with c as (select gen_random_uuid() as id from generate_series(2, 10021)),
      v as (insert into version (project, type, id, ver, lu, content, meta_at, meta_ext)
        select project, type, c.id, ver, lu, content, meta_at, meta_ext from version v, c where v.id = $1::uuid)
      insert into resource (project, type, id, ver, lu, nref, keys)
      select project, type, c.id, ver, lu, nref, keys from resource r, c where r.id = $1::uuid`,
    values: [id],
  })
  for (const path of ['Basic', 'Basic/_history']) {
    const sizes: number[] = []
    for (let next = `${path}?_offset=9990&_count=10`; next !== ''; ) {
      const { status, body } = await other.get<Raw>(next)
      t.equal(status, 200, next)
      sizes.push(body.entry.length)
      next = body.link.find(({ relation }: Raw) => relation === 'next')?.url ?? ''
    }
    t.same(sizes, [10, 10, 10, 1], path)
  }
})

t.test('leads on from a cursor of a history despite an offset of 0', async (t) => {
  const link = ({ link }: Raw) => link.find(({ relation }: Raw) => relation === 'next').url
  const first = await admin.get<Raw>('Basic/_history?_count=5')
  const second = await admin.get<Raw>(`${link(first.body)}&_offset=0`)
  const third = await admin.get<Raw>(link(second.body))
  const whole = await admin.get<Raw>('Basic/_history?_count=15')
  const named = ({ body }: { body: Raw }) => body.entry.map(({ fullUrl }: Raw) => fullUrl)
  t.same([first, second, third].flatMap(named), named(whole))
})

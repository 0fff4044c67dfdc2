/** Pre-commit bots for Binaries run before content is stored, and do not see it. */
import t from 'tap'
import { type Binary, download } from '../../fixtures/binaries.ts'
import { openBotica } from '../../fixtures/botica.ts'
import type { Untyped } from '../../fixtures/bots/bots.ts'
import { asked, switchOn } from '../../fixtures/bots/pre-commit.ts'
import { createDatabase } from '../../fixtures/store/own-database.ts'

const botica = await openBotica(t, {
  worker: true,
  env: {
    DATABASE_URL: await createDatabase(t),
    WORKER_QUEUES: 'bots-sync,change',
    PRE_COMMIT_BOTS: 'true',
  },
})
const { admin } = botica
await switchOn(botica, botica)

/** Rejects HTML and deletions of images; changes text to Markdown and tries to set its content. */
await asked(
  botica,
  'Binary',
  `const { input, headers } = event
   if (input.deletedResource) {
     if (input.deletedResource.contentType === 'image/png') throw new Error('Pictures stay')
     return
   }
   if (input.url || input.data) throw new Error('The content is nothing to ask about')
   if (input.contentType === 'text/html') throw new Error('No pages')
   if (input.contentType !== 'text/plain') return
   const language = headers['x-medplum-interaction'] === 'create' ? 'en' : 'de'
   return { ...input, contentType: 'text/markdown', language, data: 'AAAA', url: 'https://example.org/' }`,
)

const readBytes = async (id: string): Promise<string> =>
  String((await download(botica, `Binary/${id}`, admin)).bytes)
const post = (content: string, type: string) =>
  admin.post<Untyped>('Binary', Buffer.from(content), { 'Content-Type': type })
const put = (id: string, content: string, type: string) =>
  admin.put<Untyped>(`Binary/${id}`, Buffer.from(content), { 'Content-Type': type })
const contents = async (): Promise<unknown> =>
  (
    await botica.services.database.query({
      text: 'select count(*) from stored_content',
      values: [],
    })
  )[0]

t.test('writes content and resources as the bot returns them', async (t) => {
  const made = await post('one', 'text/plain')
  t.match(made, { status: 201, body: { contentType: 'text/markdown', language: 'en' } })
  const { id } = made.body
  t.equal(await readBytes(id), 'one')

  const replaced = await put(id, 'two', 'text/plain')
  t.match(replaced, { status: 200, body: { id, contentType: 'text/markdown', language: 'de' } })
  t.equal(await readBytes(id), 'two')

  const binary: Binary = { ...made.body, contentType: 'text/plain' }
  const kept = await admin.put<Untyped>(`Binary/${id}`, binary)
  t.match(kept, { status: 200, body: { contentType: 'text/markdown' } })
  t.equal(await readBytes(id), 'two')

  const data = Buffer.from('three').toString('base64')
  const other = await admin.create({ resourceType: 'Binary', contentType: 'text/plain', data })
  t.match(other, { contentType: 'text/markdown', language: 'en' })
  t.equal(await readBytes(other.id), 'three')

  const patch = [{ op: 'replace', path: '/contentType', value: 'text/plain' }]
  t.match(await admin.patch(`Binary/${id}`, patch), { body: { contentType: 'text/markdown' } })
  t.equal(await readBytes(id), 'two')
})

t.test('stores neither resource nor content that the bot rejects', async (t) => {
  const { body } = await post('a picture', 'image/png')
  const before = await contents()
  const refused = await post('<html>', 'text/html')
  t.equal(refused.status, 400)
  t.equal(refused.body.issue[0].details.text, 'No pages')
  t.equal((await put(body.id, '<html>', 'text/html')).status, 400)
  t.same(await contents(), before)
  t.equal((await admin.del(`Binary/${body.id}`)).status, 400)
  t.equal(await readBytes(body.id), 'a picture')
  const { body: text } = await post('text', 'text/plain')
  t.equal((await admin.del(`Binary/${text.id}`)).status, 200)
})

t.test('runs for bundle entries, too', async (t) => {
  const entry = (contentType: string) => ({
    request: { method: 'POST', url: 'Binary' },
    resource: { resourceType: 'Binary', contentType, data: Buffer.from('in').toString('base64') },
  })
  const bundle = (type: string, ...entries: object[]) =>
    admin.post<Untyped>('', { resourceType: 'Bundle', type, entry: entries })
  for (const type of ['batch', 'transaction']) {
    const { body } = await bundle(type, entry('text/plain'))
    t.match(body.entry[0], { resource: { contentType: 'text/markdown', language: 'en' } }, type)
    t.equal(await readBytes(body.entry[0].resource.id), 'in', type)
  }
  const batch = await bundle('batch', entry('text/html'), entry('text/plain'))
  t.match(batch.body.entry, [{ response: { status: /^400/ } }, { response: { status: /^201/ } }])
  t.equal((await bundle('transaction', entry('text/plain'), entry('text/html'))).status, 400)
})

/** Decompression limits for bodies and files that expand to large or endless empty content. */
import { createServer } from 'node:http'
import { brotliCompressSync, gzipSync } from 'node:zlib'
import t from 'tap'
import { upload } from '../../fixtures/binaries.ts'
import { openBotica } from '../../fixtures/botica.ts'
import { ended } from '../../fixtures/exports/exports.ts'
import { listen } from '../../fixtures/http/listening.ts'
import { aPatient } from '../../fixtures/resources.ts'
import { createDatabase } from '../../fixtures/store/own-database.ts'

const MB = 1024 * 1024
const LIMIT = 8 * MB
const botica = await openBotica(t, {
  worker: true,
  env: {
    DATABASE_URL: await createDatabase(t),
    MAX_UPLOAD_BYTES: String(LIMIT),
    MAX_BODY_BYTES: String(MB),
  },
})
const { admin } = botica

const line = Buffer.from(`${JSON.stringify({ ...aPatient(), id: 'first' })}\n`)
const EMPTY = gzipSync('')
const members = Buffer.concat([
  gzipSync(line),
  ...Array.from({ length: 100_000 }, () => EMPTY),
  gzipSync(`${JSON.stringify({ ...aPatient(), id: 'last' })}\n`),
])
const bombs: Readonly<Record<string, Buffer>> = {
  'one line without end': gzipSync(Buffer.alloc(64 * MB, ' ')),
  'blank lines': gzipSync(Buffer.concat([line, Buffer.alloc(64 * MB, '\n')])),
  'a bomb in a bomb': gzipSync(gzipSync(Buffer.alloc(64 * MB, '\n'))),
}

async function importFrom(inputUrl: string) {
  const begun = await admin.post('$import', {
    resourceType: 'Parameters',
    parameter: [
      {
        name: 'input',
        part: [
          { name: 'type', valueCode: 'Patient' },
          { name: 'url', valueUrl: inputUrl },
        ],
      },
    ],
  })
  t.equal(begun.status, 202, begun.text)
  const { body } = await ended(admin, begun.headers.get('content-location') ?? '')
  const texts = await Promise.all(body.error.map(async ({ url }) => (await admin.get(url)).text))
  return texts.join('\n')
}

for (const [what, bytes] of Object.entries(bombs)) {
  t.test(`stops an import of ${what} at the limit`, async (t) => {
    const { id } = await upload(admin, bytes, 'application/fhir+ndjson')
    t.match(await importFrom(`Binary/${id}`), /larger than an upload may be|not|JSON/)
  })
}

t.test('imports lines between many empty gzip members', async (t) => {
  const { id } = await upload(admin, members, 'application/fhir+ndjson')
  t.equal(await importFrom(`Binary/${id}`), '')
  for (const name of ['first', 'last']) t.equal((await admin.get(`Patient/${name}`)).status, 200)
})

t.test('stops an import of a compressed response of another server at the limit', async (t) => {
  const server = createServer((_, res) => {
    res.writeHead(200, { 'Content-Encoding': 'br' })
    res.end(brotliCompressSync(Buffer.alloc(64 * MB, '\n')))
  })
  const port = await listen(t, server)
  t.match(await importFrom(`http://127.0.0.1:${port}/`), /larger than an upload may be/)
})

t.test('treats a body of many empty gzip members as empty', async (t) => {
  const headers = { 'Content-Type': 'application/fhir+json', 'Content-Encoding': 'gzip' }
  const nothing = Buffer.concat(Array.from({ length: 40_000 }, () => EMPTY))
  const empty = await admin.post('Patient', nothing, headers)
  t.equal(empty.status, 400)
  const bomb = await admin.post('Patient', gzipSync(Buffer.alloc(64 * MB, ' ')), headers)
  t.equal(bomb.status, 413)
})

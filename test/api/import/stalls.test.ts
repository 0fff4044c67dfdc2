/** Sources of an import, and a storage, that stop sending or send too slowly. */
import { randomUUID } from 'node:crypto'
import { createServer, request } from 'node:http'
import t from 'tap'
import { openBucket, upload } from '../../fixtures/binaries.ts'
import { openBotica } from '../../fixtures/botica.ts'
import { ended, fetchManifest, kickOff, statusUrl } from '../../fixtures/exports/exports.ts'
import { listen } from '../../fixtures/http/listening.ts'
import { aPatient } from '../../fixtures/resources.ts'
import { createDatabase } from '../../fixtures/store/own-database.ts'

const bucket = await openBucket(t)
const settings = new URL(bucket.env.STORAGE_URL ?? '')
const { port, hostname } = new URL(settings.searchParams.get('endpoint') ?? '')

/** A gateway of the bucket, which stops in the middle of the next large read while `stalls`. */
const gateway = { stalls: false }
const storage = createServer((req, res) => {
  const { method, url: path, headers } = req
  const asked = request({ hostname, port, method, path, headers }, (answer) => {
    res.writeHead(answer.statusCode ?? 0, answer.headers)
    const isLarge = Number(answer.headers['content-length']) > 100
    if (!gateway.stalls || method !== 'GET' || !isLarge) {
      answer.pipe(res)
      return
    }
    gateway.stalls = false
    answer.once('data', (chunk) => res.write(chunk.subarray(0, 10)))
  })
  req.pipe(asked)
})
settings.searchParams.set('endpoint', `http://127.0.0.1:${await listen(t, storage)}`)

const botica = await openBotica(t, {
  worker: 'process',
  env: {
    DATABASE_URL: await createDatabase(t),
    STORAGE_URL: `${settings}&presigned=true`,
    WAITS: JSON.stringify({ ...JSON.parse(process.env.WAITS ?? '{}'), silenceMs: 500 }),
  },
})
const { admin } = botica

async function importFrom(valueUrl: string) {
  const part = [
    { name: 'type', valueCode: 'Patient' },
    { name: 'url', valueUrl },
  ]
  const begun = await admin.post('$import', {
    resourceType: 'Parameters',
    parameter: [{ name: 'input', part }],
  })
  return (await ended(admin, statusUrl(begun))).body
}

t.test('gives up a source that sends a byte at a time', async (t) => {
  const source = createServer((_, res) => {
    res.writeHead(200, { 'Content-Length': '100000' })
    const timer = setInterval(() => res.write(' '), 50)
    res.once('close', () => clearInterval(timer))
  })
  const { error } = await importFrom(`http://127.0.0.1:${await listen(t, source)}/`)
  t.match((await admin.get(error[0]?.url ?? '')).text, /could not be read: the server is too slow/)
})

t.test('reads an input again when the storage stalls', async (t) => {
  const line = JSON.stringify({ ...aPatient(), id: randomUUID() })
  const { id } = await upload(admin, line, 'application/fhir+ndjson')
  gateway.stalls = true
  const { output, error } = await importFrom(`Binary/${id}`)
  t.notOk(gateway.stalls)
  t.match({ output, error }, { output: [{ count: 1 }], error: { length: 0 } })
})

t.test('reads a file of an export again when the storage stalls', async (t) => {
  const { id } = await admin.create(aPatient())
  gateway.stalls = true
  const { output } = await fetchManifest(admin, await kickOff(admin, '$export?_type=Patient'))
  t.notOk(gateway.stalls)
  t.match(await (await fetch(output[0]?.url ?? '')).text(), id)
})

import { randomUUID } from 'node:crypto'
import { once } from 'node:events'
import { readdirSync } from 'node:fs'
import { createServer, request, type ServerResponse } from 'node:http'
import t from 'tap'
import { download, openBucket } from '../../fixtures/binaries.ts'
import { openBotica, until } from '../../fixtures/botica.ts'
import { ended, fetchExportLines, fetchManifest, kickOff } from '../../fixtures/exports/exports.ts'
import { listen } from '../../fixtures/http/listening.ts'
import { aPatient } from '../../fixtures/resources.ts'
import { createDatabase } from '../../fixtures/store/own-database.ts'

const bucket = await openBucket(t)
const trouble = { failing: 0, hanging: 0, seen: 0, isAway: false }
let stall: ((answer: ServerResponse) => void) | undefined
const encryptions = new Set<unknown>()
const front = await openFront(bucket.env.STORAGE_URL ?? '')
const botica = await openBotica(t, {
  env: { DATABASE_URL: await createDatabase(t), STORAGE_URL: `${front}&timeout=10&sse=AES256` },
})
const { admin, services, startWorker } = botica
const ROWS = 4000
const DONE_MS = 120_000
const ids = Array.from({ length: ROWS }, () => randomUUID()).sort()

let worker = await startWorker()
await importPatients()

async function importPatients(): Promise<void> {
  const div = `<div xmlns="http://www.w3.org/1999/xhtml">${'x'.repeat(2000)}</div>`
  const lines = ids.map((id) =>
    JSON.stringify({ ...aPatient(), id, text: { status: 'generated', div } }),
  )
  const type = { 'Content-Type': 'application/fhir+ndjson' }
  const file = await admin.post('Binary', lines.join('\n'), type)
  const part = [
    { name: 'type', valueCode: 'Patient' },
    { name: 'url', valueUrl: `Binary/${file.body.id}` },
  ]
  const parameter = [{ name: 'input', part }]
  const accepted = await admin.post('$import', { resourceType: 'Parameters', parameter })
  const { status } = await ended(admin, accepted.headers.get('content-location') ?? '')
  t.equal(status, 200)
}

/** Starts a proxy in front of the bucket that injects `trouble`; returns its `STORAGE_URL`. */
async function openFront(storageUrl: string): Promise<string> {
  const behind = new URL(new URL(storageUrl).searchParams.get('endpoint') ?? '')
  const server = createServer((req, res) => {
    const isBlock = req.method === 'PUT' && req.url?.includes('/exports/')
    if (isBlock) {
      trouble.seen += 1
      encryptions.add(req.headers['x-amz-server-side-encryption'])
    }
    if (isBlock && trouble.hanging > 0) {
      trouble.hanging -= 1
      return
    }
    if (isBlock && trouble.failing > 0) {
      trouble.failing -= 1
      req.resume().once('end', () => {
        res.writeHead(500).end('<Error><Code>InternalError</Code></Error>')
      })
      return
    }
    const isRead = req.method === 'GET' && req.url?.includes('/exports/')
    if (isRead && trouble.isAway) {
      res.writeHead(500).end('<Error><Code>InternalError</Code></Error>')
      return
    }
    if (isRead && stall !== undefined) {
      res.writeHead(200, { 'Content-Length': 1000 }).write('some')
      stall(res)
      return
    }
    const { method, url: path, headers } = req
    const inner = request({ host: behind.hostname, port: behind.port, method, path, headers })
    inner.on('response', (answer) => {
      res.writeHead(answer.statusCode ?? 502, answer.headers)
      answer.pipe(res)
    })
    inner.on('error', () => res.destroy())
    req.pipe(inner)
  })
  const port = await listen(t, server)
  return storageUrl.replace(
    encodeURIComponent(behind.origin),
    encodeURIComponent(`http://127.0.0.1:${port}`),
  )
}

function blocks(): number {
  return readdirSync(bucket.directory, { recursive: true, encoding: 'utf8' }).filter((name) =>
    /exports\/.*\d+-\d+-\d+\._S3rver_object$/.test(name),
  ).length
}

async function exportedIds(url: string): Promise<string[]> {
  const { output, error } = await fetchManifest(admin, url)
  t.same(error, [])
  const lines = (await fetchExportLines(admin, output)).get('Patient') ?? []
  return lines.map((line) => JSON.parse(line).id).sort()
}

t.test('writes an export to a bucket and serves it, compressed or not', async (t) => {
  const url = await kickOff(admin, '$export?_type=Patient')
  t.same(await exportedIds(url), ids)
  t.ok(blocks() >= 2, 'writes several blocks')
  t.same([...encryptions], ['AES256'])
  const [file] = (await fetchManifest(admin, url)).output
  const packed = await fetch(file?.url ?? '', {
    headers: { Authorization: `Bearer ${admin.token}`, 'Accept-Encoding': 'gzip' },
  })
  t.equal(packed.headers.get('content-encoding'), 'gzip')
  const plain = await download(botica, file?.url ?? '', admin, {
    headers: { 'Accept-Encoding': 'identity' },
  })
  t.ok(Buffer.from(await packed.arrayBuffer()).equals(plain.bytes))
  const headers = { 'Accept-Encoding': 'identity', Range: 'bytes=5000000-5000099' }
  const part = await download(botica, file?.url ?? '', admin, { headers })
  t.equal(part.status, 206)
  t.ok(part.bytes.equals(plain.bytes.subarray(5_000_000, 5_000_100)))

  t.equal((await admin.del(url)).status, 202)
  // Downloads that have begun may still end.
  await services.database.query({
    text: 'update export_job set downloaded = null where id = $1',
    values: [url.split('/').at(-1)],
  })
  await until(async () => blocks() === 0, DONE_MS)
})

t.test('serves a download again after the bucket was unavailable', async (t) => {
  const [file] = (await fetchManifest(admin, await kickOff(admin, '$export?_type=Patient'))).output
  trouble.isAway = true
  for (const form of ['gzip', 'identity']) {
    const headers = { 'Accept-Encoding': form }
    const { status, body } = await admin.get<unknown>(file?.url ?? '', headers)
    t.equal(status, 503, form)
    t.match(body, { resourceType: 'OperationOutcome', issue: [{ code: 'transient' }] })
  }
  trouble.isAway = false
  t.equal((await admin.get(file?.url ?? '')).status, 200)
})

t.test('ends the request to the bucket when the client aborts a download', async (t) => {
  const [file] = (await fetchManifest(admin, await kickOff(admin, '$export?_type=Patient'))).output
  const asked = Promise.withResolvers<ServerResponse>()
  stall = asked.resolve
  const headers = { Authorization: `Bearer ${admin.token}`, 'Accept-Encoding': 'gzip' }
  const download = request(file?.url ?? '', { headers })
  download.on('error', () => undefined).end()
  const [answer] = await once(download, 'response')
  const reading = await asked.promise
  stall = undefined
  answer.destroy()
  await once(reading, 'close')
  t.pass('closes the block request')
})

t.test('completes an export despite occasional failures of the bucket', async (t) => {
  Object.assign(trouble, { failing: 4, seen: 0 })
  const url = await kickOff(admin, '$export?_type=Patient')
  t.same(await exportedIds(url), ids)
  t.equal(trouble.failing, 0)
})

t.test('retries requests that the bucket does not answer', async (t) => {
  Object.assign(trouble, { hanging: 2, seen: 0 })
  const url = await kickOff(admin, '$export?_type=Patient')
  t.same(await exportedIds(url), ids)
  t.equal(trouble.hanging, 0)
})

t.test('continues after the last stored block when its worker is killed', async (t) => {
  trouble.seen = 0
  const url = await kickOff(admin, '$export?_type=Patient')
  await until(async () => trouble.seen > 0, DONE_MS)
  worker.kill('SIGKILL')
  await once(worker, 'exit')
  await services.database.query({
    text: `update export_part set lease = clock_timestamp() where state = 'active'`,
    values: [],
  })
  worker = await startWorker()
  t.same(await exportedIds(url), ids)
})

t.test('waits for a bucket that keeps failing, then continues the export', async (t) => {
  Object.assign(trouble, { failing: Number.POSITIVE_INFINITY, seen: 0 })
  const url = await kickOff(admin, '$export?_type=Patient')
  await until(async () => trouble.seen > 1, DONE_MS)
  t.equal((await admin.get(url)).status, 202)
  trouble.failing = 0
  t.same(await exportedIds(url), ids)
})

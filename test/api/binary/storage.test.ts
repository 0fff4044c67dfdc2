/** Imports the storage, because sweeps of contents and leases have no route. */
import { randomBytes } from 'node:crypto'
import { once } from 'node:events'
import { mkdtempSync, readdirSync, rmSync } from 'node:fs'
import { IncomingMessage, request } from 'node:http'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { Readable } from 'node:stream'
import { brotliCompressSync, deflateSync, gzipSync } from 'node:zlib'
import t from 'tap'
import {
  storageDigest,
  storeContent,
  sweepContents,
} from '../../../shared/request/binary/content.ts'
import { keepLeasedContent, leaseContents } from '../../../shared/store/write/stored-contents.ts'
import { type Binary, download, openBucket, upload } from '../../fixtures/binaries.ts'
import { type Botica, openBotica, until } from '../../fixtures/botica.ts'
import { openSdk } from '../../fixtures/sdk.ts'
import { limitFiles } from '../../fixtures/services/full-disk.ts'

const LIMIT = 12 * 1024 * 1024
const folder = mkdtempSync(join(tmpdir(), 'botica-storage-'))
t.teardown(() => rmSync(folder, { recursive: true, force: true }))
const bucket = await openBucket(t)
const limits = { MAX_UPLOAD_BYTES: String(LIMIT) }
const disk = await openBotica(t, { env: { STORAGE_URL: `file:${folder}`, ...limits } })
const s3 = await openBotica(t, { env: { ...bucket.env, ...limits } })
const type = { 'Content-Type': 'application/octet-stream' }

/** Files of content, in a folder those of unfinished uploads too. */
function filesIn(directory: string): string[] {
  return readdirSync(directory, { recursive: true, withFileTypes: true })
    .filter((entry) => /^[0-9a-f-]{36}(\._S3rver_object)?$/.test(entry.name) && entry.isFile())
    .map((entry) => join(entry.parentPath, entry.name))
}

async function binaryRows({ services, project }: Botica): Promise<number> {
  const [row] = await services.database.query<{ count: string }>({
    text: `select count(*) from version where meta_ext like $1 and content like $2`,
    values: [`"project":"${project.id}"%`, '{"resourceType":"Binary"%'],
  })
  return Number(row?.count)
}

t.test('releases each piece read from a bucket before it reads the next', async (t) => {
  const { storage } = s3.services
  const bytes = randomBytes(LIMIT)
  await storage.put('test/large', Readable.from([Buffer.from(bytes)]))
  const answer = await storage.get('test/large')
  t.ok(answer instanceof IncomingMessage)
  const { socket } = answer as IncomingMessage
  const kept: number[] = []
  const look = (chunk: Buffer) => kept.push(chunk.byteLength)
  socket.on('data', look)
  t.ok(Buffer.concat(await answer.toArray()).equals(bytes))
  socket.off('data', look)
  t.ok(kept.length > 0)
  t.equal(Math.max(...kept), 0)
  await storage.delete('test/large')
})

t.test(
  'returns 503 for a full disk and leaves nothing',
  { skip: process.platform !== 'linux' },
  async (t) => {
    const { admin } = disk
    const before = { files: filesIn(folder).length, rows: await binaryRows(disk) }
    const ignore = () => undefined
    process.on('SIGXFSZ', ignore)
    await limitFiles(process, '1000')
    const data = randomBytes(3000).toString('base64')
    const refused = [
      await admin.post('Binary', randomBytes(3000), type),
      await admin.post('Binary', { resourceType: 'Binary', contentType: 'text/plain', data }),
    ]
    await limitFiles(process, 'unlimited')
    process.off('SIGXFSZ', ignore)
    for (const { status, headers, body } of refused) {
      t.equal(status, 503)
      t.ok(headers.has('retry-after'))
      const text = 'The storage is not available, try again'
      t.match(body, { issue: [{ code: 'transient', details: { text } }] })
    }
    t.same({ files: filesIn(folder).length, rows: await binaryRows(disk) }, before)
    await upload(admin, randomBytes(3000), 'image/png')
  },
)

for (const [name, botica, directory] of [
  ['a folder', disk, folder],
  ['a bucket', s3, bucket.directory],
] as const) {
  const { admin } = botica

  t.test(`content of any size goes into ${name} and out again`, async (t) => {
    for (const size of [0, 1, 65_536, 5 * 1024 * 1024, 11 * 1024 * 1024 + 7, LIMIT]) {
      const bytes = randomBytes(size)
      const { id, url } = await upload(admin, bytes, 'image/png')
      const read = await download(botica, `Binary/${id}`, admin)
      t.ok(read.bytes.equals(bytes), `${size} bytes`)
      if (size < 2) continue
      const headers = { Range: `bytes=1-${size - 2}` }
      const part = await download(botica, url, undefined, { headers })
      t.equal(part.status, 206)
      t.ok(part.bytes.equals(bytes.subarray(1, size - 1)))
    }
  })

  t.test(`leaves nothing of content over the limit in ${name}`, async (t) => {
    const before = { files: filesIn(directory).length, rows: await binaryRows(botica) }
    const announced = await send(botica, {
      ...type,
      'Content-Length': String(LIMIT + 1),
    })
    t.equal(announced, 413)
    t.equal(await send(botica, type, LIMIT + 1), 413)
    t.same({ files: filesIn(directory).length, rows: await binaryRows(botica) }, before)
  })

  t.test(`leaves nothing of an aborted upload in ${name}`, async (t) => {
    const before = { files: filesIn(directory).length, rows: await binaryRows(botica) }
    for (const sent of [100, 7 * 1024 * 1024]) {
      await breakOff(botica, sent)
    }
    await until(async () => filesIn(directory).length === before.files, 60_000)
    t.equal(await binaryRows(botica), before.rows)
  })

  t.test(`removes content of a rejected resource from ${name}`, async (t) => {
    const { id } = await upload(admin, 'one', 'text/plain')
    const before = filesIn(directory).length
    const stale = { ...type, 'If-Match': 'W/"9"' }
    t.equal((await admin.put(`Binary/${id}`, 'two', stale)).status, 412)
    t.equal((await admin.put(`Binary/${crypto.randomUUID()}`, 'two', type)).status, 404)
    const resource = { resourceType: 'Binary', contentType: 'text/plain', data: 'AAAA' }
    const refused = await admin.post('', {
      resourceType: 'Bundle',
      type: 'transaction',
      entry: [
        { resource, request: { method: 'POST', url: 'Binary' } },
        { request: { method: 'DELETE', url: `Patient/${crypto.randomUUID()}` } },
        { request: { method: 'GET', url: `Patient/${crypto.randomUUID()}` } },
      ],
    })
    t.ok(refused.status >= 400)
    t.equal(filesIn(directory).length, before)
  })

  t.test(`content leaves ${name} when no version names it any more`, async (t) => {
    const { services } = botica
    const [kept, deleted, expunged] = [
      await upload(admin, 'kept', 'text/plain'),
      await upload(admin, 'deleted', 'text/plain'),
      await upload(admin, 'first', 'text/plain'),
    ]
    t.equal((await admin.put(`Binary/${expunged.id}`, 'second', type)).status, 200)
    t.equal((await admin.del(`Binary/${deleted.id}`)).status, 200)
    const before = filesIn(directory).length
    await sweepContents(services)
    t.equal(filesIn(directory).length, before)
    t.equal((await admin.post(`Binary/${expunged.id}/$expunge`)).status, 200)
    await sweepContents(services)
    t.equal(filesIn(directory).length, before - 2)
    t.equal((await download(botica, `Binary/${kept.id}`, admin)).bytes.toString(), 'kept')
    const version = await download(botica, `Binary/${deleted.id}/_history/1`, admin)
    t.equal(version.bytes.toString(), 'deleted', 'history keeps its content')
  })

  t.test(`content that a crash left in ${name} goes when it is old`, async (t) => {
    const { services, project } = botica
    const { database } = services
    const before = filesIn(directory).length
    const left = await storeContent(services, project.id, Buffer.from('left'), {
      filename: undefined,
      isData: false,
    })
    const { id } = await upload(admin, 'named', 'text/plain')
    await database.query({
      text: `update stored_content set added = added - interval '1 hour',
        due = clock_timestamp() where place = $1`,
      values: [storageDigest(services.config)],
    })
    t.equal(filesIn(directory).length, before + 2)
    while ((await sweepContents(services)) > 0);
    t.equal(filesIn(directory).length, before + 1)
    t.notOk(filesIn(directory).some((file) => file.includes(new URL(left).pathname.slice(-36))))
    t.equal((await download(botica, `Binary/${id}`, admin)).bytes.toString(), 'named')
  })

  t.test(
    `content of a transaction that also searches is no longer in doubt in ${name}`,
    async (t) => {
      const { services, project } = botica
      const patient = await admin.create({ resourceType: 'Patient' })
      const entry = [
        { request: { method: 'GET', url: 'Patient?_count=1' } },
        { request: { method: 'PUT', url: `Patient/${patient.id}` }, resource: patient },
        {
          request: { method: 'POST', url: 'Binary' },
          resource: { resourceType: 'Binary', contentType: 'text/plain', data: 'dGV4dA==' },
        },
      ]
      const doubtful = async () => {
        const [row] = await services.database.query<{ n: number }>({
          text: `select count(*)::int as n from stored_content where key like $1 and due is not null`,
          values: [`binary/${project.id}/%`],
        })
        return row?.n
      }
      const before = await doubtful()
      const answer = await admin.post('', { resourceType: 'Bundle', type: 'transaction', entry })
      t.equal(answer.status, 200, answer.text)
      t.equal(await doubtful(), before)
    },
  )

  t.test(`content that is expunged while a sweep looks at it goes from ${name}`, async (t) => {
    const { services } = botica
    const { database } = services
    const place = storageDigest(services.config)
    const before = filesIn(directory).length
    const { id } = await upload(admin, 'looked at', 'text/plain')
    await database.query({
      text: 'update stored_content set due = clock_timestamp() where place = $1',
      values: [place],
    })
    const leased = await leaseContents(database, place, 100)
    t.ok(leased.length > 0 && leased.every(({ isUsed }) => isUsed))
    t.same(await leaseContents(database, place, 100), [], 'no other sweep looks at them')
    t.equal((await admin.post(`Binary/${id}/$expunge`)).status, 200)
    const kept = await Promise.all(leased.map((one) => keepLeasedContent(database, one)))
    t.equal(kept.filter((isKept) => !isKept).length, 1)
    await sweepContents(services)
    t.equal(filesIn(directory).length, before)
  })

  t.test(`the SDK creates, attaches and downloads with ${name}`, async (t) => {
    const medplum = await openSdk(botica)
    const made = await medplum.createBinary({
      data: 'hello',
      filename: 'ü.txt',
      contentType: 'text/plain',
    })
    t.equal(await (await medplum.download(`Binary/${made.id}`)).text(), 'hello')
    const attachment = await medplum.createAttachment({ data: 'picture', contentType: 'image/png' })
    t.equal(await (await medplum.download(String(attachment.url))).text(), 'picture')
    const media = await medplum.createMedia({
      data: 'film',
      filename: 'a.mp4',
      contentType: 'video/mp4',
    })
    t.match(media, { content: { title: 'a.mp4' } })
    const read = await medplum.readResource('Media', media.id)
    t.equal(await (await medplum.download(read.content.url)).text(), 'film')
    const resource = await medplum.readResource('Binary', made.id)
    t.equal(await (await medplum.download(String(resource.url))).text(), 'hello')
  })
}

t.test('a body in a coding is stored without it', async (t) => {
  const bytes = Buffer.from('x'.repeat(1000) + randomBytes(5000).toString('hex'))
  const codings = [
    ['gzip', gzipSync],
    ['deflate', deflateSync],
    ['br', brotliCompressSync],
  ] as const
  for (const [coding, encode] of codings) {
    const headers = { ...type, 'Content-Encoding': coding }
    const made = await disk.admin.post<Binary>('Binary', encode(bytes), headers)
    t.equal(made.status, 201, coding)
    const read = await download(disk, `Binary/${made.body.id}`, disk.admin)
    t.ok(read.bytes.equals(bytes), coding)
    const before = filesIn(folder).length
    t.equal((await disk.admin.post('Binary', 'no such coding', headers)).status, 400, coding)
    const bomb = await disk.admin.post('Binary', encode(Buffer.alloc(8 * 1024 * 1024)), headers)
    t.equal(bomb.status, 413, coding)
    t.equal(filesIn(folder).length, before)
  }
  const other = { ...type, 'Content-Encoding': 'zstd' }
  t.equal((await disk.admin.post('Binary', 'x', other)).status, 400)
})

t.test('content that the storage has lost is not found', async (t) => {
  const { id } = await upload(disk.admin, 'x', 'text/plain')
  rmSync(join(folder, 'binary'), { recursive: true })
  const read = await download(disk, `Binary/${id}`, disk.admin)
  t.equal(read.status, 404)
  t.match(read.bytes.toString(), /Content not found/)
})

t.test('reports both storages in health', async (t) => {
  for (const { anonymous } of [disk, s3]) {
    t.match(await anonymous.get('/healthcheck'), { status: 200, body: { storage: true } })
  }
})

/** Streams zeros and returns the status, which may come before the end. */
async function send(botica: Botica, headers: Record<string, string>, size = 0): Promise<number> {
  const req = openRequest(botica, headers)
  req.on('error', () => undefined)
  const answered = once(req, 'response')
  if (size === 0) req.write('x')
  for (let sent = 0; sent < size; sent += 65_536) {
    if (!req.write(Buffer.alloc(Math.min(65_536, size - sent)))) {
      await Promise.race([once(req, 'drain'), answered])
    }
  }
  if (size > 0) req.end()
  const [response] = await answered
  req.destroy()
  return response.statusCode
}

/** Disconnects before the announced length. */
async function breakOff(botica: Botica, bytes: number): Promise<void> {
  const req = openRequest(botica, { ...type, 'Content-Length': String(bytes + 1000) })
  req.on('error', () => undefined)
  await new Promise((resolve) => req.write(Buffer.alloc(bytes), resolve))
  req.destroy()
}

function openRequest({ baseUrl, admin }: Botica, headers: Record<string, string>) {
  return request(`${baseUrl}fhir/R4/Binary`, {
    method: 'POST',
    headers: { ...headers, Authorization: `Bearer ${admin.token}` },
  })
}

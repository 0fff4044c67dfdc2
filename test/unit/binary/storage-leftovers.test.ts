import { randomUUID } from 'node:crypto'
import {
  existsSync,
  mkdirSync,
  mkdtempSync,
  readdirSync,
  rmSync,
  utimesSync,
  writeFileSync,
} from 'node:fs'
import { createServer } from 'node:http'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { Readable } from 'node:stream'
import t from 'tap'
import { openStorage } from '../../../shared/outbound/storage/disk.ts'
import { listen } from '../../fixtures/http/listening.ts'

const folder = mkdtempSync(join(tmpdir(), 'botica-leftovers-'))
t.teardown(() => rmSync(folder, { recursive: true, force: true }))
const disk = await openStorage({ storageUrl: `file:${folder}`, maxUploadBytes: 1000 })
const DAY_MS = 24 * 3600 * 1000
const content = () => Readable.from([Buffer.from('content')])

t.test('removes a folder with its last file', async (t) => {
  await disk.put('exports/project/job/1-1-0', content())
  await disk.put('exports/project/job/1-1-1', content())
  await disk.put('exports/other/job/1-1-0', content())

  await disk.delete('exports/project/job/1-1-0')
  t.same(readdirSync(join(folder, 'exports/project/job')), ['1-1-1'])
  await disk.delete('exports/project/job/1-1-1')
  t.same(readdirSync(join(folder, 'exports')), ['other'])
  await disk.delete('exports/other/job/1-1-0')
  t.notOk(existsSync(join(folder, 'exports')))
  t.ok(existsSync(folder))
  await disk.delete('exports/other/job/1-1-0')
})

t.test('keeps a file whose folder is removed at the same time', async (t) => {
  const keys = Array.from({ length: 200 }, (_, i) => `exports/project/${i % 2}/${i}`)
  await Promise.all(
    keys.map(async (key, i) => {
      await disk.put(key, content())
      if (i >= 20) await disk.delete(key)
    }),
  )
  for (const key of keys.slice(0, 20)) {
    const [stored] = await (await disk.get(key)).toArray()
    t.equal(String(stored), 'content')
    await disk.delete(key)
  }
})

t.test('removes old leftovers of crashed uploads from a folder', async (t) => {
  const incoming = join(folder, 'incoming')
  mkdirSync(incoming, { recursive: true })
  const [old, young] = [randomUUID(), randomUUID()]
  for (const name of [old, young]) writeFileSync(join(incoming, name), 'half')
  const begun = new Date(Date.now() - DAY_MS - 1000)
  utimesSync(join(incoming, old), begun, begun)

  await disk.removeAbandoned(new Date(Date.now() - DAY_MS))

  t.same(readdirSync(incoming), [young])
})

/** Serves two pages of uploads and records its requests. */
async function openUploads(begun: readonly Date[]) {
  const asked: { readonly method: string | undefined; readonly url: URL }[] = []
  const xml = (text: string) => `<?xml version="1.0" encoding="UTF-8"?>${text}`
  const server = createServer((req, res) => {
    const url = new URL(req.url ?? '', 'http://bucket')
    asked.push({ method: req.method, url })
    if (req.method === 'DELETE') return res.writeHead(204).end()
    const page = url.searchParams.has('key-marker') ? 1 : 0
    const next =
      page === 0
        ? '<IsTruncated>true</IsTruncated><NextKeyMarker>k</NextKeyMarker><NextUploadIdMarker>u</NextUploadIdMarker>'
        : '<IsTruncated>false</IsTruncated>'
    const uploads = begun
      .slice(page * 2, page * 2 + 2)
      .map(
        (time, i) =>
          `<Upload><Key>botica/${page}${i}</Key><UploadId>id-${page}${i}</UploadId><Initiated>${time.toISOString()}</Initiated></Upload>`,
      )
    const text = `<ListMultipartUploadsResult>${next}${uploads.join('')}</ListMultipartUploadsResult>`
    return res.writeHead(200, { 'Content-Type': 'application/xml' }).end(xml(text))
  })
  const port = await listen(t, server)
  return { asked, endpoint: encodeURIComponent(`http://127.0.0.1:${port}`) }
}

t.test('removes old leftovers of crashed uploads from a bucket', async (t) => {
  Object.assign(process.env, { AWS_ACCESS_KEY_ID: 'id', AWS_SECRET_ACCESS_KEY: 'secret' })
  const [old, young] = [new Date(Date.now() - DAY_MS - 1000), new Date()]
  const { asked, endpoint } = await openUploads([old, young, young, old])
  const storageUrl = `s3://files/botica?endpoint=${endpoint}&forcePathStyle=true`
  const bucket = await openStorage({ storageUrl, maxUploadBytes: 1000 })
  t.teardown(() => bucket.close())

  await bucket.removeAbandoned(new Date(Date.now() - DAY_MS))

  const lists = asked.filter(({ method }) => method === 'GET')
  t.same(
    lists.map(({ url }) =>
      ['prefix', 'key-marker', 'upload-id-marker'].map((name) => url.searchParams.get(name)),
    ),
    [
      ['botica/', null, null],
      ['botica/', 'k', 'u'],
    ],
  )
  const aborted = asked.filter(({ method }) => method === 'DELETE')
  t.same(
    aborted.map(({ url }) => [url.pathname, url.searchParams.get('uploadId')]),
    [
      ['/files/botica/00', 'id-00'],
      ['/files/botica/11', 'id-11'],
    ],
  )
})

import { randomBytes } from 'node:crypto'
import t from 'tap'
import { download, upload } from '../../fixtures/binaries.ts'
import { openBotica } from '../../fixtures/botica.ts'

const botica = await openBotica(t)
const { admin } = botica
const bytes = randomBytes(1000)
const { id, url } = await upload(admin, bytes, 'application/pdf')
const empty = await upload(admin, '', 'text/plain')

const ask = (path: string, headers: Record<string, string>, method = 'GET') =>
  download(botica, path, admin, { headers, method })

t.test('answers one range with its part', async (t) => {
  const ranges: readonly [string, number, number][] = [
    ['bytes=0-0', 0, 0],
    ['bytes=0-99', 0, 99],
    ['bytes=990-', 990, 999],
    ['bytes=990-5000', 990, 999],
    ['bytes=-10', 990, 999],
    ['bytes=-5000', 0, 999],
    ['bytes=999-999', 999, 999],
    ['Bytes = 5-6', 5, 6],
  ]
  for (const [range, start, end] of ranges) {
    for (const path of [`Binary/${id}`, url]) {
      const part = await ask(path, { Range: range })
      t.equal(part.status, 206, range)
      t.equal(part.headers.get('content-range'), `bytes ${start}-${end}/1000`)
      t.equal(part.headers.get('content-length'), String(end - start + 1))
      t.ok(part.bytes.equals(bytes.subarray(start, end + 1)))
    }
  }
})

t.test('rejects a range beyond the end with the size', async (t) => {
  for (const range of ['bytes=1000-', 'bytes=5000-6000', 'bytes=-0']) {
    const refused = await ask(`Binary/${id}`, { Range: range })
    t.equal(refused.status, 416, range)
    t.equal(refused.headers.get('content-range'), 'bytes */1000')
    t.match(refused.bytes.toString(), /OperationOutcome/)
  }
  const nothing = await ask(`Binary/${empty.id}`, { Range: 'bytes=0-' })
  t.equal(nothing.headers.get('content-range'), 'bytes */0')
})

t.test('ignores anything but a single range', async (t) => {
  const ignored = ['bytes=5-4', 'bytes=-', 'bytes=a-b', 'items=0-1', 'bytes=0-1,5-6', 'bytes', '']
  for (const range of ignored) {
    const whole = await ask(`Binary/${id}`, { Range: range })
    t.equal(whole.status, 200, range)
    t.ok(whole.bytes.equals(bytes))
  }
})

t.test('returns a part for If-Range only of the same version', async (t) => {
  const { headers } = await ask(`Binary/${id}`, {})
  const modified = String(headers.get('last-modified'))
  const conditions: readonly [string, number][] = [
    ['"1"', 206],
    [modified, 206],
    ['"2"', 200],
    ['W/"1"', 200],
    ['Thu, 01 Jan 1970 00:00:00 GMT', 200],
  ]
  for (const [condition, status] of conditions) {
    const part = await ask(`Binary/${id}`, { Range: 'bytes=0-1', 'If-Range': condition })
    t.equal(part.status, status, condition)
  }
})

t.test('HEAD has the headers and no content', async (t) => {
  for (const path of [`Binary/${id}`, url]) {
    const head = await ask(path, {}, 'HEAD')
    t.equal(head.status, 200)
    t.equal(head.headers.get('content-length'), '1000')
    t.equal(head.headers.get('content-type'), 'application/pdf')
    t.equal(head.headers.get('accept-ranges'), 'bytes')
    t.equal(head.bytes.length, 0)
    const part = await ask(path, { Range: 'bytes=0-9' }, 'HEAD')
    t.equal(part.status, 206)
    t.equal(part.headers.get('content-length'), '10')
  }
})

t.test('content that the caller has is not sent again', async (t) => {
  const same = await ask(`Binary/${id}`, { 'If-None-Match': '"1"' })
  t.equal(same.status, 304)
  t.equal(same.headers.get('etag'), '"1"')
  t.equal((await ask(`Binary/${id}`, { 'If-None-Match': '"2"' })).status, 200)
})

t.test('sends content uncompressed, with true length and ranges', async (t) => {
  const text = await upload(admin, 'x'.repeat(10_000), 'text/plain')
  const read = await ask(`Binary/${text.id}`, { 'Accept-Encoding': 'gzip' })
  t.equal(read.headers.get('content-encoding'), null)
  t.equal(read.headers.get('content-length'), '10000')
})

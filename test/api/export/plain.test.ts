/** Imports the blocks of files, to build sizes that exports reach only with gigabytes. */
import { constants, gunzipSync } from 'node:zlib'
import t from 'tap'
import { createBlocks } from '../../../shared/export/block.ts'
import { GZIP_HEADER, gzipTrailer, unpackBlock } from '../../../shared/export/file.ts'
import { toSlice } from '../../../shared/outbound/storage/storage.ts'
import { openBotica } from '../../fixtures/botica.ts'
import { exportAll, fetchManifest, kickOff } from '../../fixtures/exports/exports.ts'
import { aPatient } from '../../fixtures/resources.ts'
import { createDatabase } from '../../fixtures/store/own-database.ts'

const STORED_BYTES = 65_535

interface Made {
  readonly entry: readonly { readonly response: { readonly location: string } }[]
}

const botica = await openBotica(t, {
  worker: true,
  env: { DATABASE_URL: await createDatabase(t), EXPORT_COMPRESSION_LEVEL: '0' },
})
const { admin } = botica

const LENGTHS = [
  [1, 2, 3],
  [STORED_BYTES - 1],
  [STORED_BYTES - 2, 1],
  [STORED_BYTES, STORED_BYTES],
  [3 * STORED_BYTES],
  [5 * 1024 * 1024],
]

for (const level of [0, 1]) {
  t.test(
    `reads the lines of a block of level ${level}, separately and in a gzip member`,
    async (t) => {
      const blocks = createBlocks(level)
      for (const lengths of LENGTHS) {
        const lines = lengths.map((length, i) => Buffer.alloc(length, 97 + i))
        const whole = Buffer.concat(lines.flatMap((line) => [line, Buffer.from('\n')]))
        const block = blocks.take(toSlice(lines[0] ?? Buffer.alloc(0)))
        for (const line of lines) {
          t.ok(block.fits(toSlice(line)))
          const bytes = Buffer.concat([Buffer.from('#'), line, Buffer.from('#')])
          block.add({ bytes, start: 1, end: 1 + line.length })
        }
        t.match(block, { rows: lines.length, bytes: whole.length })
        const trailer = gzipTrailer(block.crc(0), block.bytes)
        const packed = await block.pack()
        t.ok((await unpackBlock(Buffer.from(packed))).equals(whole), lengths.join())
        const member = Buffer.concat([GZIP_HEADER, packed, trailer])
        t.ok(gunzipSync(member, { finishFlush: constants.Z_FINISH }).equals(whole), lengths.join())
        blocks.give(block)
      }
    },
  )
}

t.test('continues the CRC of a file from block to block', async (t) => {
  const blocks = createBlocks(0)
  const line = toSlice(Buffer.alloc(2 * 1024 * 1024, 'x'))
  const first = blocks.take(line)
  first.add(line)
  t.ok(first.fits(toSlice(Buffer.alloc(1))))
  t.notOk(first.fits(line), 'two lines with their line feeds exceed a block')
  const second = blocks.take(line)
  second.add(line)
  const trailer = gzipTrailer(second.crc(first.crc(0)), first.bytes + second.bytes)
  const packed = [Buffer.from(await first.pack()), await second.pack()]
  const whole = gunzipSync(Buffer.concat([GZIP_HEADER, ...packed, trailer]))
  t.equal(whole.length, 2 * (line.end + 1))
})

t.test('writes each resource once in every form without compression', async (t) => {
  const photo = (i: number) => (i % 3 === 0 ? [{ url: `Binary/photo-${i}` }] : undefined)
  const entry = Array.from({ length: 60 }, (_, i) => ({
    request: { method: 'POST', url: 'Patient' },
    resource: aPatient({
      photo: photo(i),
      identifier: [{ system: 'urn:n', value: String(i).padEnd(5000, '-') }],
    }),
  }))
  const json = { 'Content-Type': 'application/fhir+json' }
  await admin.post('', JSON.stringify({ resourceType: 'Bundle', type: 'batch', entry }), json)
  const url = await kickOff(admin, '$export?_type=Patient')
  const { output } = await fetchManifest(admin, url)
  t.match(output, [{ type: 'Patient', count: 60 }])
  const file = output[0]?.url ?? ''
  const asked = (headers: Record<string, string>) =>
    fetch(file, { headers: { Authorization: `Bearer ${admin.token}`, ...headers } })

  const plain = await asked({ 'Accept-Encoding': 'identity' })
  const whole = Buffer.from(await plain.arrayBuffer())
  t.ok(whole.length > 4 * STORED_BYTES)
  const lines = whole.toString().trimEnd().split('\n')
  const ids = lines.map((line) => JSON.parse(line).id)
  t.equal(new Set(ids).size, 60)
  for (const [i, line] of lines.entries()) {
    const { text } = await admin.get(`Patient/${ids[i]}`)
    const absolute = text.replace('"Binary/', `"${botica.baseUrl}fhir/R4/Binary/`)
    t.same(JSON.parse(line), JSON.parse(absolute))
  }

  const packed = await asked({ 'Accept-Encoding': 'gzip' })
  t.equal(packed.headers.get('content-encoding'), 'gzip')
  t.ok(Number(packed.headers.get('content-length')) > whole.length, 'compresses nothing')
  t.ok(Buffer.from(await packed.arrayBuffer()).equals(whole), 'decompresses to the same bytes')

  for (const [from, to] of [
    [0, 9],
    [STORED_BYTES - 3, STORED_BYTES + 3],
    [STORED_BYTES, 3 * STORED_BYTES],
    [whole.length - 5, whole.length - 1],
  ] as const) {
    const part = await asked({ 'Accept-Encoding': 'identity', Range: `bytes=${from}-${to}` })
    t.equal(part.status, 206)
    t.ok(Buffer.from(await part.arrayBuffer()).equals(whole.subarray(from, to + 1)), `${from}`)
  }
})

t.test('exports the latest version of a resource with many versions', async (t) => {
  const made = await admin.create({ resourceType: 'Basic', code: { text: '0' } })
  const other = await admin.create({ resourceType: 'Basic', code: { text: 'other' } })
  for (let i = 1; i <= 8; i++) {
    await admin.put(`Basic/${made.id}`, { ...made, code: { text: String(i) } })
  }
  const { output } = await fetchManifest(admin, await kickOff(admin, '$export?_type=Basic'))
  const headers = { Authorization: `Bearer ${admin.token}` }
  const text = await (await fetch(output[0]?.url ?? '', { headers })).text()
  const lines = text.trimEnd().split('\n')
  const found = lines.map((line) => JSON.parse(line)).map(({ id, code }) => [id, code.text])
  t.equal(found.length, 2)
  t.same(Object.fromEntries(found), { [made.id]: '8', [other.id]: 'other' })
})

t.test(
  'exports each row once and in order for a type with more rows than are sorted',
  async (t) => {
    const BUNDLES = 5
    const ENTRIES = 420
    const ids: string[] = []
    for (let n = 0; n < BUNDLES; n++) {
      const entry = Array.from({ length: ENTRIES }, (_, i) => ({
        request: { method: 'POST', url: 'Flag' },
        resource: {
          resourceType: 'Flag',
          status: 'active',
          code: { text: `${n}-${i}` },
          subject: { display: 'Nobody' },
        },
      }))
      const bundle = JSON.stringify({ resourceType: 'Bundle', type: 'batch', entry })
      const { body } = await admin.post<Made>('', bundle, {
        'Content-Type': 'application/fhir+json',
      })
      for (const { response } of body.entry) ids.push(response.location.split('/')[1] ?? '')
    }
    const [changed = '', gone = '', ...others] = ids
    const { body } = await admin.get(`Flag/${changed}`)
    await admin.put(`Flag/${changed}`, { ...body, status: 'inactive' })
    await admin.del(`Flag/${gone}`)

    const { resources } = await exportAll(admin, '$export?_type=Flag')
    const found = resources.get('Flag') ?? []
    t.same(
      found.map(({ id }) => id),
      [changed, ...others].sort(),
    )
    t.match(
      found.filter(({ status }) => status !== 'active'),
      [{ id: changed, status: 'inactive' }],
    )
  },
)

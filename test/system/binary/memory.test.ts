import { createHash } from 'node:crypto'
import { readFileSync } from 'node:fs'
import t from 'tap'
import type { Binary } from '../../fixtures/binaries.ts'
import { openCluster } from '../../fixtures/services/cluster.ts'

const SIZE = 200 * 1024 * 1024
const WARM_UP = 16 * 1024 * 1024
const CHUNK = Buffer.alloc(64 * 1024, 'content ')
const MOST_GROWTH = 100 * 1024 * 1024

const cluster = await openCluster(t)
const { admin } = await cluster.createTenant('Memory')
const pid = cluster.web.child.pid ?? 0

/** Memory of the web process in bytes: `VmRSS` (current) or `VmHWM` (peak). */
function memory(name: string): number {
  const status = readFileSync(`/proc/${pid}/status`, 'utf8')
  return Number(new RegExp(`^${name}:\\s+(\\d+) kB$`, 'm').exec(status)?.[1]) * 1024
}

async function* zeros(size: number): AsyncGenerator<Uint8Array> {
  for (let sent = 0; sent < size; sent += CHUNK.length) yield CHUNK.subarray(0, size - sent)
}

async function upload(size: number): Promise<Binary> {
  const response = await fetch(`${cluster.baseUrl}fhir/R4/Binary`, {
    method: 'POST',
    headers: { 'Content-Type': 'image/png', Authorization: `Bearer ${admin.token}` },
    body: zeros(size),
    duplex: 'half',
  })
  if (response.status !== 201) throw new Error(await response.text())
  return (await response.json()) as Binary
}

/** Returns the digest of the content at a signed URL. */
async function downloadDigest(url: string): Promise<string> {
  const { body } = await fetch(url)
  const digest = createHash('sha256')
  for await (const chunk of body ?? []) digest.update(chunk)
  return digest.digest('hex')
}

t.test('streams a large Binary in and out', async (t) => {
  // V8 grows its young generation on the first load, regardless of content.
  const small = await upload(WARM_UP)
  await downloadDigest(small.url)
  const before = memory('VmRSS')
  const { url } = await upload(SIZE)
  const expected = createHash('sha256')
  for (let sent = 0; sent < SIZE; sent += CHUNK.length) expected.update(CHUNK)
  t.equal(await downloadDigest(url), expected.digest('hex'))
  const growth = memory('VmHWM') - before
  t.comment(`grew by ${Math.round(growth / 1024 / 1024)} MiB`)
  t.ok(growth < MOST_GROWTH, `grew by ${Math.round(growth / 1024 / 1024)} MiB`)
})

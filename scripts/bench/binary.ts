/**
 * A large Binary over HTTP into a folder and into an S3 bucket, beside a bare Node server that pipes the
 * same bytes to a file; and how much memory the web process takes for it.
 */
import { createReadStream, createWriteStream, readFileSync, writeFileSync } from 'node:fs'
import { mkdtemp, rm } from 'node:fs/promises'
import { createServer } from 'node:http'
import type { AddressInfo } from 'node:net'
import { tmpdir } from 'node:os'
import path from 'node:path'
import { pipeline } from 'node:stream/promises'
import S3rver from 's3rver'
import type { Figure } from '../bench.ts'
import { freePort } from '../service.ts'
import { connect } from '../session.ts'
import { startWeb, stopChild, untilReady } from './children.ts'
import { median } from './load.ts'
import { openStage } from './stage.ts'

const ROUNDS = 3
const SIZE = 100 * 1024 * 1024
/** Loads the code; the first large content is measured, too. */
const WARM_UP = 1
const CHUNK = Buffer.alloc(64 * 1024, 'content ')

/** The size of the content decides how long it takes, not the seconds of a round. */
export async function binary(): Promise<readonly Figure[]> {
  const folder = await mkdtemp(path.join(tmpdir(), 'botica-bench-'))
  const bucket = await openBucket(folder)
  const limit = await openLimit(path.join(folder, 'limit'))
  try {
    const pure = await measureRounds(limit.url, () => limit.url, {})
    const disk = await measureService({}, pure, 'a folder')
    const s3 = await measureService(bucket.settings, pure, 'a bucket')
    return [...disk, ...s3]
  } finally {
    limit.close()
    await bucket.close()
    await rm(folder, { recursive: true, force: true })
  }
}

interface Rates {
  /** MiB a second. */
  readonly up: number
  readonly down: number
}

async function measureService(
  settings: NodeJS.ProcessEnv,
  pure: Rates,
  where: string,
): Promise<Figure[]> {
  const port = await freePort()
  const baseUrl = `http://127.0.0.1:${port}/`
  const stage = await openStage({ PORT: String(port), BASE_URL: baseUrl, ...settings })
  const web = startWeb(stage.env)
  try {
    await untilReady(baseUrl, false)
    Object.assign(process.env, {
      BASE_URL: baseUrl,
      SUPER_ADMIN_CLIENT_ID: stage.env.SUPER_ADMIN_CLIENT_ID,
      SUPER_ADMIN_CLIENT_SECRET: stage.env.SUPER_ADMIN_CLIENT_SECRET,
    })
    const { token } = await connect()
    const headers = { Authorization: `Bearer ${token}`, 'Content-Type': 'image/png' }
    const url = `${baseUrl}fhir/R4/Binary`
    const addressOf = (answer: string) => (JSON.parse(answer) as { url: string }).url
    await drain(addressOf(await send(url, WARM_UP, headers)))
    const before = memory(web.pid, 'VmRSS')
    writeFileSync(`/proc/${web.pid}/clear_refs`, '5')
    const ours = await measureRounds(url, addressOf, headers)
    const growth = memory(web.pid, 'VmHWM') - before
    return [
      figure(`100 MiB into ${where}`, ours.up, pure.up),
      figure(`100 MiB out of ${where}`, ours.down, pure.down),
      {
        what: `memory for it, ${where}`,
        ours: `+${growth} MiB`,
        limit: '',
        ratio: '',
        required: '< 60 MiB',
      },
    ]
  } finally {
    await stopChild(web)
    await stage.close()
  }
}

function figure(what: string, ours: number, limit: number): Figure {
  const show = (rate: number) => `${Math.round(rate)} MiB/s`
  const ratio = (ours / limit).toFixed(2)
  return { what, ours: show(ours), limit: show(limit), ratio, required: '' }
}

async function measureRounds(
  url: string,
  addressOf: (answer: string) => string,
  headers: Record<string, string>,
): Promise<Rates> {
  const up: number[] = []
  const down: number[] = []
  for (let round = 0; round < ROUNDS; round++) {
    const began = performance.now()
    const address = addressOf(await send(url, SIZE, headers))
    up.push(rateSince(began))
    const asked = performance.now()
    await drain(address)
    down.push(rateSince(asked))
  }
  return { up: median(up), down: median(down) }
}

function rateSince(began: number): number {
  return SIZE / 1024 / 1024 / ((performance.now() - began) / 1000)
}

async function send(url: string, size: number, headers: Record<string, string>): Promise<string> {
  const response = await fetch(url, { method: 'POST', headers, body: zeros(size), duplex: 'half' })
  const text = await response.text()
  if (!response.ok) throw new Error(`POST answered ${response.status}: ${text}`)
  return text
}

async function* zeros(size: number): AsyncGenerator<Uint8Array> {
  for (let sent = 0; sent < size; sent += CHUNK.length) yield CHUNK
}

async function drain(url: string): Promise<void> {
  const { ok, status, body } = await fetch(url)
  if (!ok || body === null) throw new Error(`GET answered ${status}`)
  for await (const chunk of body) void chunk
}

/** MiB. */
function memory(pid: number | undefined, name: string): number {
  const status = readFileSync(`/proc/${pid}/status`, 'utf8')
  return Math.round(Number(new RegExp(`^${name}:\\s+(\\d+) kB$`, 'm').exec(status)?.[1]) / 1024)
}

async function openLimit(file: string): Promise<{ url: string; close(): void }> {
  const server = createServer(async (req, res) => {
    if (req.method === 'GET') return await pipeline(createReadStream(file), res)
    await pipeline(req, createWriteStream(file, { flush: true }))
    res.end('stored')
  })
  await new Promise<void>((resolve) => server.listen(0, '127.0.0.1', resolve))
  // A TCP server's address is never a string.
  const { port } = server.address() as AddressInfo
  return { url: `http://127.0.0.1:${port}/`, close: () => server.close() }
}

async function openBucket(folder: string) {
  const service = new S3rver({
    address: '127.0.0.1',
    port: 0,
    silent: true,
    directory: path.join(folder, 'bucket'),
    configureBuckets: [{ name: 'files', configs: [] }],
  })
  const { port } = await service.run()
  const endpoint = encodeURIComponent(`http://127.0.0.1:${port}`)
  return {
    settings: {
      STORAGE_URL: `s3://files/bench?endpoint=${endpoint}&forcePathStyle=true`,
      AWS_ACCESS_KEY_ID: 'S3RVER',
      AWS_SECRET_ACCESS_KEY: 'S3RVER',
    },
    close: () => service.close(),
  }
}

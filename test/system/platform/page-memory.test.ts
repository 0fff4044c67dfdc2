/** A large page is in memory once and is freed as its caller reads it. */
import diagnostics from 'node:diagnostics_channel'
import { once } from 'node:events'
import http, { type IncomingMessage, type ServerResponse } from 'node:http'
import type { Socket } from 'node:net'
import { setTimeout as delay, setImmediate as nextTurn } from 'node:timers/promises'
import { setFlagsFromString } from 'node:v8'
import { runInNewContext } from 'node:vm'
import t from 'tap'
import { openBotica } from '../../fixtures/botica.ts'
import { aPatient } from '../../fixtures/resources.ts'

const RESOURCES = 1000
const BYTES = 40_000
const PAGE = RESOURCES * BYTES

setFlagsFromString('--expose-gc')
const collect: (how?: { type: 'minor' }) => void = runInNewContext('gc')

/** Returns the reachable memory in bytes. Buffers are freed some turns after their last reference. */
async function reachable(): Promise<number> {
  for (let round = 0; round < 3; round++) {
    collect()
    await nextTurn()
  }
  const { heapUsed, external } = process.memoryUsage()
  return heapUsed + external
}

/** Returns the reachable memory after background loading, which a busy machine does late. */
async function settled(): Promise<number> {
  let last = await reachable()
  for (let steady = 0; steady < 4; steady++) {
    await delay(500)
    const now = await reachable()
    if (Math.abs(now - last) > PAGE / 40) steady = 0
    last = now
  }
  return last
}

interface Answering {
  readonly response: ServerResponse
  readonly socket: Socket
}

/** Returns the server side of the next request; the web app runs in this process. */
function nextAnswering(): Promise<Answering> {
  const channel = 'http.server.request.start'
  return new Promise((resolve) => {
    const listener = (message: unknown) => {
      diagnostics.unsubscribe(channel, listener)
      // The type documented by Node.
      resolve(message as Answering)
    }
    diagnostics.subscribe(channel, listener)
  })
}

/** Resolves when all bytes are sent, or when sending stalled for a second and many event loop turns. */
async function heldBack({ response, socket }: Answering): Promise<number> {
  let sent = -1
  for (let quiet = 0; quiet < 100; quiet++) {
    await delay(10)
    await nextTurn()
    const isWaiting = socket.writableLength > 0 || response.writableFinished
    if (socket.bytesWritten === sent && isWaiting) continue
    sent = socket.bytesWritten
    quiet = 0
  }
  return sent
}

async function take(response: IncomingMessage, bytes: number): Promise<void> {
  for (let taken = 0; taken < bytes; ) {
    const chunk: Buffer | null = response.read()
    if (chunk === null) await once(response, 'readable')
    else taken += chunk.length
  }
}

const { admin, baseUrl } = await openBotica(t)
const patient = await admin.create(aPatient())
const filler = 'x'.repeat(BYTES)
for (let from = 0; from < RESOURCES; from += 100) {
  const entry = Array.from({ length: 100 }, (_, i) => ({
    request: { method: 'POST', url: 'Basic' },
    resource: {
      resourceType: 'Basic',
      code: { text: `${from + i}` },
      subject: { reference: `Patient/${patient.id}` },
      extension: [{ url: 'urn:filler', valueString: filler }],
    },
  }))
  const { status } = await admin.post('', { resourceType: 'Bundle', type: 'batch', entry })
  if (status !== 200) throw new Error(`The batch was answered with ${status}`)
}

for (const path of [
  'Basic?_count=1000',
  'Basic/_history?_count=1000',
  `Patient/${patient.id}/$everything?_count=1000&_type=Basic`,
]) {
  t.test(`holds ${path.replace(/-.*\//, '…/')} once, and frees it as it is read`, async (t) => {
    const url = `${baseUrl}fhir/R4/${path}`
    const headers = { Authorization: `Bearer ${admin.token}` }
    const before = await settled()
    const growth = async () => ((await reachable()) - before) / PAGE
    const answering = nextAnswering()
    const request = http.get(url, { headers })
    const [response]: IncomingMessage[] = await once(request, 'response')
    if (response === undefined) throw new Error('No response')
    const server = await answering

    const first = await heldBack(server)
    t.ok(first < PAGE / 2, `${first} bytes were sent unread`)
    t.ok((await growth()) < 1.3, 'the page is in memory once')
    await take(response, PAGE / 2)
    const second = await heldBack(server)
    // The kernel grows its buffer for a fast reader, and may hold the remainder.
    t.ok(second > PAGE / 2, `${second} bytes were sent when half was read`)
    // Some memory is freed with the next statement or timer, late on a busy machine.
    let kept = await growth()
    for (let tries = 0; tries < 200 && kept >= 0.8; tries++) {
      await delay(50)
      kept = await growth()
    }
    t.ok(
      kept < 0.8,
      `frees read data: ${kept.toFixed(2)} is held, ${first} and ${second} bytes were sent`,
    )
    request.destroy()
    while (!server.response.closed) await nextTurn()
    t.equal(server.socket.bytesWritten, second, 'writes nothing to a disconnected caller')
  })
}

t.test('frees response data with the young generation', async (t) => {
  const agent = new http.Agent({ keepAlive: true })
  t.teardown(() => agent.destroy())
  const url = `${baseUrl}fhir/R4/Basic?_count=2`
  const ask = async () => {
    const request = http.get(url, { agent, headers: { Authorization: `Bearer ${admin.token}` } })
    const [response]: IncomingMessage[] = await once(request, 'response')
    response?.resume()
    if (response !== undefined) await once(response, 'end')
  }
  for (let warm = 0; warm < 100; warm++) await ask()
  collect()

  const before = process.memoryUsage().heapUsed
  for (let asked = 0; asked < 200; asked++) await ask()
  let kept = 1
  // A connection may hold the last pages for some turns. A leak outlasts repeated collections.
  for (let tries = 0; tries < 20 && kept >= 0.5; tries++) {
    collect({ type: 'minor' })
    collect({ type: 'minor' })
    kept = (process.memoryUsage().heapUsed - before) / (200 * 2 * BYTES)
    await delay(10)
  }
  t.ok(kept < 0.5, `keeps ${kept.toFixed(2)} of the pages`)
})

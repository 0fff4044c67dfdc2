import { randomBytes } from 'node:crypto'
import { once } from 'node:events'
import { connect, type Socket } from 'node:net'
import { setTimeout as delay } from 'node:timers/promises'
import t from 'tap'
import { upload } from '../../fixtures/binaries.ts'
import { type Botica, openBotica } from '../../fixtures/botica.ts'
import { aBot, handler } from '../../fixtures/bots/bots.ts'
import { openSocket, socketUrl } from '../../fixtures/sockets.ts'

const botica = await openBotica(t, { env: { REQUEST_IDLE_SECONDS: '1' } })
const { baseUrl } = botica
const { port } = new URL(baseUrl)
const HEAD = 'POST /oauth2/token HTTP/1.1\r\nHost: x\r\n'
const FORM = 'Content-Type: application/x-www-form-urlencoded\r\nContent-Length: 1000\r\n\r\n'

/** Sends `start`, then a byte at intervals; resolves with the response when the connection closes. */
async function slowly(start: string, byte?: string): Promise<string> {
  const socket = connect(Number(port), '127.0.0.1')
  let answer = ''
  socket.on('data', (chunk) => {
    answer += chunk
  })
  socket.on('error', () => undefined)
  socket.write(start)
  const timer = byte === undefined ? undefined : setInterval(() => socket.write(byte), 50)
  await once(socket, 'close')
  clearInterval(timer)
  return answer
}

t.test('returns 408 for a stalled body', async (t) => {
  const answer = await slowly(`${HEAD}${FORM}grant_type=`)
  t.match(answer, /^HTTP\/1.1 408 [\s\S]*Connection: close[\s\S]*"code":"timeout"/)
})

t.test('returns 408 for a body sent byte by byte', async (t) => {
  t.match(await slowly(`${HEAD}${FORM}`, 'a'), /^HTTP\/1.1 408 /)
})

t.test('returns 408 for a stalled upload', async (t) => {
  const start = `POST /fhir/R4/Binary HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer ${botica.admin.token}\r\n`
  const answer = await slowly(
    `${start}Content-Type: text/plain\r\nContent-Length: 9000000\r\n\r\nx`,
  )
  t.match(answer, /^HTTP\/1.1 408 /)
  const found = await botica.admin.get('Binary?_summary=count')
  t.not(found.status, 500, 'the service keeps running')
})

t.test('returns 408 for endless headers', async (t) => {
  t.match(await slowly(HEAD, 'X-A: b\r\n'), /^HTTP\/1.1 408 /)
})

t.test('closes the connection of an answered request with an unfinished body', async (t) => {
  const start = 'GET /livez HTTP/1.1\r\nHost: x\r\nContent-Length: 1000\r\n\r\n'
  t.match(await slowly(start, 'a'), /^HTTP\/1.1 200 /)
})

t.test('closes a web socket without a token after a timeout', async (t) => {
  const socket = await openSocket(t, socketUrl(baseUrl))
  t.equal(await socket.closed, 1008)
})

/** More than the buffers of a local connection hold. */
const LARGE_BYTES = 12 * 1024 * 1024

/** Paths of a response that is streamed, and of one that is written at once. */
async function largePaths({ admin }: Botica): Promise<readonly string[]> {
  const bytes = randomBytes(LARGE_BYTES)
  const binary = await upload(admin, bytes, 'application/octet-stream')
  const data = bytes.subarray(0, (LARGE_BYTES / 4) * 3).toString('base64')
  const document = await admin.create({
    resourceType: 'DocumentReference',
    status: 'current',
    content: [{ attachment: { contentType: 'application/octet-stream', data } }],
  } as never)
  return [`Binary/${binary.id}`, `DocumentReference/${document.id}`]
}

function request(botica: Botica, path: string): Socket {
  const socket = connect(Number(new URL(botica.baseUrl).port), '127.0.0.1')
  t.teardown(() => socket.destroy())
  socket.on('error', () => undefined)
  const authorization = `Authorization: Bearer ${botica.admin.token}`
  socket.write(`GET /fhir/R4/${path} HTTP/1.1\r\nHost: x\r\n${authorization}\r\n\r\n`)
  return socket
}

/** Returns how many bytes arrive before the connection ends, at most those of a whole response. */
async function received(socket: Socket, pauseMs: number, before = 0): Promise<number> {
  let bytes = before
  try {
    for await (const chunk of socket) {
      bytes += chunk.length
      if (bytes >= LARGE_BYTES) break
      await delay(pauseMs)
    }
  } catch {
    // The connection is reset.
  }
  return bytes
}

t.test('cuts the connection of a client that does not read its response', async (t) => {
  for (const path of await largePaths(botica)) {
    const socket = request(botica, path)
    const [first] = await once(socket, 'data')
    socket.pause()
    await delay(4000)
    const bytes = await received(socket, 0, first.length)
    t.ok(bytes < LARGE_BYTES, `${path}: ${bytes} bytes`)
  }
})

t.test('sends the whole response to a slow client', async (t) => {
  const patient = await openBotica(t, { env: { REQUEST_IDLE_SECONDS: '2' } })
  await Promise.all(
    (await largePaths(patient)).map(async (path) => {
      const socket = request(patient, path)
      t.ok((await received(socket, 20)) >= LARGE_BYTES, path)
    }),
  )
})

t.test('keeps the connection of a response that is silent for longer', async (t) => {
  const bot = await aBot(botica, handler('return 1'))
  const socket = request(botica, `Bot/${bot}/$logs`)
  await once(socket, 'data')
  const closed = once(socket, 'close').then(() => 'closed')
  t.equal(await Promise.race([closed, delay(2500, 'open')]), 'open')
})

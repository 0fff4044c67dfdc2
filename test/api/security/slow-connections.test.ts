import { once } from 'node:events'
import { connect } from 'node:net'
import t from 'tap'
import { openBotica } from '../../fixtures/botica.ts'
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

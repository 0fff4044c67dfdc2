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

/** Sends it, and then a byte now and then; resolves with what came back when the connection is closed. */
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

t.test('a body that stands still ends with 408', async (t) => {
  const answer = await slowly(`${HEAD}${FORM}grant_type=`)
  t.match(answer, /^HTTP\/1.1 408 [\s\S]*Connection: close[\s\S]*"code":"timeout"/)
})

t.test('so does one that comes byte by byte', async (t) => {
  t.match(await slowly(`${HEAD}${FORM}`, 'a'), /^HTTP\/1.1 408 /)
})

t.test('an upload is no exception', async (t) => {
  const start = `POST /fhir/R4/Binary HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer ${botica.admin.token}\r\n`
  const answer = await slowly(
    `${start}Content-Type: text/plain\r\nContent-Length: 9000000\r\n\r\nx`,
  )
  t.match(answer, /^HTTP\/1.1 408 /)
  const found = await botica.admin.get('Binary?_summary=count')
  t.not(found.status, 500, 'and the service goes on')
})

t.test('headers that do not end are answered 408', async (t) => {
  t.match(await slowly(HEAD, 'X-A: b\r\n'), /^HTTP\/1.1 408 /)
})

t.test('the rest of a request that has its answer does not keep the connection', async (t) => {
  const start = 'GET /livez HTTP/1.1\r\nHost: x\r\nContent-Length: 1000\r\n\r\n'
  t.match(await slowly(start, 'a'), /^HTTP\/1.1 200 /)
})

t.test('a web socket that shows no token is closed in time', async (t) => {
  const socket = await openSocket(t, socketUrl(baseUrl))
  t.equal(await socket.closed, 1008)
})

import { once } from 'node:events'
import t from 'tap'
import { WebSocket } from 'ws'
import { openBotica } from '../../fixtures/botica.ts'
import { bound, openSocket, socketUrl } from '../../fixtures/sockets.ts'

const MOST = 3
const botica = await openBotica(t, { env: { ANONYMOUS_SOCKETS_MAX: String(MOST) } })
const url = socketUrl(botica.baseUrl)

async function refusal() {
  const webSocket = new WebSocket(url)
  webSocket.on('error', () => undefined)
  const [, answer] = await once(webSocket, 'unexpected-response')
  answer.resume()
  return [answer.statusCode, answer.headers['retry-after']]
}

t.test('limits unauthenticated web sockets per address', async (t) => {
  const sockets = []
  for (let i = 0; i < MOST; i++) sockets.push(await openSocket(t, url))
  t.same(await refusal(), [429, '5'])

  const [first, second] = sockets
  if (first === undefined || second === undefined) throw new Error('There are no sockets')
  await bound(botica.admin, first, 'Patient')
  const third = await openSocket(t, url)
  t.equal(third.webSocket.readyState, WebSocket.OPEN, 'does not count a bound socket')
  t.same(await refusal(), [429, '5'])

  second.say({ type: 'bind-with-token', payload: { token: 'nonsense' } })
  await second.heard()
  t.same(await refusal(), [429, '5'], 'counts a socket with an invalid token')

  second.webSocket.close()
  await second.closed
  const fourth = await openSocket(t, url)
  t.equal(fourth.webSocket.readyState, WebSocket.OPEN)
})

import { connect } from 'node:net'
import t from 'tap'
import { openBotica } from '../../fixtures/botica.ts'

const MIB = 1024 * 1024
const { admin, baseUrl } = await openBotica(t)

t.test('answers a client that sends an oversized body before it reads', async (t) => {
  for (const [token, status] of [
    [admin.token, '413'],
    ['nobody', '401'],
  ] as const) {
    const { answer, sent } = await sendAll(token, 24)
    t.match(answer, new RegExp(`^HTTP/1.1 ${status} [^]*OperationOutcome`))
    t.equal(sent, 24)
  }
})

t.test('disconnects a client that sends without end', async (t) => {
  const { sent } = await sendAll(admin.token, 1000)
  t.ok(sent < 200, `${sent} MiB were taken`)
})

/** Reads the response after the whole body is sent. `sent`: MiB sent while connected. */
async function sendAll(token: string | undefined, mebibytes: number) {
  const socket = connect(Number(new URL(baseUrl).port), '127.0.0.1').pause()
  const closed = new Promise((resolve) => socket.on('error', resolve).on('close', resolve))
  const write = (data: string | Buffer) =>
    Promise.race([new Promise((resolve) => socket.write(data, resolve)), closed])
  await write(
    [
      'POST /fhir/R4/Patient HTTP/1.1',
      'Host: x',
      `Authorization: Bearer ${token}`,
      'Content-Type: application/fhir+json',
      `Content-Length: ${mebibytes * MIB}`,
      '\r\n',
    ].join('\r\n'),
  )
  const piece = Buffer.alloc(MIB, ' ')
  let sent = 0
  while (!socket.destroyed && sent < mebibytes) {
    await write(piece)
    sent += 1
  }
  let answer = ''
  socket.on('data', (chunk) => {
    answer += chunk
    if (answer.includes('OperationOutcome')) socket.destroy()
  })
  socket.resume()
  await closed
  return { answer, sent }
}

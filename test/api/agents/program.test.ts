/**
 * `botica agent`, as a device and an administrator meet it. Imports `listen`, to stop web within the test.
 */

import { execFile } from 'node:child_process'
import { once } from 'node:events'
import { createServer } from 'node:net'
import { join } from 'node:path'
import { promisify } from 'node:util'
import t from 'tap'
import { freePort } from '../../../scripts/service.ts'
import { listen } from '../../../server/listen.ts'
import { anAdt, anAgent, anEndpoint, HL7 } from '../../fixtures/agents/agents.ts'
import { openDevice, startAgent } from '../../fixtures/agents/devices.ts'
import { openBotica, until } from '../../fixtures/botica.ts'
import { aBot, handler, type Untyped } from '../../fixtures/bots/bots.ts'

const botica = await openBotica(t, { worker: true })
const { admin, services } = botica

/** `botica send` waits 120 s for an answer. */
const MOST_SEND_MS = 60_000

const ACKS = handler(`
  if (event.input.getSegment('ZZZ')) throw new Error('ZZZ is not supported')
  await medplum.createResource({ resourceType: 'Basic', code: { text: event.input.getSegment('MSH').getField(10).toString() } })
  return event.input.buildAck()`)

t.test('a listener passes messages of devices to a bot, and its ACKs back', async (t) => {
  const identifier = [{ system: 'urn:bots', value: 'adt' }]
  const bot = await aBot(botica, ACKS, { fields: { identifier } })
  for (const name of [bot, 'urn:bots|adt']) {
    const agent = startAgent(t, botica, '--listen', 'mllp://127.0.0.1:0', '--bot', name)
    const [, address = ''] = await agent.printed(/listening at (mllp:\S+)/)
    const device = await openDevice(t, address)
    const acks = [
      device.send(anAdt('l-1')),
      device.send(anAdt('l-2')),
      device.send(anAdt('l-3', 'ZZZ|1')),
    ]
    t.match(await acks[0], /\rMSA\|AA\|l-1\|OK/)
    t.match(await acks[1], /\rMSA\|AA\|l-2\|OK/)
    t.match(await acks[2], /\rMSA\|AE\|l-3\|Application Error/)
    await agent.printed(/the bot answered 400: .*ZZZ is not supported/)
    agent.child.kill()
  }
})

t.test('`botica send` prints the ACK of a device, and ends with it', async (t) => {
  const bot = await aBot(botica, ACKS)
  const agent = startAgent(t, botica, '--listen', 'mllp://127.0.0.1:0', '--bot', bot)
  const [, address = ''] = await agent.printed(/listening at (mllp:\S+)/)
  const file = join(t.testdir({ 'message.hl7': anAdt('s-1') }), 'message.hl7')
  const args = ['--disable-warning=ExperimentalWarning', 'scripts/cli/botica.ts']
  const started = performance.now()
  const { stdout } = await promisify(execFile)(process.execPath, [...args, 'send', file, address])
  t.match(stdout, /\rMSA\|AA\|s-1\|OK/)
  t.ok(performance.now() - started < MOST_SEND_MS)
})

t.test('an agent serves its channels, also after a change of its configuration', async (t) => {
  const bot = await aBot(botica, ACKS)
  const agentId = await anAgent(admin)
  const setChannels = async (...names: readonly string[]) => {
    const channel = await Promise.all(
      names.map(async (name) => {
        const endpoint = await admin.create(anEndpoint('mllp://127.0.0.1:0'))
        const targetReference = { reference: `Bot/${bot}` }
        return { name, endpoint: { reference: `Endpoint/${endpoint.id}` }, targetReference }
      }),
    )
    const { body } = await admin.get<Untyped>(`Agent/${agentId}`)
    const put = await admin.put(`Agent/${agentId}`, { ...body, channel })
    t.equal(put.status, 200)
  }
  await setChannels('adt')
  const agent = startAgent(t, botica, '--agent', agentId)
  const [, address = ''] = await agent.printed(/channel adt listens at (mllp:\S+)/)
  await agent.printed(/is connected/)
  const device = await openDevice(t, address)
  t.match(await device.send(anAdt('a-1')), /\rMSA\|AA\|a-1\|OK/)
  t.match(await device.send(anAdt('a-2', 'ZZZ|1')), /\rMSA\|AE\|a-2/)

  await setChannels('lab')
  t.equal((await admin.get(`Agent/${agentId}/$reload-config`)).status, 200)
  const [, lab = ''] = await agent.printed(/channel lab listens at (mllp:\S+)/)
  t.match(await (await openDevice(t, lab)).send(anAdt('a-3')), /\rMSA\|AA\|a-3\|OK/)

  await until(async () => {
    const { body } = await admin.get<Untyped>(`Agent/${agentId}/$status`)
    return body.parameter[1].valueString === 'botica-0.1.0'
  }, 60_000)
  const logs = await admin.get<Untyped>(`Agent/${agentId}/$fetch-logs?limit=1`)
  const [{ valueString }, { valueBoolean }] = logs.body.parameter
  t.match(JSON.parse(valueString), [{ level: 'INFO', msg: /channel lab listens/ }])
  t.equal(valueBoolean, true)
  t.equal((await admin.get(`Agent/${agentId}/$stats`)).status, 200)
  t.equal((await admin.get(`Agent/${agentId}/$upgrade`)).status, 400)
})

t.test('an agent delivers messages of the service to devices', async (t) => {
  const received: string[] = []
  const server = createServer((socket) => {
    socket.setEncoding('utf8').on('data', (text: string) => {
      received.push(text)
      socket.write('\u000bMSH|^~\\&|LAB|X|Y|Z|20260101||ACK|1|P|2.5\rMSA|AA|p-1\u001c\r')
    })
  })
  server.listen(0, '127.0.0.1')
  await once(server, 'listening')
  t.teardown(() => server.close())
  const { port } = server.address() as { port: number }
  const agentId = await anAgent(admin)
  const agent = startAgent(t, botica, '--agent', agentId)
  await agent.printed(/is connected/)
  const push = async (url: string, message: object) => {
    const { id } = await admin.create({ resourceType: 'Device', url } as never)
    const body = {
      destination: `Device/${id}`,
      waitForResponse: true,
      waitTimeout: 55_000,
      contentType: HL7,
      ...message,
    }
    return await admin.post<Untyped>(`Agent/${agentId}/$push`, body)
  }
  const answer = await push(`mllp://127.0.0.1:${port}`, { body: anAdt('p-1') })
  t.match(answer, { status: 200, text: /\rMSA\|AA\|p-1/ })
  t.match(received, [anAdt('p-1')])
  const closed = await push(`mllp://127.0.0.1:${await freePort()}`, { body: anAdt('p-2') })
  t.match(closed, { status: 400, body: { issue: [{ details: { text: /ECONNREFUSED/ } }] } })
  const dicom = await push('dicom://127.0.0.1:1', { contentType: 'application/dicom', body: 'x' })
  t.equal(dicom.status, 400)
})

t.test('a message without an answer is sent again after the service is back', async (t) => {
  const bot = await aBot(botica, ACKS)
  const endpoint = await admin.create(anEndpoint('mllp://127.0.0.1:0'))
  const targetReference = { reference: `Bot/${bot}` }
  const channel = [
    { name: 'adt', endpoint: { reference: `Endpoint/${endpoint.id}` }, targetReference },
  ]
  const agentId = await anAgent(admin, {}, { channel })
  const port = await freePort()
  const first = await listen(services, port)
  const baseUrl = `http://127.0.0.1:${port}/`
  const agent = startAgent(t, { ...botica, baseUrl }, '--agent', agentId)
  const [, address = ''] = await agent.printed(/channel adt listens at (mllp:\S+)/)
  await agent.printed(/is connected/)
  await first.stop(1000)
  await agent.printed(/The service is not available/)
  const device = await openDevice(t, address)
  const acknowledged = device.send(anAdt('again-1'))
  const second = await listen(services, port)
  t.teardown(() => second.stop(1000))
  t.match(await acknowledged, /\rMSA\|AA\|again-1\|OK/)
})

t.test('the program ends when another one has its agent, or the service rejects it', async (t) => {
  const agentId = await anAgent(admin)
  const older = startAgent(t, botica, '--agent', agentId)
  await older.printed(/is connected/)
  const newer = startAgent(t, botica, '--agent', agentId)
  await older.printed(/Replaced by a newer connection/)
  t.equal(await older.exited, 1)
  await newer.printed(/is connected/)
  const unknown = startAgent(t, botica, '--agent', crypto.randomUUID())
  await unknown.printed(/Not found/)
  t.equal(await unknown.exited, 1)
})

t.test('rejects wrong options with a sentence', async (t) => {
  for (const [words, text] of [
    [[], /Name --agent, or --listen and --bot/],
    [['--listen', 'mllp://127.0.0.1:0'], /Name --agent, or --listen and --bot/],
    [['--listen', 'tcp://127.0.0.1:0', '--bot', '1'], /Expected an address such as mllp:/],
    [['--agent', '1', '--bot', '1'], /leave out --listen and --bot/],
  ] as const) {
    const agent = startAgent(t, botica, ...words)
    await agent.printed(text)
    t.equal(await agent.exited, 1)
  }
})

/** Agents: state, channels, last messages, log, and a test message. */
import t from 'tap'
import { type AgentEnd, anAdt, anAgent, connectAgent, HL7 } from '../../fixtures/agents/agents.ts'
import { openBotica } from '../../fixtures/botica.ts'
import { aBot, handler } from '../../fixtures/bots/bots.ts'
import { exitWithoutChromium } from '../../fixtures/http/chromium.ts'
import { barriers, click, loseAnswers, openConsole, reads } from '../../fixtures/http/console.ts'
import { aPerson } from '../../fixtures/people.ts'

exitWithoutChromium(t)
const botica = await openBotica(t, { worker: true })
const { services, baseUrl, project, admin } = botica
const { email } = await aPerson(services, project, { details: { admin: true } })
const bot = await aBot(botica, handler('return event.input.buildAck()'))
const page = await openConsole(t, { baseUrl, email, path: '/agents' })
const hasRow = (...texts: readonly string[]) =>
  `[...document.querySelectorAll('tbody tr')].some(({ innerText }) => ${JSON.stringify(texts)}.every((text) => innerText.includes(text)))`

t.test('a project without agents explains agents', async (t) => {
  await reads(page, 'No agents yet')
  t.same(await barriers(page), [])
})

interface Ward {
  readonly id: string
  readonly agent: AgentEnd
  /** Destinations of the messages to devices. */
  readonly sent: readonly string[]
}

async function openWard(): Promise<Ward> {
  const id = await anAgent(admin, { adt: bot }, { name: 'Ward 7' })
  await anAgent(admin, {}, { name: 'Ward 8', status: 'off' })
  const agent = await connectAgent(t, baseUrl, admin, id)
  agent.say({ type: 'agent:heartbeat:response', version: '5.1.29' })
  const sent: string[] = []
  agent.webSocket.on('message', (data) => {
    const { type, callback, remote } = JSON.parse(String(data))
    const answer = { type: String(type).replace('request', 'response'), callback, statusCode: 200 }
    if (type === 'agent:logs:request') {
      const logs = [
        { level: 'WARN', msg: 'Channel lab is <b>slow</b>', timestamp: '2026-01-01T00:00:00Z' },
      ]
      agent.say({ ...answer, logs, hasMore: false })
    } else if (type === 'agent:transmit:request') {
      sent.push(remote)
      agent.say({ ...answer, contentType: HL7, body: `MSH|${remote}\rMSA|AA|1` })
    } else if (type === 'agent:reloadconfig:request') agent.say(answer)
  })
  return { id, agent, sent }
}

let opened: Promise<Ward> | undefined
/** Opened once, after the test of a project without agents. */
const ward = () => (opened ??= openWard())

t.test('the list shows which agents are connected', async (t) => {
  const { id } = await ward()
  await page.goto(`${baseUrl}console/agents`)
  await page.shows(hasRow('Ward 7', '5.1.29'))
  await page.shows(hasRow('Ward 8', 'never connected', 'off'))
  t.same(await barriers(page), [])
  await click(page, 'Ward 7')
  await page.shows(`location.pathname.endsWith('/agents/${id}')`)
  await reads(page, '5.1.29')
})

t.test('an agent has its channels and last messages, with their runs', async (t) => {
  const { agent } = await ward()
  await page.shows(hasRow('adt', 'mllp://0.0.0.0:56000', 'Test bot'))
  t.same(await barriers(page), [])
  await agent.transmit({ body: anAdt('m-1') })
  await click(page, 'Last messages')
  await page.shows(hasRow('from a device', 'adt', '10.0.0.1:1', '200'))
  t.same(await barriers(page), [])
  await click(page, 'Open')
  await reads(page, 'Run of')
})

t.test('the log is fetched from the agent, and shown as text', async (t) => {
  const { id } = await ward()
  await page.goto(`${baseUrl}console/agents/${id}/log`)
  await click(page, 'Fetch the log')
  await page.shows(hasRow('WARN', 'Channel lab is <b>slow</b>'))
  t.same(await barriers(page), [])
})

t.test('a test message is answered by the device, or with the reason why not', async (t) => {
  const { id } = await ward()
  await page.goto(`${baseUrl}console/agents/${id}/test`)
  await page.write('input[name=destination]', 'lab.clinic.example')
  await click(page, 'Send')
  await reads(page, 'MSH|lab.clinic.example\nMSA|AA|1')
  t.equal(
    await page.value(`document.querySelector('input[name=destination]').value`),
    'lab.clinic.example',
  )
  t.same(await barriers(page), [])
  await page.write('input[name=destination]', 'Device/none')
  await click(page, 'Send')
  await reads(page, 'Destination device not found')
})

t.test('a message whose answer is lost is sent once when it is repeated', async (t) => {
  const { id, sent } = await ward()
  const send = async () => {
    await page.goto(`${baseUrl}console/agents/${id}/test`)
    await page.write('input[name=destination]', 'once.clinic.example')
  }
  await send()
  await loseAnswers(page, `fhir/R4/Agent/${id}/$push`)
  await click(page, 'Send')
  await reads(page, 'The service does not respond')
  await send()
  await click(page, 'Send')
  await reads(page, 'MSH|once.clinic.example\nMSA|AA|1')
  t.equal(sent.filter((remote) => remote === 'once.clinic.example').length, 1)
})

t.test('the configuration is read again', async () => {
  await click(page, 'Reload the configuration')
  await reads(page, 'The agent has read its configuration again')
})

t.test('an agent that went away is shown as disconnected', async () => {
  const { agent } = await ward()
  agent.webSocket.close()
  await reads(page, 'disconnected')
})

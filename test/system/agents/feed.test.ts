/** Devices send messages through one agent and one worker while web, worker, Redis and agent are killed. */
import { setTimeout as delay } from 'node:timers/promises'
import t from 'tap'
import { freePort } from '../../../scripts/service.ts'
import { anAdt, anAgent, anEndpoint } from '../../fixtures/agents/agents.ts'
import { type Device, openDevice, startAgent } from '../../fixtures/agents/devices.ts'
import { until } from '../../fixtures/botica.ts'
import { aBot, handler, type Untyped } from '../../fixtures/bots/bots.ts'
import { caseCount } from '../../fixtures/policy/oracle.ts'
import { openCluster, said } from '../../fixtures/services/cluster.ts'

t.setTimeout(900_000)
const DEVICES = 20
/** Each program is killed twice. */
const KILLS = caseCount(8)
/** Each device sends at least this many, and goes on until the last kill is over. */
const LEAST = 20
const CALM_MS = 1000
/** Messages of each device before the first kill. */
const CALM = caseCount(30)
const SYSTEM = 'urn:feed'

const cluster = await openCluster(t)
const tenant = await cluster.createTenant('Feed')
const { admin } = tenant
const bot = await aBot(
  tenant,
  handler(`
    const value = event.input.getSegment('MSH').getField(10).toString()
    const identifier = [{ system: '${SYSTEM}', value }]
    const code = { text: event.agent.remote }
    await medplum.createResourceIfNoneExist({ resourceType: 'Basic', identifier, code }, 'identifier=${SYSTEM}|' + value)
    return event.input.buildAck()`),
)
const address = `mllp://127.0.0.1:${await freePort()}`
const endpoint = await admin.create(anEndpoint(address))
const targetReference = { reference: `Bot/${bot}` }
const channel = [
  { name: 'adt', endpoint: { reference: `Endpoint/${endpoint.id}` }, targetReference },
]
const agentId = await anAgent(admin, {}, { channel })

let web = cluster.web
let worker = await cluster.startWorker()
let agent = await connected()
let isOver = false

/** Starts the program again until it is connected, like a supervisor. */
async function connected() {
  const started = startAgent(t, { ...tenant, baseUrl: cluster.baseUrl }, '--agent', agentId)
  await started.printed(/is connected/)
  return started
}

const faults = {
  async web() {
    web.child.kill('SIGKILL')
    await web.ended
    web = cluster.run('server')
    await said(web, '"listening"')
  },
  async worker() {
    worker.child.kill('SIGKILL')
    await worker.ended
    worker = await cluster.startWorker()
  },
  async redis() {
    await cluster.redis.kill()
    await cluster.redis.start()
  },
  async agent() {
    agent.child.kill('SIGKILL')
    await agent.exited
    agent = await connected()
  },
}

interface Sent {
  acknowledged: number
  repeats: number
  readonly strange: string[]
}

/**
 * Sends the next message after the ACK of the one before, and again after a hang-up, as devices do. Ends only after an ACK:
 * a message without one may have been stored or not.
 */
async function feed(name: string): Promise<Sent> {
  const sent: Sent = { acknowledged: 0, repeats: 0, strange: [] }
  let device: Device | undefined
  let isUnacknowledged = false
  while (!isOver || isUnacknowledged || sent.acknowledged < LEAST) {
    const id = `${name}-${String(sent.acknowledged).padStart(6, '0')}`
    isUnacknowledged = true
    try {
      device ??= await openDevice(t, address)
      const ack = await device.send(anAdt(id))
      isUnacknowledged = false
      if (ack.includes(`\rMSA|AA|${id}|`)) sent.acknowledged++
      else sent.strange.push(`${id}: ${ack}`)
    } catch {
      device?.close()
      device = undefined
      sent.repeats++
      await delay(100)
    }
  }
  device?.close()
  return sent
}

t.test('each message is acknowledged on its own connection', async (t) => {
  const devices = await Promise.all(Array.from({ length: DEVICES }, () => openDevice(t, address)))
  const round = async (device: Device, name: string, count: number) => {
    const wrong: string[] = []
    for (let n = 0; n < count; n++) {
      const id = `${name}-${n}`
      const ack = await device.send(anAdt(id))
      if (!ack.includes(`\rMSA|AA|${id}|`)) wrong.push(`${id}: ${ack}`)
    }
    return wrong
  }
  const rounds = (name: string, count: number) =>
    Promise.all(devices.map((device, n) => round(device, `${name}${n}`, count)))
  await rounds('warm', 10)
  const started = performance.now()
  const wrong = await rounds('calm', CALM)
  const seconds = (performance.now() - started) / 1000
  t.comment(`${Math.round((DEVICES * CALM) / seconds)} messages per second`)
  t.same(wrong.flat(), [])
  for (const device of devices) device.close()
})

t.test('no message is lost, stored twice or out of order through kills', async (t) => {
  const started = performance.now()
  const names = Array.from({ length: DEVICES }, (_, n) => `d${String(n).padStart(2, '0')}`)
  const feeding = Promise.all(names.map(feed))
  const kinds = Object.keys(faults) as (keyof typeof faults)[]
  for (let n = 0; n < KILLS; n++) {
    await delay(CALM_MS)
    await faults[kinds[n % kinds.length] ?? 'web']()
  }
  isOver = true
  const all = await feeding
  const seconds = (performance.now() - started) / 1000
  const count = all.reduce((sum, { acknowledged }) => sum + acknowledged, 0)
  const repeats = all.reduce((sum, one) => sum + one.repeats, 0)
  t.comment(`${count} messages in ${seconds.toFixed(0)} s, ${repeats} sent again`)
  t.same(
    all.flatMap(({ strange }) => strange),
    [],
    'each ACK is of the message before it on its connection',
  )
  for (const [place, name] of names.entries()) {
    const expected = Array.from(
      { length: all[place]?.acknowledged ?? 0 },
      (_, n) => `${name}-${String(n).padStart(6, '0')}`,
    )
    const stored = await readStored(name)
    t.same(stored, expected, `${name}: none lost, none twice, in their order`)
  }
})

/** Returns the control ids of a device in the order in which they were stored. */
async function readStored(name: string): Promise<readonly string[]> {
  const found: { readonly id: string; readonly at: string }[] = []
  let path = `Basic?_count=1000&_sort=_lastUpdated&_fields=identifier`
  await until(async () => (await admin.get(path)).status === 200, 60_000)
  while (path !== '') {
    const { body } = await admin.get<Untyped>(path)
    for (const { resource } of body.entry ?? []) {
      const id: string = resource.identifier[0].value
      if (id.startsWith(`${name}-`)) found.push({ id, at: resource.meta.lastUpdated })
    }
    path = body.link?.find(({ relation }: Untyped) => relation === 'next')?.url ?? ''
  }
  return found.map(({ id }) => id)
}

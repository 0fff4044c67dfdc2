/** Imports the queues, to hold the connection of one process to Redis. */
import { randomUUID } from 'node:crypto'
import { once } from 'node:events'
import net, { type AddressInfo, type Socket } from 'node:net'
import { Redis } from 'ioredis'
import t, { type Test } from 'tap'
import { createLogger } from '../../../../shared/core/log.ts'
import { keys } from '../../../../shared/queue/jobs.ts'
import { openQueues } from '../../../../shared/queue/queue.ts'
import { openBus } from '../../../../shared/redis/bus.ts'
import { openRedis } from '../../../../shared/redis/redis.ts'
import { openBotica, until } from '../../../fixtures/botica.ts'
import { aBot, execute, handler } from '../../../fixtures/bots/bots.ts'
import { aJob } from '../../../fixtures/bots/execute-job.ts'
import { signIn } from '../../../fixtures/client.ts'

const PATIENCE_MS = 60_000
const LIMIT = 8
/** A process trusts its count of a project's runs for this long. */
const TRUSTED_MS = 2000

t.test('bounds the backlog of a project over two web processes', async (t) => {
  const env = { QUEUE_BACKLOG_MAX: String(LIMIT), EXECUTE_WAIT_MS: '100' }
  const botica = await openBotica(t, { env })
  const { id, secret } = botica.adminCredentials
  const webs = [botica.admin, await signIn(await botica.startWeb(), id, secret)]
  const bot = await aBot(botica, handler('return 1'))
  const depth = async () => {
    const states = Object.values((await botica.services.queues.depths())['bots-sync'] ?? {})
    return states.reduce((sum, count) => sum + count, 0)
  }
  // Afterwards each web process knows the backlog, and adds runs before they are counted.
  for (const web of webs) t.equal((await execute(web, bot, {})).status, 202)
  let most = 0
  let isOver = false
  const crowd = Promise.all(
    webs.flatMap((web) => Array.from({ length: 40 }, () => execute(web, bot, {}))),
  ).finally(() => {
    isOver = true
  })
  while (!isOver) most = Math.max(most, await depth())
  const statuses = (await crowd).map(({ status }) => status)
  t.equal(statuses.filter((status) => status === 202).length, LIMIT - webs.length)
  t.ok(statuses.every((status) => status === 202 || status === 429))
  t.ok(most <= LIMIT + (webs.length / 2) * LIMIT, `holds ${most} runs at most`)
  t.equal(await depth(), LIMIT, 'removes the rejected runs')
})

t.test('returns the result of a run that ended before it was rejected', async (t) => {
  const botica = await openBotica(t, { worker: true, env: { QUEUE_BACKLOG_MAX: String(LIMIT) } })
  const { services, project, admin } = botica
  const botId = await aBot(botica, handler('return event.runId'))
  const { body } = await admin.get<{ meta: { versionId: string } }>(`Bot/${botId}`)
  const own = await services.principals.forProfile(`Bot/${botId}`, project.id)
  const membershipId = own?.principal.membershipId ?? ''
  const bot = { botId, botVersion: Number(body.meta.versionId), membershipId }
  const redis = new Redis(services.config.redisUrl)
  t.teardown(() => redis.disconnect())
  const { relay, queues } = await openWebQueues(t, botica.services)
  const start = (runId: string) => {
    const job = aJob(project.id, { ...bot, runId })
    return queues.execute(job, { waitMs: PATIENCE_MS, mayBeLate: true })
  }
  const startHeld = async () => {
    for (;;) {
      const began = Date.now()
      t.match(await start(randomUUID()), { status: 'ok' })
      relay.hold()
      const runId = randomUUID()
      const reply = start(runId)
      if (Date.now() - began < TRUSTED_MS) return { runId, reply }
      // On a busy machine the second run may start too late.
      relay.sendRequests()
      relay.sendAnswers()
      await reply
    }
  }

  // The backlog becomes full behind the back of this web process, which hears nothing until the run has ended.
  const { runId, reply } = await startHeld()
  const flight = keys.flight('bots-sync', project.id)
  const others = Array.from({ length: LIMIT }, () => [Date.now() + PATIENCE_MS, randomUUID()])
  await redis.zadd(flight, ...others.flat())
  relay.sendRequests()
  const records = async () => (await admin.get(`Bot/${botId}/$runs`)).text
  await until(async () => (await records()).includes(runId), PATIENCE_MS)
  await until(async () => !(await services.queues.has('bots-sync', runId)), PATIENCE_MS)
  relay.sendAnswers()
  t.match(await reply, { runId, status: 'ok', body: runId })
  t.match(await start(randomUUID()).catch((error: unknown) => error), { status: 429 })
})

/** The queues of another web process, whose connections to Redis can be held. */
async function openWebQueues(
  t: Test,
  services: Awaited<ReturnType<typeof openBotica>>['services'],
) {
  const relay = await openRelay(t, new URL(services.config.redisUrl))
  const config = { ...services.config, redisUrl: relay.url, redisTimeoutMs: 2 * PATIENCE_MS }
  const log = createLogger('silent', 'web')
  const redis = openRedis(config, 'request', log)
  const bus = await openBus(config, redis, log)
  const queues = await openQueues(config, bus, log)
  t.teardown(async () => {
    await queues.close()
    bus.close()
    redis.disconnect()
  })
  return { relay, queues }
}

async function openRelay(t: Test, to: URL) {
  const clients = new Set<Socket>()
  const servers = new Set<Socket>()
  const relay = net.createServer((client) => {
    const server = net.connect(Number(to.port), to.hostname)
    clients.add(client)
    servers.add(server)
    for (const [from, into] of [
      [client, server],
      [server, client],
    ] as const) {
      from.on('data', (chunk) => into.write(chunk))
      from.on('close', () => into.destroy())
      from.on('error', () => into.destroy())
    }
  })
  relay.listen(0, '127.0.0.1')
  await once(relay, 'listening')
  t.teardown(() => {
    for (const socket of [...clients, ...servers]) socket.destroy()
    relay.close()
  })
  const url = new URL(to)
  url.hostname = '127.0.0.1'
  url.port = String((relay.address() as AddressInfo).port)
  const each = (sockets: Set<Socket>, act: 'pause' | 'resume') => {
    for (const socket of sockets) socket[act]()
  }
  return {
    url: url.href,
    hold() {
      each(clients, 'pause')
      each(servers, 'pause')
    },
    sendRequests: () => each(clients, 'resume'),
    sendAnswers: () => each(servers, 'resume'),
  }
}
